"""Every operation that writes, as a story that can be told twice: once in peace and once with a fault in the middle.

Each arranges a run (or thread) of its own name, arms the fault, acts, and answers what its caller learned and what
can be seen afterwards, without ids or times, so that two tellings can be compared.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from itertools import groupby
from typing import Any, NamedTuple

from holdfast import Claim, Continue, Done, Holdfast, LeaseLost, Ok, Retry
from tests.conftest import FakeClock
from tests.contract.builders import LEASE_S, active, create, entry, idle, kinds, look, note, quiet, start_child, texts
from tests.contract.faulty import WRITE_FAULTS, Fault


class Scene(NamedTuple):
    """Where a story happens. `arm` sets the fault, just before the act."""

    hf: Holdfast
    clock: FakeClock
    name: str
    arm: Callable[[], None]

    async def active(self, **options: Any) -> Claim:
        return await active(self.hf, run_id=self.name, queue=self.name, **options)


Story = Callable[[Scene], Awaitable[object]]


class Operation(NamedTuple):
    """A story and the database method that carries it out."""

    method: str
    tell: Story
    nth: int = 1
    faults: tuple[Fault, ...] = WRITE_FAULTS


async def journal_of(hf: Holdfast, run_id: str) -> list[str]:
    """The kinds of a run's entries. A lease extended twice is extended once."""
    found = await kinds(hf, run_id)
    return [kind for kind, group in groupby(found) for _ in ([1] if kind == "attempt_heartbeat" else group)]


async def create_run(scene: Scene) -> object:
    scene.arm()
    run = await create(scene.hf, session_id=scene.name)
    return run.status, run.rev, await journal_of(scene.hf, run.run_id), await _count(scene, scene.name)


async def create_with_id(scene: Scene) -> object:
    scene.arm()
    run = await create(scene.hf, run_id=scene.name)
    return run.status, run.rev, await journal_of(scene.hf, scene.name)


async def create_with_key(scene: Scene) -> object:
    scene.arm()
    run = await create(scene.hf, session_id=scene.name, key=scene.name)
    again = await create(scene.hf, session_id=scene.name, key=scene.name)
    return run.run_id == again.run_id, run.rev, await _count(scene, scene.name)


async def create_many(scene: Scene) -> object:
    scene.arm()
    wishes = [{"session_id": scene.name, "clog_id": "chat", "input": i} for i in range(3)]
    runs = await scene.hf.create_runs(wishes)
    return [run.pending_input for run in runs], await _count(scene, scene.name)


async def signal(scene: Scene) -> object:
    await idle(scene.hf, run_id=scene.name)
    scene.arm()
    return await scene.hf.signal(scene.name, 1), await journal_of(scene.hf, scene.name)


async def signal_with_key(scene: Scene) -> object:
    await idle(scene.hf, run_id=scene.name)
    scene.arm()
    receipts = [await scene.hf.signal(scene.name, 1, key="k") for _ in range(2)]
    return receipts, await journal_of(scene.hf, scene.name)


async def cancel(scene: Scene) -> object:
    await create(scene.hf, run_id=scene.name)
    scene.arm()
    ended = await scene.hf.cancel(scene.name)
    return ended.status, ended.rev, await journal_of(scene.hf, scene.name)


async def pause_and_approve(scene: Scene) -> object:
    await create(scene.hf, run_id=scene.name)
    await scene.hf.pause(scene.name, "review", "approval")
    scene.arm()
    approved = await scene.hf.approve(scene.name, actor="ada")
    return approved.status, approved.rev, await journal_of(scene.hf, scene.name)


async def emit(scene: Scene) -> object:
    claim = await scene.active()
    scene.arm()
    seqs = [await scene.hf.emit(claim, "text", i) for i in range(3)]
    return seqs, await journal_of(scene.hf, scene.name)


async def complete(scene: Scene) -> object:
    claim = await scene.active()
    scene.arm()
    ended = await scene.hf.complete(claim, Done({"answer": 42}))
    return ended.status, ended.output, ended.rev, await journal_of(scene.hf, scene.name)


