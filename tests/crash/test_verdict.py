"""The judges of the fault suites are judged themselves: each kind of lie is seen."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from holdfast import Claim, Holdfast
from holdfast.invariants.histories import Call
from tests.crash.traffic import THREADS, Diary, Held, Told
from tests.crash.verdict import judge


@pytest.fixture
async def holdfast() -> AsyncIterator[Holdfast]:
    async with Holdfast(":memory:") as opened:
        yield opened


async def claim_with_a_mark(holdfast: Holdfast) -> tuple[Claim, Told]:
    run = await holdfast.create_run(session_id="s", clog_id="noop", input="a.1")
    (claim,) = await holdfast.claim_next()
    return claim, Told(f"run:{run.run_id}", 1, "a.1")


async def test_the_truth_is_accepted(holdfast: Holdfast) -> None:
    claim, told = await claim_with_a_mark(holdfast)
    held = Held(claim.run_id, claim.claim_id, claim.lease_until)

    assert await judge(holdfast, [Diary("a", told=[told], held=[held])]) == []


@pytest.mark.parametrize("lie", [{"rev": 2}, {"mark": "a.2"}, {"thread": "run:nobody"}], ids=str)
async def test_a_mark_that_stands_elsewhere_is_seen(holdfast: Holdfast, lie: dict[str, object]) -> None:
    _, told = await claim_with_a_mark(holdfast)
    fields = {name: getattr(told, name) for name in told.__struct_fields__}

    (problem,) = await judge(holdfast, [Diary("a", told=[Told(**{**fields, **lie})])])

    assert "was told" in problem


async def test_a_mark_that_stands_twice_is_seen(holdfast: Holdfast) -> None:
    claim, told = await claim_with_a_mark(holdfast)
    await holdfast.emit(claim, "note", "a.1")

    (problem,) = await judge(holdfast, [Diary("a", told=[told])])

    assert "was told" in problem


async def test_a_claim_given_twice_is_seen(holdfast: Holdfast) -> None:
    claim, _ = await claim_with_a_mark(holdfast)
    held = Held(claim.run_id, claim.claim_id, claim.lease_until)

    problems = await judge(holdfast, [Diary("a", held=[held]), Diary("b", held=[held])])

    assert any("was given to 2 callers" in problem for problem in problems)


async def test_two_holders_at_once_are_seen(holdfast: Holdfast) -> None:
    first, _ = await claim_with_a_mark(holdfast)
    await holdfast.release(first)
    (second,) = await holdfast.claim_next()
    honest = [Held(claim.run_id, claim.claim_id, claim.lease_until) for claim in (first, second)]
    assert await judge(holdfast, [Diary("a", held=honest)]) == []

    sql = "UPDATE {s}journal SET at = at - 1000000 WHERE data LIKE $1"
    await holdfast.journal.store.execute((sql, (f"%{second.claim_id}%",)))

    problems = await judge(holdfast, [Diary("a", held=honest)])
    assert any("at once" in problem for problem in problems)


async def test_being_listened_to_too_late_is_seen(holdfast: Holdfast) -> None:
    claim, _ = await claim_with_a_mark(holdfast)
    held = Held(claim.run_id, claim.claim_id, claim.lease_until, "accepted too late")

    (problem,) = await judge(holdfast, [Diary("a", held=[held])])

    assert "after its lease" in problem


@pytest.mark.parametrize("outcome", ["ok", "refused"])
async def test_an_append_that_ended_otherwise_is_seen(holdfast: Holdfast, outcome: str) -> None:
    await holdfast.journal.append(THREADS[0], [{"kind": "note", "data": "here"}])
    body = '"here"' if outcome == "refused" else '"elsewhere"'
    call = Call(thread=THREADS[0], bodies=(body,), outcome=outcome, rev=1)  # type: ignore[arg-type]

    assert await judge(holdfast, [Diary("a", calls=[call])]) != []
