"""Every past moment of a run: by revision, by instant, exactly as it was."""

from __future__ import annotations

from datetime import timedelta

import pytest

from holdfast import Continue, Done, Holdfast, InvalidValue, NotFound, Retry, RunInfo, Wait
from tests.conftest import FakeClock
from tests.contract.builders import LEASE_S, claim_one, create, look


async def eventful_life(hf: Holdfast, clock: FakeClock) -> list[RunInfo]:
    """Live through everything, a second apart, and remember each moment."""
    seen: list[RunInfo] = [await create(hf, run_id="r1", input={"n": 0}, key="k1")]

    async def remember() -> None:
        seen.append(await look(hf, "r1"))
        clock.advance(1)

    clock.advance(1)
    claim = await claim_one(hf, owner="w1")
    await remember()
    await hf.emit(claim, "text", "thinking")
    await remember()
    await hf.signal("r1", {"n": 1}, key="s1")
    await remember()
    await hf.heartbeat(claim)
    await remember()
    await hf.complete(claim, Retry("again", after=0))
    await remember()
    lost = await claim_one(hf, owner="w1")
    await remember()
    clock.advance(LEASE_S)
    claim = await claim_one(hf, owner="w2")
    await remember()
    assert lost.claim_id != claim.claim_id
    await hf.complete(claim, Continue({"n": 2}))
    await remember()
    await hf.pause("r1", "review", "approval")
    await remember()
    await hf.approve("r1", actor="ada")
    await remember()
    await hf.complete(await claim_one(hf), Wait(seconds=60))
    await remember()
    await hf.complete(await claim_one(hf), Wait(seconds=60))
    await remember()
    await hf.signal("r1", {"n": 3})
    claim = await claim_one(hf)
    await hf.cancel("r1")
    await remember()
    await hf.complete(claim, Done("never seen"))
    await remember()
    return seen


@pytest.mark.clause("C-3", "S-06")
async def test_a_run_is_shown_as_it_was_after_any_revision(hf: Holdfast, clock: FakeClock) -> None:
    seen = await eventful_life(hf, clock)

    for info in seen:
        assert await hf.get_run("r1", as_of=info.rev) == info


@pytest.mark.clause("C-3", "S-06")
async def test_a_run_is_shown_as_it_was_at_any_instant(hf: Holdfast, clock: FakeClock) -> None:
    seen = await eventful_life(hf, clock)

    for info in seen:
        for later in (timedelta(0), timedelta(seconds=0.999999)):
            assert await hf.get_run("r1", as_of=info.updated_at + later) == info
    assert await hf.get_run("r1", as_of=clock.now() + timedelta(days=1)) == seen[-1]


async def test_before_its_first_entry_there_is_no_run(hf: Holdfast, clock: FakeClock) -> None:
    created = clock.now()
    run = await create(hf)

    assert await hf.get_run(run.run_id, as_of=created - timedelta(microseconds=1)) is None
    assert await hf.get_run(run.run_id, as_of=created) == run
    assert await hf.get_run(run.run_id, as_of=0) is None
    assert await hf.get_run(run.run_id, as_of=-1) is None


async def test_a_revision_that_is_not_there_yet_is_not_found(hf: Holdfast) -> None:
    run = await create(hf)

    for rev in (2, 99, 1 << 40):
        with pytest.raises(NotFound):
            await hf.get_run(run.run_id, as_of=rev)


async def test_an_instant_without_a_timezone_is_refused(hf: Holdfast, clock: FakeClock) -> None:
    run = await create(hf)

    with pytest.raises((InvalidValue, ValueError)):
        await hf.get_run(run.run_id, as_of=clock.now().replace(tzinfo=None))
