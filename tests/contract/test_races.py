"""What others do between our look and our write: the write is judged by what is there then."""

from __future__ import annotations

import asyncio

import pytest

from holdfast import Conflict, Done, Holdfast, LeaseLost, Ok
from holdfast.protocol.values import canonical, digest
from holdfast.store import Append, NewEntry
from tests.conftest import IN_PROCESS, FakeClock
from tests.contract.builders import LEASE_S, active, anomalies, create, entry, kinds, look, note, texts
from tests.contract.faulty import Fault, FaultyDatabase

pytestmark = pytest.mark.parametrize("configuration", IN_PROCESS)


@pytest.mark.clause("S-38", "S-41", "H-O10", "H-W2")
async def test_a_lease_that_ends_before_the_commit_is_refused_by_it(
    hf: Holdfast, clock: FakeClock, faults: FaultyDatabase
) -> None:
    claim = await active(hf)

    async def oversleep() -> None:
        clock.advance(LEASE_S)

    faults.then("read_slices", oversleep)
    with pytest.raises(LeaseLost) as caught:
        await hf.complete(claim, Done("too late"))

    assert caught.value.code == "expired_claim"
    assert (await look(hf, claim.run_id)).status == "active"
    assert await anomalies(hf, claim.run_id) == [("expired_claim", "tick_settled")]


@pytest.mark.clause("S-38", "S-34", "H-O10")
async def test_a_take_over_before_the_commit_is_respected_by_it(
    hf: Holdfast, clock: FakeClock, faults: FaultyDatabase
) -> None:
    lost = await active(hf)
    rivals = []

    async def rob() -> None:
        clock.advance(LEASE_S)
        rivals.extend(await hf.claim_next(owner="rival"))

    faults.then("read_slices", rob)
    with pytest.raises(LeaseLost) as caught:
        await hf.emit(lost, "text", "mine")

    assert caught.value.code == "stale_claim"
    assert "event" not in await kinds(hf, lost.run_id)
    assert (await hf.complete(rivals[0], Done("theirs"))).output == "theirs"


@pytest.mark.clause("S-31", "O-32")
async def test_a_claim_that_others_took_over_before_we_heard_of_it_is_not_ours(
    hf: Holdfast, clock: FakeClock, faults: FaultyDatabase
) -> None:
    run = await create(hf)
    rivals = []

    async def rob() -> None:
        clock.advance(LEASE_S)
        rivals.extend(await hf.claim_next(owner="rival"))

    faults.then("claim", rob)
    ours = await hf.claim_next(owner="slow")

    assert (ours, [claim.run_id for claim in rivals]) == ([], [run.run_id])
    assert (await look(hf, run.run_id)).locked_by == "rival"


@pytest.mark.clause("OB-6", "O-39")
async def test_a_signal_before_the_commit_is_not_overlooked(hf: Holdfast, faults: FaultyDatabase) -> None:
    claim = await active(hf)
    signal = entry("signal_received", signal_id="i1", has_input=True, input="just now")

    async def interfere() -> None:
        await hf.journal.append(f"run:{claim.run_id}", [signal])

    faults.then("read_slices", interfere)
    after = await hf.complete(claim, Ok())

    assert (after.status, after.pending_input) == ("pending", "just now")
    assert await kinds(hf, claim.run_id, after=2) == ["signal_received", "tick_settled"]


@pytest.mark.clause("S-07", "S-09")
@pytest.mark.parametrize(("fault", "wins"), [("lost", False), ("unanswered", True)])
async def test_an_append_of_unknown_fate_never_hides_anothers(
    hf: Holdfast, faults: FaultyDatabase, fault: Fault, wins: bool
) -> None:
    await hf.journal.append("notes", [note("first")])

    async def rival() -> None:
        data = canonical({"text": "rival"})
        line = NewEntry("note", data, digest("note", data))
        await faults.real.append([Append("notes", [line], 2 if wins else 1)], 1)

    faults.strike("append", fault)
    faults.then("fetch", rival)
    ours = asyncio.create_task(hf.journal.append("notes", [note("ours")], expected_rev=1))
    (answer,) = await asyncio.gather(ours, return_exceptions=True)

    assert answer == 2 if wins else isinstance(answer, Conflict)
    assert texts(await hf.journal.read("notes")) == ["first", *(["ours"] if wins else []), "rival"]


@pytest.mark.clause("C-6", "S-63")
async def test_a_run_that_ends_between_its_claim_and_the_answer_costs_the_others_nothing(
    hf: Holdfast, clock: FakeClock, faults: FaultyDatabase
) -> None:
    for name in ("a", "b", "c"):
        await create(hf, run_id=name)
        clock.advance(0.001)

    async def cancel() -> None:
        await hf.cancel("b", force=True)

    faults.then("claim", cancel)
    claims = await hf.claim_next(limit=3)

    assert [claim.run_id for claim in claims] == ["a", "c"]
    assert (await look(hf, "b")).status == "cancelled"
    for claim in claims:
        assert (await hf.complete(claim, Done(1))).status == "done"
