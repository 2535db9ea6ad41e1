"""Where our own processes spend their time while they play a scenario, as py-spy sees it.

make bench-profiles                           # five minutes, a page in docs/benchmarks
python -m benchmarks.profiles --only A,E-1m   # a part of it, printed
"""

from __future__ import annotations

import argparse
import asyncio
import os
import platform
import re
import sys
import tempfile
from collections import Counter
from collections.abc import Coroutine, Mapping, Sequence
from contextlib import ExitStack
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks.__main__ import HOME, chosen, commit
from benchmarks.bench import Bench, Size
from benchmarks.environments import Environments
from benchmarks.peers.driving import Job
from benchmarks.processes import Broken, Player
from benchmarks.scenarios import SCENARIOS
from benchmarks.serving import Api
from benchmarks.sides import HOLDFAST, Side

SPY = Side("profiles", "py-spy", "benchmarks.profiles", frozenset(), packages=("py-spy==0.4.3",))
SIZE = Size(seconds=5.0, warm_s=1.5, repeats=1, asks=1_200, history_max=1_000_000)
SHOWN = ("A", "A-live", "B", "batch", "C", "D", "E-0", "E-1m", "F-A", "F-B", "SSE-live", "SSE-1000")
API = "api"
ROLES = {"work": "worker", "enqueue": "callers", "batch": "caller", "ask": "caller", "stream": "worker", API: "API"}
"""Who is looked at, and what to call it. Who fills tables or reads what is sent is not."""
RATE, LOOKING_S = 250, 5
"""Shorter than anybody works: a process that ends while a spy holds it for a look stays held."""
WRITTEN_S = 30.0
TOP = 8

WRITER, REST = "SQLite's writer, a thread of its own", "the rest"
PLACES = {
    "`store/`: committer, statements and their lists": ("holdfast/store/",),
    "`protocol/`: decide, evolve, canonical values": ("holdfast/protocol/",),
    "`journal/`: rows, entries, checks": ("holdfast/journal/",),
    "`runtime/`: claims, creations, answers": ("holdfast/runtime/", "holdfast/facade.py"),
    "`executor`, `handlers/`, `worker`": ("holdfast/executor.py", "holdfast/handlers/", "holdfast/worker.py"),
    "`flow/`": ("holdfast/flow/",),
    "`http/`: tails, readers, their streams": ("holdfast/http/",),
    "the web server": ("uvicorn/", "starlette/"),
    "the event loop": ("asyncio/", "selectors.py"),
    "the driver": ("asyncpg/",),
}
_LINE = re.compile(r":\d+\)$")


class Profile(NamedTuple):
    """What one process was found doing, while it held the interpreter's lock: by place, and by function."""

    title: str
    places: Counter[str]
    functions: Counter[str]

    def share(self, place: str) -> str:
        found = self.places[place]
        return f"{found / self.places.total():.0%}".replace("%", " %") if found else "–"


def profile(title: str, raw: str) -> Profile:
    """From py-spy's lines: a stack, outermost first, and how often it was seen."""
    places, functions = Counter[str](), Counter[str]()
    for line in raw.splitlines():
        stack, _, times = line.rpartition(" ")
        frames = [_LINE.sub(")", frame) for frame in stack.split(";")]
        places[place(frames)] += int(times)
        functions[frames[-1]] += int(times)
    return Profile(title, places, functions)


def place(frames: Sequence[str]) -> str:
    """Whose time this is: of those we know, the innermost. A library that we call is its caller's time."""
    if "_bootstrap" in frames[0]:
        return WRITER if any("holdfast/store/sqlite" in frame for frame in frames) else REST
    for frame in reversed(frames):
        for title, parts in PLACES.items():
            if any(part in frame for part in parts):
                return title
    return REST


