"""Every method that reaches the store, each as one small story: arrange beside the proxy, call through it, judge.

Only what stands in `stage.cut()` goes through the proxy while it is armed.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import AbstractContextManager, nullcontext
from datetime import datetime, timedelta
from typing import Any, NamedTuple, Protocol

from holdfast import Claim, Holdfast, RunInfo
from holdfast.journal import Limits, schedules
from holdfast.journal.planner import plan_command, request_for
from holdfast.moments import to_us
from holdfast.protocol.commands import Command
from holdfast.store import Intention
from holdfast.store.outbox_rows import ClaimTerms
from tests.contract.builders import start_child

LEASE_S = 30


class Clock(Protocol):
    def now(self) -> datetime: ...

    def advance(self, seconds: float) -> None: ...


class Stage:
    """Where a story plays: one runtime behind the proxy, one beside it, and a name that nobody else has."""

    def __init__(self, through: Holdfast, beside: Holdfast, clock: Clock) -> None:
        self.through = through
        self.beside = beside
        self.clock = clock
        self.cut: Callable[[], AbstractContextManager[None]] = nullcontext
        self._number = 0
        self.name = ""

    def begin(self) -> None:
        self._number += 1
        self.name = f"story-{self._number}"

    async def create(self, **options: Any) -> RunInfo:
        told = {"session_id": self.name, "clog_id": "noop", "queue": self.name, "input": 1, **options}
        return await self.beside.create_run(**told)

    async def claimed(self) -> Claim:
        await self.create()
        (claim,) = await self.beside.claim_next(self.name)
        return claim

    async def runs(self) -> list[str]:
        rows = await self.beside.journal.store.fetch("SELECT run_id FROM {s}runs WHERE session_id = $1", self.name)
        return [row[0] for row in rows]

    async def kinds(self, run_id: str) -> list[str]:
        """The run's entries, once every law was found to hold."""
        report = await self.beside.fsck(run_id)
        assert report.ok, report.problems
        return [entry.kind for entry in await self.beside.journal.read(f"run:{run_id}")]

    async def commit_only(self, run_id: str, command: Command) -> None:
        """Commit a command and leave its handoffs to the sweep, as a crash would."""
        intention = Intention(request=request_for(run_id, command), plan=plan_command(command, Limits()))
        await self.beside.journal.store.commit(intention)


Story = Callable[[Stage], Awaitable[None]]


class Method(NamedTuple):
    """A story, and whether its call commits entries whose fate a cut can leave in doubt."""

    story: Story
    commits: bool

    @property
    def name(self) -> str:
        return self.story.__name__


METHODS: list[Method] = []


def method(*, commits: bool) -> Callable[[Story], Story]:
    def add(story: Story) -> Story:
        METHODS.append(Method(story, commits))
        return story

    return add


@method(commits=True)
async def create_run(stage: Stage) -> None:
    with stage.cut():
        run = await stage.through.create_run(session_id=stage.name, clog_id="noop", input=1)
    assert await stage.runs() == [run.run_id]
    assert await stage.kinds(run.run_id) == ["run_created"]


@method(commits=True)
async def create_run_with_an_id(stage: Stage) -> None:
    with stage.cut():
        run = await stage.through.create_run(run_id=stage.name, session_id=stage.name, clog_id="noop")
    assert (run.status, await stage.runs()) == ("idle", [stage.name])
    assert await stage.kinds(stage.name) == ["run_created"]


@method(commits=True)
async def create_run_with_a_key(stage: Stage) -> None:
    options: dict[str, Any] = {"session_id": stage.name, "clog_id": "noop", "key": stage.name}
    with stage.cut():
        run = await stage.through.create_run(**options)
    assert (await stage.beside.create_run(**options)).run_id == run.run_id
    assert await stage.runs() == [run.run_id]
    assert await stage.kinds(run.run_id) == ["run_created"]


@method(commits=True)
async def create_runs(stage: Stage) -> None:
    request = {"session_id": stage.name, "clog_id": "noop", "input": 1}
    with stage.cut():
        runs = await stage.through.create_runs([request] * 3)
    assert sorted(await stage.runs()) == sorted(run.run_id for run in runs)
    for run in runs:
        assert await stage.kinds(run.run_id) == ["run_created"]


@method(commits=True)
async def signal(stage: Stage) -> None:
    run = await stage.create()
    with stage.cut():
        receipt = await stage.through.signal(run.run_id, "hello")
    assert (receipt.accepted, receipt.rev) == (True, 2)
    assert await stage.kinds(run.run_id) == ["run_created", "signal_received"]


