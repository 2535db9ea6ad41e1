"""`Player`: a side in a process of its own, driven over a pipe."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
from collections.abc import AsyncIterator, Coroutine, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any, Self

import psutil

from benchmarks.peers.driving import Job

ROOT = Path(__file__).parents[1]
READY_S = 120.0
STOP_S = 15.0
LOG_TAIL = 3


class Broken(Exception):
    """A side did not do what it was told; the text says which and how. It is reported, and the others go on."""


class Player:
    """One role of one side. It begins when told to, and what it says is kept."""

    def __init__(self, process: asyncio.subprocess.Process, name: str, log: Path) -> None:
        self._process = process
        self._name = name
        self._log = log
        self.said: dict[str, dict[str, Any]] = {}

    @property
    def pid(self) -> int:
        return self._process.pid

    @classmethod
    async def start(
        cls, command: Sequence[str], role: str, job: Job, *, name: str, log: Path, env: Mapping[str, str]
    ) -> Self:
        log.parent.mkdir(parents=True, exist_ok=True)
        with log.open("wb") as errors:
            process = await asyncio.create_subprocess_exec(
                *command,
                role,
                json.dumps(asdict(job)),
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                stderr=errors,
                cwd=ROOT,
                env={**os.environ, **env},
                limit=1 << 26,
                # A group of its own, so that what it starts goes with it.
                start_new_session=True,
            )
        return cls(process, f"{name} {role}", log)

    async def until(self, event: str, within_s: float = READY_S) -> dict[str, Any]:
        """What it says with this word; `Broken` if it ends, or is silent for too long."""
        try:
            async with asyncio.timeout(within_s):
                while event not in self.said:
                    await self._hear()
        except TimeoutError:
            raise Broken(f"{self._name}: no {event!r} within {within_s:.0f} s{self._last_words()}") from None
        return self.said[event]

    async def _hear(self) -> None:
        assert self._process.stdout is not None
        line = await self._process.stdout.readline()
        if not line:
            await self._process.wait()
            raise Broken(f"{self._name}: ended with {self._process.returncode}{self._last_words()}")
        with contextlib.suppress(ValueError, TypeError, KeyError):
            # Libraries print what they like; only lines of ours are JSON with an event.
            told = json.loads(line)
            self.said[told["event"]] = told

    def _last_words(self) -> str:
        lines = [line.strip() for line in self._log.read_text(errors="replace").splitlines() if line.strip()]
        return "".join(f" | {line[-300:]}" for line in lines[-LOG_TAIL:])

    async def ready(self) -> None:
        await self.until("ready")

    def tell(self) -> None:
        """Go, the first time; stop, the second."""
        assert self._process.stdin is not None
        self._process.stdin.write(b"now\n")

    def pause(self) -> None:
        """It stands still, with all that it started, until it may go on."""
        self._signal(signal.SIGSTOP)

    def go_on(self) -> None:
        self._signal(signal.SIGCONT)

    def _signal(self, number: signal.Signals) -> None:
        try:
            os.killpg(self._process.pid, number)
        except ProcessLookupError:
            raise Broken(f"{self._name}: gone{self._last_words()}") from None

    def cpu_s(self) -> float:
        """What it has used so far, with all that it started."""
        try:
            mine = psutil.Process(self._process.pid)
            return sum(_cpu_s(process) for process in (mine, *mine.children(recursive=True)))
        except psutil.NoSuchProcess:
            raise Broken(f"{self._name}: gone{self._last_words()}") from None

    async def end(self) -> None:
        """It has had its chance to end by itself; what is left of its group goes now."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        await self._process.wait()


def _cpu_s(process: psutil.Process) -> float:
    try:
        times = process.cpu_times()
    except psutil.NoSuchProcess:
        return 0.0
    return float(times.user + times.system)


@asynccontextmanager
async def playing(*starting: Coroutine[Any, Any, Player]) -> AsyncIterator[list[Player]]:
    """These players, all ready, none begun; gone in the end, whatever happens."""
    players: list[Player] = []
    try:
        for start in starting:
            players.append(await start)
            # One after the other: a caller may need a worker that is known already.
            await players[-1].ready()
        yield players
    finally:
        for player in players:
            await player.end()