async def complete_and_continue(scene: Scene) -> object:
    claim = await scene.active()
    scene.arm()
    after = await scene.hf.complete(claim, Continue("more"))
    return after.status, after.pending_input, await journal_of(scene.hf, scene.name)


async def retry(scene: Scene) -> object:
    claim = await scene.active()
    await scene.hf.emit(claim, "text", "half")
    scene.arm()
    after = await scene.hf.complete(claim, Retry("again"))
    return after.status, after.attempt, after.last_error, await journal_of(scene.hf, scene.name)


async def release(scene: Scene) -> object:
    claim = await scene.active()
    scene.arm()
    after = await scene.hf.release(claim)
    return after.status, after.deliveries, await journal_of(scene.hf, scene.name)


async def claim_the_only_one(scene: Scene) -> object:
    await create(scene.hf, run_id=scene.name, queue=scene.name)
    scene.arm()
    claims = await scene.hf.claim_next(scene.name)
    ended = [(await scene.hf.complete(claim, Done(claim.input))).output for claim in claims]
    return ended, await journal_of(scene.hf, scene.name)


async def claim_two_of_three(scene: Scene) -> object:
    names = [f"{scene.name}-{i}" for i in range(3)]
    for name in names:
        await create(scene.hf, run_id=name, queue=scene.name)
        scene.clock.advance(0.001)
    scene.arm()
    claims = await scene.hf.claim_next(scene.name, limit=2)
    return [claim.run_id[-1] for claim in claims], [await journal_of(scene.hf, name) for name in names]


async def take_over(scene: Scene) -> object:
    await scene.active()
    scene.clock.advance(LEASE_S)
    scene.arm()
    claims = await scene.hf.claim_next(scene.name)
    seen = await look(scene.hf, scene.name)
    return [claim.input for claim in claims], seen.deliveries, await journal_of(scene.hf, scene.name)


async def give_up(scene: Scene) -> object:
    await scene.active(max_deliveries=1)
    scene.clock.advance(LEASE_S)
    scene.arm()
    claims = await scene.hf.claim_next(scene.name)
    return claims, (await look(scene.hf, scene.name)).error_kind, await journal_of(scene.hf, scene.name)


async def heartbeat(scene: Scene) -> object:
    claim = await scene.active()
    scene.clock.advance(1)
    scene.arm()
    until = await scene.hf.heartbeat(claim)
    return until - scene.clock.now(), await journal_of(scene.hf, scene.name)


async def heartbeat_of_a_lost_claim(scene: Scene) -> object:
    claim = await scene.active()
    scene.clock.advance(LEASE_S)
    scene.arm()
    try:
        await scene.hf.heartbeat(claim)
    except LeaseLost as lost:
        return lost.code, await journal_of(scene.hf, scene.name)
    return "held"


async def append(scene: Scene) -> object:
    await scene.hf.journal.append(scene.name, [note("first")])
    scene.arm()
    head = await scene.hf.journal.append(scene.name, [note("second"), note("third")])
    return head, texts(await scene.hf.journal.read(scene.name))


async def append_to_a_new_thread(scene: Scene) -> object:
    scene.arm()
    head = await scene.hf.journal.append(scene.name, [note("first")])
    return head, texts(await scene.hf.journal.read(scene.name))


async def append_at_a_revision(scene: Scene) -> object:
    await scene.hf.journal.append(scene.name, [note("first")], expected_rev=0)
    scene.arm()
    head = await scene.hf.journal.append(scene.name, [note("second")], expected_rev=1)
    return head, texts(await scene.hf.journal.read(scene.name))


async def append_facts(scene: Scene) -> object:
    await idle(scene.hf, run_id=scene.name)
    scene.arm()
    facts = [entry("signal_received", signal_id="i1", has_input=True, input=1)]
    head = await scene.hf.journal.append(f"run:{scene.name}", facts, expected_rev=1)
    return head, (await look(scene.hf, scene.name)).pending_input, await journal_of(scene.hf, scene.name)


