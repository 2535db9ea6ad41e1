"""What watchers see: a pure view of the entries, in order, resumable, ending with the run."""

from __future__ import annotations

import asyncio

import pytest

from holdfast import Done, Event, Holdfast, InvalidValue, Ok, Wait
from tests.conftest import FakeClock
from tests.contract.builders import LEASE_S, active, claim_one, create, entries, event_types, idle, kinds


@pytest.mark.clause("O-63", "C-11", "H-W5")
async def test_the_events_of_a_life_are_a_view_of_its_entries(hf: Holdfast, clock: FakeClock) -> None:
    claim = await active(hf)
    await hf.emit(claim, "text", {"delta": "hi"})
    await hf.heartbeat(claim)
    await hf.signal(claim.run_id, 1, name="more")
    await hf.complete(claim, Wait(seconds=5))
    lost = await claim_one(hf)
    clock.advance(LEASE_S)
    claim = await claim_one(hf)
    await hf.complete(claim, Ok())
    await hf.pause(claim.run_id, "review", "approval")
    await hf.approve(claim.run_id, actor="ada")
    await hf.signal(claim.run_id)
    await hf.complete(await claim_one(hf), Done({"answer": 42}))

    events = [event async for event in hf.events(claim.run_id)]

    assert [event.type for event in events] == [
        *("run_queued", "run_started", "text", "signal_received", "run_waiting", "run_started", "tick_abandoned"),
        *("run_started", "run_idle", "approval_requested", "approval_resolved", "signal_received", "run_started"),
        "done",
    ]
    revs = {entry.rev: entry for entry in await entries(hf, claim.run_id)}
    assert [event.at for event in events] == [revs[event.seq].at for event in events]
    assert sorted({event.seq for event in events}) == [event.seq for event in events]
    assert events[6].data == {"tick_id": lost.tick_id, "from_seq": 7, "keep": []}
    assert events[-1].data == {"status": "completed", "run_status": "done", "output": {"answer": 42}}


@pytest.mark.clause("O-63", "OB-16", "H-O16")
async def test_an_emit_answers_its_seq_and_carries_its_tick(hf: Holdfast) -> None:
    claim = await active(hf)

    seqs = await asyncio.gather(*(hf.emit(claim, "text", i) for i in range(5)))

    shown = {event.seq: event async for event in hf.events(claim.run_id) if event.type == "text"}
    assert [shown[seq].data for seq in seqs] == [0, 1, 2, 3, 4]
    assert {(event.tick_id, event.attempt) for event in shown.values()} == {(claim.tick_id, 0)}
    assert sorted(seqs) == [3, 4, 5, 6, 7]


@pytest.mark.clause("O-63", "OB-16")
async def test_events_are_read_from_after_a_seq(hf: Holdfast) -> None:
    claim = await active(hf)
    for i in range(3):
        await hf.emit(claim, "text", i)
    await hf.complete(claim)
    everything = [event async for event in hf.events(claim.run_id)]

    for event in everything:
        assert [later async for later in hf.events(claim.run_id, after=event.seq)] == [
            later for later in everything if later.seq > event.seq
        ]
    assert await event_types(hf, "nobody") == []


@pytest.mark.clause("O-63", "OB-16")
async def test_pages_of_events_follow_each_other(hf: Holdfast) -> None:
    claim = await active(hf)
    for i in range(5):
        await hf.emit(claim, "text", i)
        await hf.heartbeat(claim)
    await hf.complete(claim)
    everything = [event async for event in hf.events(claim.run_id)]

    for limit in (1, 2, 3, len(everything), 100):
        pages: list[list[Event]] = [[]]
        while not pages[1:] or pages[-1]:
            after = pages[-1][-1].seq if pages[-1] else 0
            pages.append([event async for event in hf.events(claim.run_id, after=after, limit=limit)])
        assert [event for page in pages for event in page] == everything
        assert max(len(page) for page in pages) == min(limit, len(everything))
    assert [event async for event in hf.events(claim.run_id, limit=0)] == []
    with pytest.raises(InvalidValue):
        [event async for event in hf.events(claim.run_id, limit=-1)]


