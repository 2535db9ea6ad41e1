"""The same calls leave the same lines and rows on every database, to the byte."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from holdfast import Holdfast
from holdfast.invariants.histories import journals_agree
from holdfast.store import Claimed
from tests.conftest import FakeClock
from tests.contract.builders import (
    LEASE_S,
    LEASE_US,
    assert_sound,
    beat_of,
    claim_request,
    entry,
    fenced,
    idle,
    note,
    rows,
    step_of,
)

pytestmark = pytest.mark.parametrize("configuration", ["postgres"])

AWKWARD: Any = {"z": 1, "a": [None, True, -0.0, 1e-7, 10**40], "é": '\u2028 \\ " / \t \U0001f600', "": {"": []}}


@pytest.fixture
async def databases(hf: Holdfast, clock: FakeClock, tmp_path: Path) -> AsyncIterator[dict[str, Holdfast]]:
    async with Holdfast(":memory:", clock=clock) as memory, Holdfast(str(tmp_path / "hf.db"), clock=clock) as file:
        yield {"postgres": hf, "memory": memory, "file": file}


@pytest.mark.clause("C-18", "C-11", "S-26")
async def test_claims_and_heartbeats_write_the_same_lines_everywhere(
    databases: dict[str, Holdfast], clock: FakeClock
) -> None:
    answers: dict[str, list[list[Claimed]]] = {}
    began = clock.now()
    for name, hf in databases.items():
        clock.advance((began - clock.now()).total_seconds())
        for run_id in ("r1", "r2", "r3"):
            await hf.create_run(run_id=run_id, session_id="s1", clog_id="chat", input=AWKWARD)
            clock.advance(1)
        await hf.journal.append("run:r3", [step_of("r3", "left/1"), step_of("r3", "right#[2]")])
        fresh = await hf.journal.claim(claim_request("c1", "c2"))
        clock.advance(1)
        beaten = await hf.journal.store.heartbeat([beat_of("r1", "c1"), beat_of("r2", "c2")], 2 * LEASE_US)
        assert [answer.rev for answer in beaten] == [3, 3]
        steps = await hf.journal.claim(claim_request("c3", "c4", "c5"))
        clock.advance(2 * LEASE_S)
        mixed = await hf.journal.claim(claim_request("c6", "c7", "c8", "c9", "c10"))
        assert all(item.first and item.first.rev == 1 for item in fresh)
        answers[name] = [[item._replace(first=None) for item in some] for some in (fresh, sorted(steps), mixed)]

    assert answers["memory"] == answers["postgres"] == answers["file"]
    await assert_agree(databases, "r1", "r2", "r3")


@pytest.mark.clause("C-18", "S-06", "C-3")
async def test_facts_leave_the_same_lines_and_rows_everywhere(databases: dict[str, Holdfast], clock: FakeClock) -> None:
    began = clock.now()
    for hf in databases.values():
        clock.advance((began - clock.now()).total_seconds())
        await idle(hf, run_id="r1", metadata=AWKWARD, priority=-7)
        await append(
            hf, entry("signal_received", signal_id="i1", has_input=True, input=AWKWARD, key="k", key_digest="d")
        )
        clock.advance(1)
        await append(hf, fenced("attempt_claimed", "c1", owner_id="w1", lease_us=LEASE_US))
        await append(hf, entry("event", type="text", data=AWKWARD, tick_id="c1"))
        await append(hf, entry("child_run_started", child_run_id="x", clog_id="helper", child_key="k", start=AWKWARD))
        await append(hf, fenced("tick_settled", "c1", outcome="retry", result_digest="d", delay_us=5, error="é"))
        await append(hf, fenced("attempt_heartbeat", "c1", lease_us=1))
        await append(hf, entry("manual_step_paused", step="review", kind="approval", metadata=AWKWARD, expires_us=9))
        await hf.journal.append("notes", [note(AWKWARD), {"kind": "é", "data": AWKWARD}])

    await assert_agree(databases, "r1")
    one, *others = [await hf.journal.store.read("notes") for hf in databases.values()]
    for other in others:
        assert list(journals_agree(one, other, "notes")) == []


async def append(hf: Holdfast, fact: dict[str, Any]) -> None:
    await hf.journal.append("run:r1", [fact])


async def assert_agree(databases: dict[str, Holdfast], *run_ids: str) -> None:
    """Line by line and row by row."""
    for hf in databases.values():
        await assert_sound(hf)
    for run_id in run_ids:
        one, *others = [await rows(hf, run_id) for hf in databases.values()]
        for other in others:
            assert list(journals_agree(one.entries, other.entries, f"run:{run_id}")) == []
            assert [entry.at for entry in other.entries] == [entry.at for entry in one.entries]
            for table, found in one.tables.items():
                assert sorted(other.tables[table], key=repr) == sorted(found, key=repr)