@method(commits=True)
async def signal_with_a_key(stage: Stage) -> None:
    run = await stage.create()
    with stage.cut():
        receipt = await stage.through.signal(run.run_id, "hello", key="k")
    assert await stage.beside.signal(run.run_id, "hello", key="k") == receipt
    assert await stage.kinds(run.run_id) == ["run_created", "signal_received"]


@method(commits=True)
async def cancel(stage: Stage) -> None:
    run = await stage.create()
    with stage.cut():
        ended = await stage.through.cancel(run.run_id, "no longer wanted")
    assert ended.status == "cancelled"
    assert await stage.kinds(run.run_id) == ["run_created", "cancel_requested", "run_terminal"]


@method(commits=True)
async def pause(stage: Stage) -> None:
    run = await stage.create()
    with stage.cut():
        paused = await stage.through.pause(run.run_id, "review")
    assert paused.status == "paused"
    assert await stage.kinds(run.run_id) == ["run_created", "manual_step_paused"]


@method(commits=True)
async def approve(stage: Stage) -> None:
    run = await stage.create()
    await stage.beside.pause(run.run_id, "review", "approval")
    with stage.cut():
        approved = await stage.through.approve(run.run_id, actor="ada")
    assert approved.status == "pending"
    assert await stage.kinds(run.run_id) == ["run_created", "manual_step_paused", "manual_step_resolved"]


@method(commits=True)
async def claim_next(stage: Stage) -> None:
    run = await stage.create()
    with stage.cut():
        (claim,) = await stage.through.claim_next(stage.name)
    assert claim.run_id == run.run_id
    assert await stage.kinds(run.run_id) == ["run_created", "attempt_claimed"]
    assert (await stage.beside.complete(claim)).status == "done"


@method(commits=True)
async def claim_next_takes_several(stage: Stage) -> None:
    runs = {(await stage.create()).run_id for _ in range(3)}
    with stage.cut():
        claims = await stage.through.claim_next(stage.name, limit=5)
    # A repeated claim may pass over work that the lost one still locks; what it left is free, and nothing is orphaned.
    claims += await stage.beside.claim_next(stage.name, limit=5)
    assert sorted(claim.run_id for claim in claims) == sorted(runs)
    for run_id in runs:
        assert await stage.kinds(run_id) == ["run_created", "attempt_claimed"]


@method(commits=True)
async def claim_next_takes_over(stage: Stage) -> None:
    lost = await stage.claimed()
    stage.clock.advance(LEASE_S + 1)
    with stage.cut():
        (claim,) = await stage.through.claim_next(stage.name)
    assert (claim.run_id, claim.claim_id != lost.claim_id) == (lost.run_id, True)
    assert await stage.kinds(lost.run_id) == ["run_created", "attempt_claimed", "tick_abandoned", "attempt_claimed"]
    assert (await stage.beside.complete(claim)).status == "done"


@method(commits=True)
async def heartbeat(stage: Stage) -> None:
    claim = await stage.claimed()
    stage.clock.advance(1)
    with stage.cut():
        lease_until = await stage.through.heartbeat(claim)
    beats = (await stage.kinds(claim.run_id))[2:]
    # Extending twice is extending once, so a beat of unknown fate may leave a second entry.
    assert beats in (["attempt_heartbeat"], ["attempt_heartbeat"] * 2)
    seen = await stage.beside.get_run(claim.run_id)
    assert seen is not None
    assert seen.lock_expires_at == lease_until


@method(commits=True)
async def complete(stage: Stage) -> None:
    claim = await stage.claimed()
    with stage.cut():
        ended = await stage.through.complete(claim, {"answer": 42})
    assert (ended.status, ended.output) == ("done", {"answer": 42})
    assert await stage.kinds(claim.run_id) == ["run_created", "attempt_claimed", "run_terminal"]


@method(commits=True)
async def fail(stage: Stage) -> None:
    claim = await stage.claimed()
    with stage.cut():
        failed = await stage.through.fail(claim, "try later")
    assert (failed.status, failed.attempt) == ("pending", 1)
    assert await stage.kinds(claim.run_id) == ["run_created", "attempt_claimed", "tick_settled"]


@method(commits=True)
async def fail_for_good(stage: Stage) -> None:
    claim = await stage.claimed()
    with stage.cut():
        failed = await stage.through.fail(claim, "broken", retry=False)
    assert (failed.status, failed.last_error) == ("failed", "broken")
    assert await stage.kinds(claim.run_id) == ["run_created", "attempt_claimed", "event", "run_terminal"]


@method(commits=True)
async def release(stage: Stage) -> None:
    claim = await stage.claimed()
    with stage.cut():
        released = await stage.through.release(claim)
    assert released.status == "pending"
    assert await stage.kinds(claim.run_id) == ["run_created", "attempt_claimed", "tick_abandoned"]


