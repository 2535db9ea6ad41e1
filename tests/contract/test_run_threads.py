"""Facts written to a run's thread by hand: folded, indexed, and refused in the open when they do not fit."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from holdfast import Claim, Conflict, Done, Holdfast, InvalidEntry, InvalidValue, Ok, Retry
from holdfast.protocol import catalog
from tests.conftest import FakeClock
from tests.contract.builders import (
    LEASE_S,
    active,
    anomalies,
    assert_sound,
    claim_one,
    create,
    entries,
    entry,
    event_types,
    fenced,
    idle,
    kinds,
    look,
    rows,
)

CREATED = entry("run_created", session_id="s1", clog_id="chat")


@pytest.mark.clause("SB-2")
async def test_a_fact_that_lacks_fields_is_refused_by_their_names(hf: Holdfast) -> None:
    with pytest.raises(InvalidEntry, match="lacks session_id, clog_id"):
        await hf.journal.append("run:r1", [entry("run_created", input=1)])

    with pytest.raises(InvalidEntry, match="lacks clog_id"):
        await hf.journal.append("run:r1", [entry("run_created", session_id="s1", clog_id=None)])

    assert await hf.journal.read("run:r1") == []
    assert await hf.get_run("r1") is None


@pytest.mark.clause("SB-2", "S-10")
async def test_what_is_no_fact_is_refused_with_its_neighbours(hf: Holdfast) -> None:
    run = await create(hf)
    fine = entry("signal_received", signal_id="i1")
    wrong = [
        entry("unheard_of", x=1),
        {"kind": "signal_received", "data": [1, 2]},
        {"kind": "signal_received", "data": None},
        entry("signal_received", signal_id=7),
        entry("signal_received", signal_id="i2", v=2),
    ]

    for each in wrong:
        with pytest.raises(InvalidEntry):
            await hf.journal.append(f"run:{run.run_id}", [fine, each])

    assert await kinds(hf, run.run_id) == ["run_created"]


@pytest.mark.clause("S-03")
async def test_a_runs_thread_begins_with_its_creation(hf: Holdfast) -> None:
    with pytest.raises(InvalidEntry, match="first entry must be a run_created"):
        await hf.journal.append("run:r1", [entry("signal_received", signal_id="i1"), CREATED])
    with pytest.raises(InvalidValue):
        await hf.journal.append("run:not an id", [CREATED])

    assert await hf.journal.append("run:r1", [CREATED, entry("signal_received", signal_id="i1")], expected_rev=0) == 2
    assert (await look(hf, "r1")).status == "pending"


@pytest.mark.clause("S-03", "C-3")
async def test_facts_are_folded_and_indexed_in_the_commit_that_writes_them(hf: Holdfast) -> None:
    run = await idle(hf)

    head = await hf.journal.append(
        f"run:{run.run_id}", [entry("signal_received", signal_id="i1", has_input=True, input="by hand")]
    )

    assert head == 2
    seen = await look(hf, run.run_id)
    assert (seen.status, seen.pending_input, seen.rev) == ("pending", "by hand", 2)
    claim = await claim_one(hf)
    assert claim.input == "by hand"


@pytest.mark.clause("S-07", "S-09")
async def test_of_several_facts_on_one_revision_exactly_one_is_written(hf: Holdfast) -> None:
    run = await idle(hf)
    signals = [entry("signal_received", signal_id=f"i{i}") for i in range(6)]

    answers = await asyncio.gather(
        *(hf.journal.append(f"run:{run.run_id}", [signal], expected_rev=1) for signal in signals),
        return_exceptions=True,
    )

    lost = [answer for answer in answers if isinstance(answer, Conflict) and answer.code == "conflict"]
    assert (len(lost), answers.count(2)) == (5, 1)
    assert await kinds(hf, run.run_id) == ["run_created", "signal_received"]


@pytest.mark.clause("S-09")
async def test_facts_by_hand_and_commands_share_one_order(hf: Holdfast) -> None:
    run = await idle(hf)

    heads, receipts = await asyncio.gather(
        asyncio.gather(*(hf.journal.append(f"run:{run.run_id}", [_signal(i)]) for i in range(6))),
        asyncio.gather(*(hf.signal(run.run_id, i) for i in range(6))),
    )

    revs = [*heads, *(receipt.rev or 0 for receipt in receipts)]
    assert sorted(revs) == list(range(2, 14))
    assert await kinds(hf, run.run_id) == ["run_created"] + ["signal_received"] * 12


@pytest.mark.clause("SB-5", "S-31", "S-36", "S-44", "S-47", "S-55", "S-59", "S-20")
async def test_a_fact_that_cannot_be_accepted_stays_as_an_anomaly(hf: Holdfast) -> None:
    claim = await active(hf)
    before = await look(hf, claim.run_id)
    refused = {
        "active_claim": fenced("attempt_claimed", "rival", owner_id="w2", lease_us=1),
        "stale_claim": fenced("attempt_heartbeat", "nobody", lease_us=1),
        "unknown_runnable_intent": fenced("attempt_completed", "nobody", runnable_key="x", result_digest="d"),
        "conflicting_child_run": entry("child_run_finished", child_run_id="never started", status="done"),
        "stale_manual_resolution": entry("manual_step_resolved", step="review", action="resume"),
        "conflicting_runnable_intent": entry("run_created", session_id="s1", clog_id="another"),
        "malformed_entry": entry("tick_abandoned", tick_id="t", from_seq=1, reason="boredom"),
    }

    for fact in refused.values():
        await hf.journal.append(f"run:{claim.run_id}", [fact])

    after = await look(hf, claim.run_id)
    assert {name for name in before.__struct_fields__ if getattr(before, name) != getattr(after, name)} == {"rev"}
    assert await anomalies(hf, claim.run_id) == [(reason, fact["kind"]) for reason, fact in refused.items()]
    assert await kinds(hf, claim.run_id, after=before.rev) == [fact["kind"] for fact in refused.values()]


@pytest.mark.clause("S-44")
async def test_an_end_written_by_a_stranger_does_not_end_the_run(hf: Holdfast) -> None:
    claim = await active(hf)

    await hf.journal.append(f"run:{claim.run_id}", [fenced("run_terminal", "stranger", status="done")])

    assert (await look(hf, claim.run_id)).status == "active"
    assert await anomalies(hf, claim.run_id) == [("stale_claim", "run_terminal")]
    assert (await hf.complete(claim, Done(1))).status == "done"


@pytest.mark.clause("S-05", "S-44")
async def test_an_end_that_was_refused_shows_nowhere(hf: Holdfast) -> None:
    claim = await active(hf)

    await hf.journal.append(f"run:{claim.run_id}", [fenced("run_terminal", "stranger", status="failed")])
    await hf.emit(claim, "text", "still here")

    assert await event_types(hf, claim.run_id) == ["run_queued", "run_started", "text"]
    await assert_sound(hf)


@pytest.mark.clause("S-44", "H-W5")
async def test_an_end_that_was_refused_is_not_taken_for_the_real_one(hf: Holdfast) -> None:
    claim = await active(hf)
    await hf.journal.append(f"run:{claim.run_id}", [fenced("run_terminal", "stranger", status="failed")])

    ended = await hf.complete(claim, Done("real"))

    last = [event async for event in hf.events(claim.run_id)][-1]
    assert (last.type, last.seq, last.data["status"]) == ("done", ended.rev, "completed")
    listed = catalog.fold(await hf.journal.view_facts("catalog"))
    assert listed[claim.run_id].ended == "done"


@pytest.mark.clause("S-63", "H-S6", "S-61")
async def test_facts_after_the_end_are_anomalies_only(hf: Holdfast) -> None:
    claim = await active(hf)
    ended = await hf.complete(claim, Done("first"))
    late = [
        fenced("attempt_heartbeat", claim.claim_id, claim.token, lease_us=1),
        fenced("attempt_claimed", "late", owner_id="w2", lease_us=1),
        entry("attempt_scheduled", runnable_key="x", step="x", idempotency_key="x"),
        entry("manual_step_paused", step="review", kind="pause"),
        entry("child_run_started", child_run_id="c", clog_id="helper", child_key="k"),
        entry("live_wakeup_emitted"),
        entry("run_terminal", status="failed", error="no"),
    ]

    await hf.journal.append(f"run:{claim.run_id}", late)

    after = await look(hf, claim.run_id)
    assert (after.status, after.output, after.finished_at) == ("done", "first", ended.finished_at)
    assert {reason for reason, _ in await anomalies(hf, claim.run_id)} == {"terminal_run"}


@pytest.mark.clause("S-03", "S-06", "C-3")
async def test_a_life_written_by_hand_leaves_the_rows_of_one_lived_by_commands(hf: Holdfast, clock: FakeClock) -> None:
    lived = await create(hf, run_id="lived", queue="left", metadata={"a": 1}, priority=3)
    twin = Twin(hf, lived.run_id)
    await twin.follow()

    first = await claim_one(hf, "left", owner="w1")
    await hf.emit(first, "text", {"delta": "hm"})
    await hf.signal("lived", {"n": 1}, name="more", key="k1")
    await twin.follow(first)
    clock.advance(10)
    await hf.heartbeat(first)
    await hf.complete(first, Retry("not yet"))
    await twin.follow(first)
    clock.advance(1)
    lost = await claim_one(hf, "left")
    await twin.follow(lost)
    clock.advance(LEASE_S)
    second = await claim_one(hf, "left")
    await hf.pause("lived", "review", "approval", {"why": "asked"})
    await twin.follow(lost, second)
    await hf.complete(second, Ok())
    await hf.approve("lived", actor="ada", comment="fine", key="k2")
    await twin.follow(second)
    third = await claim_one(hf, "left")
    await hf.cancel("lived", "enough")
    await hf.complete(third, Done("ignored"))
    await twin.follow(third)

    assert (await look(hf, "lived")).status == "cancelled"


class Twin:
    """A second run whose thread is written by hand, entry for entry like another's."""

    def __init__(self, hf: Holdfast, run_id: str) -> None:
        self._hf = hf
        self._run_id = run_id
        self._head = 0

    async def follow(self, *claims: Claim) -> None:
        """Write what is new, then compare every row."""
        names = {"left": "right", **{claim.claim_id: f"twin-{claim.claim_id}" for claim in claims}}
        new = [_renamed(each.kind, each.data, names) for each in await entries(self._hf, self._run_id, self._head)]

        self._head = await self._hf.journal.append("run:twin", new, expected_rev=self._head)

        wanted, found = await self._rows(self._run_id), await self._rows("twin")
        assert found == wanted

    async def _rows(self, run_id: str) -> dict[str, list[Any]]:
        tables = (await rows(self._hf, run_id)).tables
        plain = {"twin": "lived", "run:twin": "run:lived", "right": "left"}
        return {name: sorted(_plain(row, plain) for row in table) for name, table in tables.items()}


def _plain(row: tuple[Any, ...], names: dict[str, str]) -> list[str]:
    return [repr(names.get(v, v.removeprefix("twin-")) if isinstance(v, str) else v) for v in row]


def _renamed(kind: str, data: Any, names: dict[str, str]) -> dict[str, Any]:
    text = json.dumps(data)
    for name, other in names.items():
        text = text.replace(f'"{name}"', f'"{other}"')
    return {"kind": kind, "data": json.loads(text)}


def _signal(number: int) -> dict[str, Any]:
    return entry("signal_received", signal_id=f"i{number}", has_input=True, input=number)
