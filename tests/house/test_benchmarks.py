"""The benchmarks run and say what they measured. How fast is not asked here."""

from __future__ import annotations

from pathlib import Path

from benchmarks import outbox_drain
from benchmarks.group_commit import WORKLOADS, table


async def test_the_table_has_a_row_for_every_workload(tmp_path: Path) -> None:
    lines = await table({"SQLite": str(tmp_path / "bench.db")}, writers=4, seconds=0.05)

    assert [line.split(" | ")[0].removeprefix("| ") for line in lines[2:]] == list(WORKLOADS)
    assert all("×" in line for line in lines[2:])


async def test_the_outbox_is_drained_both_ways(tmp_path: Path) -> None:
    lines = await outbox_drain.table({"SQLite": str(tmp_path / "bench.db")}, rows=1_000)

    assert lines[2].startswith("| SQLite | ")
    assert float(lines[2].split(" | ")[3].removesuffix(" |")) > 0