@method(commits=True)
async def emit(stage: Stage) -> None:
    claim = await stage.claimed()
    with stage.cut():
        seq = await stage.through.emit(claim, "thought", "hm")
    assert seq == 3
    assert await stage.kinds(claim.run_id) == ["run_created", "attempt_claimed", "event"]


@method(commits=True)
async def append(stage: Stage) -> None:
    entries = [{"kind": "note", "data": number} for number in range(2)]
    with stage.cut():
        heads = [await stage.through.journal.append(stage.name, entries)]
    heads.append(await stage.beside.journal.append(stage.name, entries))
    assert heads == [2, 4]
    assert [entry.data for entry in await stage.beside.journal.read(stage.name)] == [0, 1, 0, 1]


@method(commits=True)
async def append_at_a_revision(stage: Stage) -> None:
    await stage.beside.journal.append(stage.name, [{"kind": "note", "data": 0}])
    with stage.cut():
        head = await stage.through.journal.append(stage.name, [{"kind": "note", "data": 1}], 1)
    assert head == 2
    assert [entry.data for entry in await stage.beside.journal.read(stage.name)] == [0, 1]


@method(commits=True)
async def append_to_a_run(stage: Stage) -> None:
    run = await stage.create()
    with stage.cut():
        head = await stage.through.journal.append(
            f"run:{run.run_id}", [{"kind": "event", "data": {"type": "note", "data": 1}}], 1
        )
    assert head == 2
    assert await stage.kinds(run.run_id) == ["run_created", "event"]


@method(commits=True)
async def sweep(stage: Stage) -> None:
    """A child that its parent's commit asked for, and whose creation a crash prevented."""
    claim = await stage.claimed()
    child = f"child-{stage.name}"
    await stage.commit_only(claim.run_id, start_child(claim, child))
    with stage.cut():
        assert await stage.through.journal.sweep() == 1
    assert await stage.beside.journal.sweep() == 0
    assert await stage.kinds(child) == ["run_created"]


@method(commits=False)
async def sweep_of_what_is_known(stage: Stage) -> None:
    """A handoff whose effect is there already: only its row is left to remove."""
    claim = await stage.claimed()
    child = f"child-{stage.name}"
    await stage.commit_only(claim.run_id, start_child(claim, child))
    ((target, source, kind, rev),) = await stage.beside.journal.store.handoffs()
    await stage.beside.journal.sweep()
    sql = "INSERT INTO {s}handoffs (target_run_id, source_run_id, kind, rev) VALUES ($1, $2, $3, $4)"
    await stage.beside.journal.store.execute((sql, (target, source, kind, rev)))
    with stage.cut():
        assert await stage.through.journal.sweep() == 1
    assert await stage.beside.journal.store.handoffs() == []
    assert await stage.kinds(child) == ["run_created"]


@method(commits=True)
async def sweep_of_a_window(stage: Stage) -> None:
    """A schedule whose window has come: its run and its next window are one commit."""
    at = stage.clock.now()
    await stage.beside.schedules.put(stage.name, clog_id="noop", session_id=stage.name, at=at)
    with stage.cut():
        assert await schedules.sweep(stage.through.journal, to_us(at)) == 1
    assert await stage.beside.journal.sweep() == 0
    put = await stage.beside.schedules.get(stage.name)
    assert put is not None
    assert (put.next_at, put.last_at) == (None, at)
    assert await stage.runs() == [put.last_run_id]
    assert await stage.kinds(str(put.last_run_id)) == ["run_created"]


@method(commits=False)
async def put_a_schedule(stage: Stage) -> None:
    at = stage.clock.now() + timedelta(days=3_650)
    with stage.cut():
        put = await stage.through.schedules.put(stage.name, clog_id="noop", session_id=stage.name, at=at)
    assert await stage.beside.schedules.get(stage.name) == put
    with stage.cut():
        paused = await stage.through.schedules.pause(stage.name)
    assert await stage.beside.schedules.get(stage.name) == paused
    assert (put.next_at, paused.next_at) == (at, None)


@method(commits=False)
async def save_checkpoint(stage: Stage) -> None:
    await stage.beside.journal.append(stage.name, [{"kind": "note", "data": 0}])
    with stage.cut():
        await stage.through.journal.save_checkpoint(stage.name, 1, {"sum": 1})
    assert await stage.beside.journal.load_checkpoint(stage.name) == (1, {"sum": 1})


@method(commits=False)
async def load_checkpoint(stage: Stage) -> None:
    await stage.beside.journal.append(stage.name, [{"kind": "note", "data": 0}])
    await stage.beside.journal.save_checkpoint(stage.name, 1, {"sum": 1})
    with stage.cut():
        assert await stage.through.journal.load_checkpoint(stage.name) == (1, {"sum": 1})


