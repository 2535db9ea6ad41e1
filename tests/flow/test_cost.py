"""What a step costs does not depend on how many came before it: counted where statements reach the database."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from holdfast import FlowContext, Holdfast
from holdfast.store import Member
from holdfast.store.sqlite import SQLite

EACH = 250


class Counted:
    """How many calls, rows and bytes went to the database since the last look."""

    def __init__(self) -> None:
        self.calls = self.rows = self.bytes = 0

    def add(self, members: Sequence[Member]) -> None:
        for member in members:
            written = [row for rows in member.changes.puts.values() for row in rows]
            self.rows += len(written) + len(member.entries)
            self.bytes += member.size + sum(len(str(row)) for row in written)

    def look(self) -> tuple[int, int, int]:
        seen = self.calls, self.rows, self.bytes
        self.calls = self.rows = self.bytes = 0
        return seen


@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    ("steps", "speaks"),
    [(1_000, False), (1_000, True), pytest.param(5_000, False, marks=pytest.mark.slow)],
    ids=["silent", "speaking", "long"],
)
async def test_the_last_steps_of_a_long_flow_cost_what_the_first_did(
    monkeypatch: pytest.MonkeyPatch, steps: int, speaks: bool
) -> None:
    counted, looks = Counted(), []
    write, read, fetch = SQLite.write, SQLite.read_slices, SQLite.fetch

    async def counting_write(self: SQLite, members: Sequence[Member], *rest: Any) -> Any:
        counted.calls += 1
        counted.add(members)
        return await write(self, members, *rest)

    async def counting_read(self: SQLite, requests: Any) -> Any:
        counted.calls += 1
        return await read(self, requests)

    async def counting_fetch(self: SQLite, sql: str, *params: Any) -> Any:
        counted.calls += 1
        return await fetch(self, sql, *params)

    monkeypatch.setattr(SQLite, "write", counting_write)
    monkeypatch.setattr(SQLite, "read_slices", counting_read)
    monkeypatch.setattr(SQLite, "fetch", counting_fetch)

    async def work(number: int) -> int:
        if number % EACH == 0:
            looks.append(counted.look())
        return number

    async with Holdfast(":memory:") as hf:

        @hf.flow("long")
        async def long(ctx: FlowContext, most: int) -> int:
            for number in range(most):
                await ctx.step("work", work, number)
                if speaks:
                    await ctx.emit("progress", number)
            return most

        run = await hf.start(long, steps + 1, session_id="s")
        await hf.advance()
        assert await hf.result(run.run_id) == steps + 1
        assert (await hf.fsck()).ok

    first, last = looks[1], looks[-1]
    assert all(late <= 1.2 * early for early, late in zip(first, last, strict=True)), (first, last)
