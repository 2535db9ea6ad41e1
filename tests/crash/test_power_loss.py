"""Pull the plug at every file operation, kill at every write, fill the disk: what was promised is there."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from holdfast import Holdfast
from tests.crash.power_loss import Inspector, Moment, fingerprint, gaps, lay_out, moments, read_journal
from tests.crash.syscalls import Result, Workload, record, strike

SEED = 20_300_101
FSCK_EVERY = 25
IMAGES_MIN = 1_000
# Checkpoints happen every thousand pages; a short workload reaches none unless they are more frequent.
CHECKPOINTS = "wal_autocheckpoint = 60"
WRITES = 402
"""About as many as a workload makes."""


class Plug:
    """A recorded workload, and everything that pulling its plug may leave."""

    def __init__(self, folder: Path, workload: Workload) -> None:
        self._work = folder / "work"
        self._work.mkdir()
        self._operations = record(self._work, workload)
        self.inspector = Inspector(folder / "image", read_journal(self._work / "db"))

    def pulled(self) -> Iterator[Moment]:
        return moments(self._operations, self._work, SEED)

    def problems(self) -> Iterator[str]:
        for moment in self.pulled():
            yield from self.inspector.inspect(moment)


async def fsck(path: Path) -> list[str]:
    async with Holdfast(str(path)) as holdfast:
        return [str(problem) for problem in (await holdfast.fsck()).problems]


async def broken_promises(folder: Path, result: Result) -> list[str]:
    """What the workload was promised and the file does not hold, and whatever else is wrong with it."""
    journal = read_journal(folder / "db")
    lost = [f"lost {thread} {rev}" for thread, rev in result.acks() if (thread, rev) not in journal]
    return [*lost, *gaps(journal), *await fsck(folder / "db")]


@pytest.mark.clause("S-08")
@pytest.mark.parametrize(
    "workload",
    [
        pytest.param(Workload(sessions=2, rounds=1, pragmas=CHECKPOINTS), id="short"),
        pytest.param(Workload(sessions=3, rounds=4, pragmas=CHECKPOINTS), id="long", marks=pytest.mark.slow),
    ],
)
@pytest.mark.timeout(600)
async def test_a_power_loss_takes_back_nothing_that_was_acknowledged(tmp_path: Path, workload: Workload) -> None:
    plug = Plug(tmp_path, workload)
    problems: list[str] = []
    opened: set[bytes] = set()

    for number, moment in enumerate(plug.pulled()):
        problems += plug.inspector.inspect(moment)
        name = fingerprint(moment.image)
        if number % FSCK_EVERY == 0 and name not in opened:
            opened.add(name)
            problems += await fsck(lay_out(moment.image, tmp_path / "holdfast"))

    print(f"{plug.inspector.images} images, {len(opened)} opened by Holdfast")
    assert problems == []
    assert plug.inspector.images >= IMAGES_MIN


@pytest.mark.parametrize("mode", ["NORMAL", "OFF"])
def test_the_simulator_sees_what_weaker_settings_lose(tmp_path: Path, mode: str) -> None:
    plug = Plug(tmp_path, Workload(pragmas=f"synchronous = {mode}"))

    assert any("lost" in problem for problem in plug.problems())


def test_the_simulator_sees_a_file_that_was_torn(tmp_path: Path) -> None:
    plug = Plug(tmp_path, Workload(pragmas="synchronous = OFF;wal_autocheckpoint = 20"))

    assert any("unreadable" in problem for problem in plug.problems())


@pytest.mark.clause("S-08")
@pytest.mark.parametrize("every", [32, pytest.param(8, marks=pytest.mark.slow)])
async def test_a_process_killed_at_a_write_leaves_all_it_acknowledged(tmp_path: Path, every: int) -> None:
    killed = 0
    points = range(2, WRITES, every)
    for point in points:
        folder = tmp_path / str(point)
        folder.mkdir()

        result = strike(folder, Workload(), f"pwrite64:signal=SIGKILL:when={point}")

        killed += result.exit == -signal.SIGKILL
        assert await broken_promises(folder, result) == [], f"killed at write {point}"
    assert killed >= len(points) - 2


@pytest.mark.parametrize(
    "fault",
    [f"fdatasync:error=EIO:when={n}" for n in (1, 3, 4, 7, 12)]
    + [f"pwrite64:error=ENOSPC:when={n}" for n in (1, 4, 9, 40, 150, 310)],
)
async def test_an_error_of_the_disk_is_overcome_or_told(tmp_path: Path, fault: str) -> None:
    result = strike(tmp_path, Workload(), fault)

    assert result.exit == 0
    assert result.said("fsck") == ["0"]
    assert await broken_promises(tmp_path, result) == []


@pytest.mark.parametrize("fault", ["fdatasync:error=EIO:when=14..34", "pwrite64:error=ENOSPC:when=300..320"])
async def test_a_disk_that_fails_for_a_while_gives_typed_errors_and_then_works_on(tmp_path: Path, fault: str) -> None:
    result = strike(tmp_path, Workload(rounds=6, patience_s=0.05), fault)

    errors = [place for place, line in enumerate(result.lines) if line.startswith("error")]
    assert set(result.said("error")) == {"database_unavailable"}
    assert any(line.startswith("ack") for line in result.lines[errors[-1] :])
    assert (result.exit, result.said("fsck")) == (0, ["0"])
    assert await broken_promises(tmp_path, result) == []
