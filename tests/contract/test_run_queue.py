"""Queue and event store as interfaces: what a program may rely on, with this runtime behind them or something else."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from typing import Any, NamedTuple

import pytest

from holdfast import Claim, Conflict, Holdfast, LeaseLost, NotFound, RunEventStore, RunQueue, StoredEvent
from tests.conftest import IN_PROCESS, FakeClock

LEASE_S = 30


class Backend(NamedTuple):
    queue: RunQueue
    events: RunEventStore


class Shelf:
    """Another backend, in a few lines: a list of runs and a list of events for each. One object is both."""

    def __init__(self, clock: FakeClock) -> None:
        self._clock = clock
        self._waiting: list[tuple[str, str]] = []
        self._held: dict[str, tuple[str, datetime]] = {}
        self._events: dict[str, list[StoredEvent]] = {}
        self._cancelled: set[str] = set()

    async def enqueue(self, session_id: str, message: str) -> str:
        run_id = f"run-{len(self._events)}"
        self._waiting.append((run_id, message))
        self._events[run_id] = [StoredEvent(1, "run_queued", {"session_id": session_id})]
        return run_id

    async def claim(self, worker_id: str) -> Claim | None:
        for place, (run_id, message) in enumerate(self._waiting):
            holder = self._held.get(run_id)
            if (holder and self._alive(run_id)) or run_id in self._cancelled:
                continue
            self._held[run_id] = (worker_id, self._clock.now())
            self._events[run_id].append(StoredEvent(len(self._events[run_id]) + 1, "run_started", {}))
            names = {"runnable_key": "", "tick_id": f"t{place}", "claim_id": f"c{place}", "token": "-"}
            return Claim(run_id=run_id, **names, lease_until=datetime.now(UTC), attempt=0, input={"text": message})
        return None

    def _alive(self, run_id: str) -> bool:
        return (self._clock.now() - self._held[run_id][1]).total_seconds() < LEASE_S

    async def renew_lease(self, run_id: str, worker_id: str) -> bool:
        if self._held.get(run_id, ("", None))[0] != worker_id or not self._alive(run_id):
            return False
        self._held[run_id] = (worker_id, self._clock.now())
        return True

    async def request_cancel(self, run_id: str) -> None:
        self._cancelled.add(run_id)
        self._events[run_id].append(StoredEvent(len(self._events[run_id]) + 1, "cancel_requested", {}))

    async def append(self, run_id: str, type: str, payload: Any, *, expected_seq: int | None = None) -> int:
        events = self._events[run_id]
        if run_id not in self._held:
            raise NotFound("claim it first")
        if expected_seq is not None and events[-1].seq != expected_seq:
            follower = next((each for each in events if each.seq > expected_seq), None)
            if follower is not None and (follower.type, follower.payload) == (type, payload):
                return follower.seq
            raise Conflict("moved", code="seq_moved")
        events.append(StoredEvent(len(events) + 1, type, payload))
        return len(events)

    async def list_after(self, run_id: str, seq: int, limit: int) -> Sequence[StoredEvent]:
        return [each for each in self._events[run_id] if each.seq > seq][:limit]


@asynccontextmanager
async def opened(kind: str, database_url: str, schema: str, clock: FakeClock) -> AsyncIterator[Backend]:
    if kind == "shelf":
        shelf = Shelf(clock)
        yield Backend(shelf, shelf)
        return
    async with Holdfast(database_url, schema=schema, clock=clock, lease_ms=LEASE_S * 1_000) as hf:
        queue = hf.run_queue()
        yield Backend(queue, queue.events)


@pytest.fixture(params=[*IN_PROCESS, "shelf"])
def configuration(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
async def backend(configuration: str, database_url: str, schema: str, clock: FakeClock) -> AsyncIterator[Backend]:
    """The runtime on each database; and something that has nothing to do with it."""
    async with opened(configuration, database_url, schema, clock) as made:
        yield made


async def answer(queue: RunQueue, events: RunEventStore, worker_id: str) -> str | None:
    """A worker that knows the two interfaces and nothing else."""
    claim = await queue.claim(worker_id)
    if claim is None:
        return None
    (*_, last) = await events.list_after(claim.run_id, 0, 100)
    seq = last.seq
    for word in str(claim.input["text"]).split():
        assert await queue.renew_lease(claim.run_id, worker_id)
        seq = await events.append(claim.run_id, "word", {"is": word}, expected_seq=seq)
    return claim.run_id


@pytest.mark.clause("W-34")
async def test_a_worker_needs_to_know_no_more_than_the_two_interfaces(backend: Backend) -> None:
    assert isinstance(backend.queue, RunQueue)
    assert isinstance(backend.events, RunEventStore)
    run_id = await backend.queue.enqueue("s", "to be or not")

    assert await answer(backend.queue, backend.events, "w1") == run_id

    assert await answer(backend.queue, backend.events, "w2") is None
    told = await backend.events.list_after(run_id, 0, 100)
    assert [each.type for each in told] == ["run_queued", "run_started", *["word"] * 4]
    assert [each.payload["is"] for each in told[2:]] == ["to", "be", "or", "not"]
    seqs = [each.seq for each in told]
    assert seqs == sorted(set(seqs))
    assert await backend.events.list_after(run_id, seqs[1], 2) == told[2:4]


@pytest.mark.clause("W-34")
async def test_a_lease_is_renewed_by_its_holder_alone_and_only_while_it_lasts(
    backend: Backend, clock: FakeClock
) -> None:
    run_id = await backend.queue.enqueue("s", "hello")
    assert await backend.queue.claim("w1") is not None

    assert not await backend.queue.renew_lease(run_id, "w2")
    assert not await backend.queue.renew_lease("unknown", "w1")
    clock.advance(LEASE_S - 1)
    assert await backend.queue.renew_lease(run_id, "w1")
    clock.advance(LEASE_S - 1)
    assert await backend.queue.claim("w2") is None
    clock.advance(2)
    assert not await backend.queue.renew_lease(run_id, "w1")

    again = await backend.queue.claim("w2")
    assert again is not None
    assert again.run_id == run_id


@pytest.mark.clause("W-34")
async def test_a_run_that_was_cancelled_is_nobodys(backend: Backend) -> None:
    run_id = await backend.queue.enqueue("s", "hello")

    await backend.queue.request_cancel(run_id)

    assert await backend.queue.claim("w1") is None
    assert "cancel_requested" in [each.type for each in await backend.events.list_after(run_id, 0, 10)]


@pytest.mark.clause("W-34")
async def test_nobody_adds_to_a_run_that_was_not_claimed_here(backend: Backend) -> None:
    run_id = await backend.queue.enqueue("s", "hello")

    with pytest.raises(NotFound):
        await backend.events.append(run_id, "word", {})


@pytest.mark.clause("H-W11")
async def test_an_expected_seq_is_compared_with_the_last_event(backend: Backend) -> None:
    run_id = await backend.queue.enqueue("s", "hello")
    assert await backend.queue.claim("w1") is not None
    (*_, last) = await backend.events.list_after(run_id, 0, 10)

    first = await backend.events.append(run_id, "word", {"n": 1}, expected_seq=last.seq)
    second = await backend.events.append(run_id, "word", {"n": 2}, expected_seq=first)
    before = await backend.events.list_after(run_id, 0, 10)

    for wrong in (0, last.seq, first, second + 1, 10_000):
        with pytest.raises(Conflict) as refused:
            await backend.events.append(run_id, "word", {"n": 3}, expected_seq=wrong)
        assert refused.value.code == "seq_moved"
    # The very same again: the answer of the first time, and nothing new.
    assert await backend.events.append(run_id, "word", {"n": 1}, expected_seq=last.seq) == first
    assert await backend.events.append(run_id, "word", {"n": 2}, expected_seq=first) == second
    assert await backend.events.list_after(run_id, 0, 10) == before
    # Nobody has to compare.
    assert await backend.events.append(run_id, "word", {"n": 2}) > second


class TestOfTheRuntime:
    @pytest.fixture(params=IN_PROCESS)
    def configuration(self, request: pytest.FixtureRequest) -> str:
        return str(request.param)

    @pytest.fixture
    async def hf(self, database_url: str, schema: str, clock: FakeClock) -> AsyncIterator[Holdfast]:
        async with Holdfast(database_url, schema=schema, clock=clock) as holdfast:
            yield holdfast

    @pytest.mark.clause("H-W11")
    async def test_what_is_no_event_is_in_nobodys_way(self, hf: Holdfast) -> None:
        await hf.create_run(session_id="s", clog_id="chat", input=1)
        (claim,) = await hf.claim_next()
        first = await hf.emit(claim, "word", 1)
        await hf.heartbeat(claim)
        await hf.heartbeat(claim)

        second = await hf.emit(claim, "word", 2, expected_seq=first)

        assert second == first + 3
        # A heartbeat is no event, so its revision is nobody's seq.
        with pytest.raises(Conflict, match="not"):
            await hf.emit(claim, "word", 3, expected_seq=first + 1)
        assert (await hf.fsck()).ok

    @pytest.mark.clause("H-W11")
    async def test_of_two_who_expect_the_same_one_is_refused(self, hf: Holdfast) -> None:
        run = await hf.create_run(session_id="s", clog_id="chat", input=1)
        (claim,) = await hf.claim_next()
        first = await hf.emit(claim, "word", 0)

        answers = await asyncio.gather(
            *(hf.emit(claim, "word", number, expected_seq=first) for number in range(1, 9)), return_exceptions=True
        )

        stored = [event async for event in hf.events(run.run_id, first)]
        assert len(stored) == 1
        assert [each for each in answers if not isinstance(each, Conflict)] == [stored[0].seq]

    @pytest.mark.clause("H-W11", "H-W2")
    async def test_a_lost_claim_adds_nothing_whatever_it_expects(self, hf: Holdfast, clock: FakeClock) -> None:
        run = await hf.create_run(session_id="s", clog_id="chat", input=1)
        (claim,) = await hf.claim_next(lease_ms=1_000)
        first = await hf.emit(claim, "word", 0)
        clock.advance(2)

        with pytest.raises(LeaseLost):
            await hf.emit(claim, "word", 1, expected_seq=first)

        assert [event.data async for event in hf.events(run.run_id) if event.type == "word"] == [0]
        # What it stored while it held the run is still its own.
        assert await hf.emit(claim, "word", 0, expected_seq=first - 1) == first