async def save_checkpoint(scene: Scene) -> object:
    await scene.hf.journal.append(scene.name, [note("first")])
    scene.arm()
    await scene.hf.journal.save_checkpoint(scene.name, 1, ["first"])
    return await scene.hf.journal.load_checkpoint(scene.name)


async def start_a_child(scene: Scene) -> object:
    parent = await scene.active()
    scene.arm()
    await scene.hf.journal.execute(scene.name, start_child(parent, f"{scene.name}-child"))
    await quiet(scene.hf)
    await scene.hf.complete(parent, Ok())
    child = await look(scene.hf, f"{scene.name}-child")
    return child.status, child.rev, await journal_of(scene.hf, scene.name)


async def finish_a_child(scene: Scene) -> object:
    parent = await scene.active()
    await scene.hf.journal.execute(scene.name, start_child(parent, f"{scene.name}-child"))
    await quiet(scene.hf)
    scene.arm()
    await scene.hf.cancel(f"{scene.name}-child")
    await quiet(scene.hf)
    return await journal_of(scene.hf, f"{scene.name}-child"), await journal_of(scene.hf, scene.name)


async def drop_a_handoff(scene: Scene) -> object:
    await scene.hf.cancel((await create(scene.hf, run_id=scene.name)).run_id)
    sql = "INSERT INTO {s}handoffs (target_run_id, source_run_id, kind, rev) VALUES ($1, $1, 'child_finished', 3)"
    await scene.hf.journal.store.execute((sql, (scene.name,)))
    scene.arm()
    swept = await scene.hf.journal.sweep()
    return swept, await scene.hf.journal.store.handoffs(), await journal_of(scene.hf, scene.name)


async def rebuild(scene: Scene) -> object:
    await create(scene.hf, run_id=scene.name)
    await scene.hf.journal.store.execute(
        ("UPDATE {s}runs SET status = 'idle' WHERE run_id = $1", (scene.name,)),
    )
    scene.arm()
    report = await scene.hf.rebuild(scene.name)
    return report.problems, (await look(scene.hf, scene.name)).status


async def _count(scene: Scene, session_id: str) -> int:
    sql = "SELECT count(*) FROM {s}runs WHERE session_id = $1"
    ((count,),) = await scene.hf.journal.store.fetch(sql, session_id)
    return int(count)


OPERATIONS: dict[str, Operation] = {
    "create": Operation("write", create_run),
    "create with an id": Operation("write", create_with_id),
    "create with a key": Operation("write", create_with_key),
    "create many": Operation("write", create_many),
    "signal": Operation("write", signal),
    "signal with a key": Operation("write", signal_with_key),
    "cancel": Operation("write", cancel),
    "approve": Operation("write", pause_and_approve),
    "emit": Operation("write", emit),
    "complete": Operation("write", complete),
    "continue": Operation("write", complete_and_continue),
    "retry": Operation("write", retry),
    "release": Operation("write", release),
    "refusal": Operation("write", heartbeat_of_a_lost_claim),
    "start a child": Operation("write", start_a_child),
    "create the child": Operation("write", start_a_child, nth=2),
    "finish a child": Operation("write", finish_a_child),
    "tell the parent": Operation("write", finish_a_child, nth=2),
    "claim the only one": Operation("claim", claim_the_only_one),
    "claim two of three": Operation("claim", claim_two_of_three),
    # After a lost claim that may still land, nothing is taken over for a while: one fault is enough to wait for.
    "name what expired": Operation("claim", take_over, faults=("busy", "unanswered")),
    "take over": Operation("write_locked", take_over),
    "give up": Operation("write_locked", give_up),
    "append facts": Operation("write_locked", append_facts),
    "heartbeat": Operation("heartbeat", heartbeat),
    "append": Operation("append", append),
    "append to a new thread": Operation("append", append_to_a_new_thread),
    "append at a revision": Operation("append", append_at_a_revision),
    "save a checkpoint": Operation("execute", save_checkpoint),
    "drop a handoff": Operation("execute", drop_a_handoff),
    "rebuild": Operation("execute", rebuild),
}
