"""`Bench`: the databases, the environments of all sides, and fresh places for them to work in."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import AsyncIterator, Coroutine, Iterator
from contextlib import ExitStack, asynccontextmanager, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from benchmarks.environments import Environments
from benchmarks.peers.driving import Job
from benchmarks.places import Place, Server, server, sqlite_place
from benchmarks.processes import ROOT, Broken, Player
from benchmarks.restate import RESTATE, restate_place
from benchmarks.serving import Api
from benchmarks.sides import Side

POSTGRES, SQLITE, SLOW = "postgres", "sqlite", "slow"
FILL_S = 900.0
PRELOAD = "LD_PRELOAD"


@dataclass(frozen=True)
class Size:
    """How long to look, and how often."""

    seconds: float
    warm_s: float
    repeats: int
    asks: int
    """Observations of a latency, four hundred if a hundredth of them is to say something."""
    history_max: int
    """Finished runs that a database may hold when growth is measured."""
    streams_max: int = 1_000
    """Readers that one API process may have."""


SIZES = {
    "smoke": Size(seconds=0.3, warm_s=0.2, repeats=1, asks=5, history_max=1_000, streams_max=20),
    "quick": Size(seconds=1.0, warm_s=0.5, repeats=1, asks=100, history_max=100_000),
    "small": Size(seconds=1.2, warm_s=0.6, repeats=2, asks=400, history_max=1_000_000),
    "full": Size(seconds=4.0, warm_s=1.5, repeats=3, asks=1_000, history_max=1_000_000),
}


class Bench:
    """What a scenario needs to measure one side, on a fresh database each time."""

    def __init__(self, environments: Environments, size: Size, folder: Path, stack: ExitStack) -> None:
        self.size = size
        self.folder = folder
        self._environments = environments
        self._stack = stack
        self._servers: dict[str, Server] = {}
        self._templates: dict[tuple[str, str, int], str] = {}

    def server(self, database: str = POSTGRES) -> Server:
        """The Postgres that all sides share, or the one whose disk is slow."""
        if database not in self._servers:
            with _slowed(self.folder) if database == SLOW else ExitStack():
                self._servers[database] = self._stack.enter_context(server(self.folder / f"{database}-data"))
        return self._servers[database]

    @asynccontextmanager
    async def place(self, side: Side, database: str = POSTGRES, history: int = 0) -> AsyncIterator[Place]:
        """A fresh database with the side's tables, and that many finished runs in them."""
        if side.database == RESTATE:
            async with restate_place(self._environments.npm(side), self.folder / "slice") as own:
                yield own
        elif database == SQLITE:
            template = Path(await self._template(side, SQLITE, history))
            with sqlite_place(template, self.folder / "slice") as file:
                yield file
        else:
            template_name = await self._template(side, database, history)
            async with self.server(database).place(template_name, is_large=history > 0) as made:
                yield made

    async def _template(self, side: Side, database: str, history: int) -> str:
        key = side.name, database, history
        if key not in self._templates:
            self._templates[key] = await self._make_template(side, database, history)
        return self._templates[key]

    async def _make_template(self, side: Side, database: str, history: int) -> str:
        name = f"side_{side.name}_{history}"
        if database == SQLITE:
            home = self.folder / name
            shutil.rmtree(home, ignore_errors=True)
            home.mkdir(parents=True)
            await self.play(side, "setup", Job(str(home / "template.db")))
            return str(home / "template.db")
        job = Job(await self.server(database).make(name), n=history)
        await self.play(side, "setup", job)
        if history:
            await self.play(side, "grow", job)
        return name

    def player(self, side: Side, role: str, job: Job) -> Coroutine[Any, Any, Player]:
        """A process of this side that is being started."""
        return Player.start(
            [str(self._environments.python(side)), "-m", side.module],
            role,
            replace(job, mode=side.mode),
            name=side.name,
            log=self.folder / "logs" / f"{side.name}-{role}.log",
            env={"PYTHONPATH": f"{ROOT}:{ROOT / 'src'}", "PYTHONUNBUFFERED": "1"},
        )

    async def joined(self, api: Api) -> None:
        """Its readers are there and nothing was said yet: the moment for whoever wants to look at it."""

    async def play(self, side: Side, role: str, job: Job) -> None:
        """A role that ends by itself."""
        player = await self.player(side, role, job)
        try:
            await player.until("done", FILL_S)
        finally:
            await player.end()


@contextmanager
def _slowed(folder: Path) -> Iterator[None]:
    """What is started now waits longer for its disk."""
    library = folder / "slow_disk.so"
    compiler = shutil.which("gcc") or shutil.which("cc")
    if compiler is None:
        raise Broken("a slow disk needs a C compiler, and none is on this machine")
    source = Path(__file__).with_name("slow_disk.c")
    made = subprocess.run([compiler, "-shared", "-fPIC", "-O1", "-o", str(library), str(source)], capture_output=True)
    if made.returncode:
        raise Broken(f"a slow disk cannot be compiled: {made.stderr.decode(errors='replace')[-300:]}")
    # The server may run as a user of its own.
    folder.chmod(0o755)
    library.chmod(0o755)
    os.environ[PRELOAD] = str(library)
    try:
        yield
    finally:
        del os.environ[PRELOAD]