@method(commits=False)
async def get_run(stage: Stage) -> None:
    run = await stage.create()
    with stage.cut():
        assert await stage.through.get_run(run.run_id) == run


@method(commits=False)
async def events(stage: Stage) -> None:
    claim = await stage.claimed()
    with stage.cut():
        seen = [event.type async for event in stage.through.events(claim.run_id)]
    assert seen == ["run_queued", "run_started"]


@method(commits=False)
async def fsck(stage: Stage) -> None:
    claim = await stage.claimed()
    with stage.cut():
        report = await stage.through.fsck(claim.run_id)
    assert (report.ok, report.runs_checked) == (True, 1)


@method(commits=False)
async def rebuild(stage: Stage) -> None:
    claim = await stage.claimed()
    sql = "UPDATE {s}runs SET status = 'idle' WHERE run_id = $1"
    await stage.beside.journal.store.execute((sql, (claim.run_id,)))
    with stage.cut():
        report = await stage.through.rebuild(claim.run_id)
    assert (report.ok, report.runs_checked) == (True, 1)
    assert await stage.kinds(claim.run_id) == ["run_created", "attempt_claimed"]


@method(commits=False)
async def record_turn(stage: Stage) -> None:
    said = {"message_id": "m", "kind": "user", "content": "hello", "thread_id": stage.name}
    with stage.cut():
        validity = await stage.through.audit.upsert_conversation_turn(stage.name, **said)
    (turn,) = await stage.beside.audit.list_conversation_since(thread_id=stage.name)
    assert turn.validity == validity
    facts = await stage.beside.audit.raw_query("SELECT count(*) FROM {s}turns WHERE id = $1", [stage.name])
    assert facts == [(1,)]


@method(commits=False)
async def record_transaction(stage: Stage) -> None:
    tx = stage.through.audit.transaction()
    await tx.record_tool_call_requested(stage.name, "a", tool_name="t", parent_id=stage.name)
    await tx.record_tool_call_requested(stage.name, "b", tool_name="t", parent_id=stage.name)
    with stage.cut():
        await tx.commit()
    calls = await stage.beside.audit.list_tool_calls_by_parent(stage.name)
    assert len({request.validity for request, _ in calls}) == 1
    assert sorted(request.call_id for request, _ in calls) == ["a", "b"]


@method(commits=False)
async def outbox_enqueue(stage: Stage) -> None:
    with stage.cut():
        outbox_id = await stage.through.outbox.enqueue("x", stage.name, key=stage.name)
    assert await stage.beside.outbox.enqueue("x", stage.name, key=stage.name) == outbox_id
    assert await _sent_to(stage) == [(outbox_id, "pending", 0)]


@method(commits=False)
async def outbox_claim(stage: Stage) -> None:
    await stage.beside.outbox.enqueue("x", stage.name)
    with stage.cut():
        (row,) = await stage.through.outbox.claim("w1", 10, 60, _only(stage))
    assert await stage.beside.outbox.ack_sent(row.outbox_id, "w1", token=row.token)


@method(commits=False)
async def outbox_renew(stage: Stage) -> None:
    await stage.beside.outbox.enqueue("x", stage.name)
    (row,) = await stage.beside.outbox.claim("w1", 10, 60, _only(stage))
    with stage.cut():
        assert await stage.through.outbox.renew_lease(row.outbox_id, "w1", token=row.token)


@method(commits=False)
async def outbox_fail_retry(stage: Stage) -> None:
    outbox_id = await stage.beside.outbox.enqueue("x", stage.name)
    (row,) = await stage.beside.outbox.claim("w1", 10, 60, _only(stage))
    with stage.cut():
        assert await stage.through.outbox.fail_retry(outbox_id, "w1", "no", row.created_at, token=row.token)
    assert await _sent_to(stage) == [(outbox_id, "pending", 1)]


@method(commits=False)
async def outbox_ack(stage: Stage) -> None:
    outbox_id = await stage.beside.outbox.enqueue("x", stage.name)
    (row,) = await stage.beside.outbox.claim("w1", 10, 60, _only(stage))
    with stage.cut():
        assert await stage.through.outbox.ack_sent(outbox_id, "w1", "m-1", token=row.token)
    assert await _sent_to(stage) == [(outbox_id, "sent", 0)]


def _only(stage: Stage) -> ClaimTerms:
    return ClaimTerms("", 0, "", "", 0, spaces=(stage.name,))


async def _sent_to(stage: Stage) -> list[tuple[Any, ...]]:
    sql = "SELECT outbox_id, status, retry_count FROM {s}outbox WHERE target_space = $1"
    return await stage.beside.journal.store.fetch(sql, stage.name)