class Watched(Bench):
    """A bench on which a spy looks at those of our processes that do the work, from when they are ready."""

    def __init__(self, environments: Environments, folder: Path, stack: ExitStack) -> None:
        super().__init__(environments, SIZE, folder, stack)
        self._spy = environments.python(SPY).with_name("py-spy")
        self._spies: dict[str, tuple[asyncio.subprocess.Process, Path]] = {}

    def player(self, side: Side, role: str, job: Job) -> Coroutine[Any, Any, Player]:
        starting = super().player(side, role, job)
        return self._watched(starting, role) if role in ROLES else starting

    async def _watched(self, starting: Coroutine[Any, Any, Player], role: str) -> Player:
        player = await starting
        # What it does before, imports and the like, is nobody's question.
        await player.ready()
        await self._look(role, player.pid)
        return player

    async def joined(self, api: Api) -> None:
        await self._look(API, api.pid)

    async def _look(self, role: str, pid: int) -> None:
        raw = self.folder / f"{role}-{pid}.raw"
        record = f"record -p {pid} --gil --rate {RATE} --duration {LOOKING_S} --format raw -o {raw}"
        spy = await asyncio.create_subprocess_exec(
            self._spy, *record.split(), stdout=asyncio.subprocess.DEVNULL, stderr=asyncio.subprocess.PIPE
        )
        self._spies[role] = spy, raw

    async def profiles(self, name: str) -> list[Profile]:
        """Those who worked in this scenario. A slice that had to be played again counts once, the last time."""
        self._spies.clear()
        # Not the first repeat: that one counts round trips in a slice of its own.
        await SCENARIOS[name].play(self, HOLDFAST, 1)
        titles = {role: f"{name}, {ROLES[role]}" if len(self._spies) > 1 else name for role in self._spies}
        found: list[Profile] = []
        for role, (spy, raw) in self._spies.items():
            _, said = await asyncio.wait_for(spy.communicate(), WRITTEN_S)
            found.append(profile(titles[role], _written(raw, said.decode(errors="replace"))))
        return found


def _written(raw: Path, said: str) -> str:
    if not raw.exists() or not raw.stat().st_size:
        raise Broken(f"py-spy saw nothing: {said.strip()[-300:]}")
    return raw.read_text()


async def measure(names: Sequence[str]) -> tuple[Mapping[str, str], list[Profile]]:
    """What the server is, and a profile of each process of each scenario."""
    environments = Environments(HOME)
    environments.install(SPY)
    with tempfile.TemporaryDirectory(prefix="holdfast-profiles-") as folder, ExitStack() as stack:
        bench = Watched(environments, Path(folder), stack)
        found: list[Profile] = []
        for name in names:
            found += await bench.profiles(name)
            print(name, found[-1].places.most_common(3), file=sys.stderr, flush=True)
        return await bench.server().settings(), found


def page(names: str, server: Mapping[str, str], profiles: Sequence[Profile]) -> str:
    """Everything, as Markdown."""
    known = [*PLACES, WRITER, REST]
    places = [each for each in known if any(profile.places[each] for profile in profiles)]
    parts = [
        "# Where the time goes",
        f"Measured on {datetime.now(UTC):%Y-%m-%d} at {commit()} with `python -m benchmarks.profiles{names}`: "
        f"{os.cpu_count()} cores, Python {platform.python_version()}, Postgres {server['server_version']}, "
        f"{SPY.packages[0]}. Each scenario of the [benchmarks](README.md) was played once while `py-spy record -g` "
        f"looked at our processes {RATE} times a second; a look counts if the process held the interpreter's lock. A "
        "library that we call counts for the part that calls it.",
        "\n".join(
            (
                f"| | {' | '.join(profile.title for profile in profiles)} |",
                f"|---|{'---:|' * len(profiles)}",
                *(f"| {each} | {' | '.join(profile.share(each) for profile in profiles)} |" for each in places),
                f"| looks | {' | '.join(f'{profile.places.total():,}' for profile in profiles)} |",
            )
        ),
        f"The {TOP} functions in which each was found most often, without what they call:",
        "\n".join(f"- **{each.title}**: {_most(each)}" for each in profiles),
        "What follows from it for the goals that are missed: [bounds](bounds.md).",
    ]
    return "\n\n".join(parts) + "\n"


def _most(seen: Profile) -> str:
    total = seen.functions.total()
    return ", ".join(f"`{name}` {times / total:.1%}" for name, times in seen.functions.most_common(TOP))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="", help=f"scenarios, of {', '.join(SHOWN)}")
    parser.add_argument("--page", type=Path, help="a folder for the page; else it is printed")
    options = parser.parse_args()
    HOME.mkdir(exist_ok=True)
    names = f" --only {options.only}" if options.only else ""
    try:
        text = page(names, *asyncio.run(measure(chosen(options.only, SHOWN))))
    except Broken as error:
        raise SystemExit(f"no profiles: {error}") from None
    if options.page is None:
        print(text)
        return
    (options.page / "profiles.md").write_text(text)


if __name__ == "__main__":
    main()