@pytest.mark.clause("O-63")
@pytest.mark.parametrize("configuration", ["memory", "file", "postgres"])
async def test_a_follower_that_wants_no_more_stops(hf: Holdfast) -> None:
    claim = await active(hf)
    follower = asyncio.create_task(follow(hf, claim.run_id, limit=4))

    for i in range(3):
        await hf.emit(claim, "text", i)

    seen = await asyncio.wait_for(follower, 20)
    assert [event.type for event in seen] == ["run_queued", "run_started", "text", "text"]


@pytest.mark.clause("H-W5", "S-63")
async def test_done_is_the_last_event_whatever_comes_after(hf: Holdfast) -> None:
    claim = await active(hf)
    await hf.complete(claim, Done())
    await hf.signal(claim.run_id, "late")

    assert (await event_types(hf, claim.run_id))[-1] == "done"
    assert (await kinds(hf, claim.run_id))[-1] == "signal_received"


@pytest.mark.clause("H-W13")
async def test_every_end_says_how_it_ended(hf: Holdfast) -> None:
    failed, cancelled = await active(hf), await active(hf)
    await hf.fail(failed, "broken", retry=False)
    await hf.cancel(cancelled.run_id, "enough", actor="ada", force=True)

    assert await event_types(hf, failed.run_id, after=2) == ["error", "done"]
    requested, done = [event async for event in hf.events(cancelled.run_id, after=2)]
    assert (requested.type, requested.data) == ("cancel_requested", {"reason": "enough", "actor": "ada"})
    assert done.data == {"status": "cancelled", "run_status": "cancelled"}


@pytest.mark.clause("O-63")
@pytest.mark.parametrize("configuration", ["memory", "file", "postgres"])
async def test_a_follower_sees_everything_until_the_end(hf: Holdfast) -> None:
    run = await create(hf)
    followers = [asyncio.create_task(follow(hf, run.run_id)) for _ in range(3)]

    claim = await claim_one(hf)
    for i in range(20):
        await hf.emit(claim, "text", i)
    await hf.complete(claim)

    seen = await asyncio.wait_for(asyncio.gather(*followers), 20)
    assert seen[0] == [event async for event in hf.events(run.run_id)]
    assert seen == [seen[0]] * 3


@pytest.mark.clause("O-63", "C-11")
@pytest.mark.parametrize("configuration", ["file", "postgres"])
async def test_a_follower_of_another_instance_sees_everything_too(
    hf: Holdfast, database_url: str, schema: str, clock: FakeClock
) -> None:
    run = await create(hf)
    async with Holdfast(database_url, clock=clock, schema=schema) as other:
        follower = asyncio.create_task(follow(other, run.run_id))
        claim = await claim_one(hf)
        for i in range(5):
            await hf.emit(claim, "text", i)
        await hf.complete(claim)

        seen = await asyncio.wait_for(follower, 20)

    assert seen == [event async for event in hf.events(run.run_id)]


async def follow(hf: Holdfast, run_id: str, limit: int | None = None) -> list[Event]:
    return [event async for event in hf.events(run_id, follow=True, limit=limit)]


@pytest.mark.clause("O-63", "O-28")
async def test_following_ends_where_nothing_can_follow(hf: Holdfast) -> None:
    ended = await hf.cancel((await idle(hf)).run_id)
    last = ended.rev

    async with asyncio.timeout(10):
        assert [event async for event in hf.events("nobody", follow=True)] == []
        assert [event async for event in hf.events(ended.run_id, after=last, follow=True)] == []
        assert [event.type async for event in hf.events(ended.run_id, after=last - 1, follow=True)] == ["done"]
