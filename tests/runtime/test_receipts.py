"""Every order leaves one receipt in the run's own thread, with who, why and under which key; repeats leave none."""

from __future__ import annotations

from datetime import timedelta

import pytest

from holdfast import Clog, Done, Holdfast
from holdfast.runtime.history import Receipt
from tests.conftest import FakeClock


async def receipts(hf: Holdfast, run_id: str) -> list[Receipt]:
    seen = await hf.inspect(run_id)
    assert seen is not None
    return list(seen.command_history)


@pytest.mark.clause("SB-1", "C-17")
async def test_every_order_leaves_a_receipt_with_actor_comment_and_key(hf: Holdfast) -> None:
    run = await hf.create_run(session_id="s", clog_id="chat", input=1, key="k0")
    for _ in range(2):
        await hf.create_run(session_id="s", clog_id="chat", input=1, key="k0")
        await hf.signal(run.run_id, "data", name="letter", key="k1")
    await hf.pause(run.run_id, "first")
    for _ in range(2):
        await hf.resume(run.run_id, actor="ann", key="k2")
    await hf.pause(run.run_id, "second", kind="approval")
    for _ in range(2):
        await hf.approve(run.run_id, actor="bob", comment="fine", key="k3")
    await hf.pause(run.run_id, "third", kind="approval")
    await hf.reject(run.run_id, actor="eva", comment="no", key="k4")

    told = [(each.command, each.actor, each.comment, each.key) for each in await receipts(hf, run.run_id)]
    assert told == [
        ("start", None, None, "k0"),
        ("signal", None, None, "k1"),
        ("pause", None, None, None),
        ("resume", "ann", None, "k2"),
        ("pause", None, None, None),
        ("approve", "bob", "fine", "k3"),
        ("pause", None, None, None),
        ("reject", "eva", "no", "k4"),
    ]


@pytest.mark.clause("SB-1")
async def test_cancel_replay_fork_and_a_schedule_leave_theirs(hf: Holdfast, clock: FakeClock) -> None:
    chat = Clog("chat")

    @chat.on_advance
    async def advance(given: object, ctx: object) -> Done:
        return Done(given)

    hf.register(chat)
    run = await hf.create_run(session_id="s", clog_id="chat")
    await hf.cancel(run.run_id, reason="enough", actor="ann")
    again = await hf.replay(run.run_id)
    copy = await hf.fork(again.run_id)
    await hf.schedules.put("once", clog_id="chat", session_id="s", input=1, at=clock.now() + timedelta(seconds=5))
    clock.advance(5)
    await hf.advance()

    assert [(each.command, each.actor, each.comment) for each in await receipts(hf, run.run_id)] == [
        ("start", None, None),
        ("cancel", "ann", "enough"),
    ]
    assert [each.command for each in await receipts(hf, again.run_id)] == ["replay"]
    assert [each.command for each in await receipts(hf, copy.run_id)][-1] == "fork"
    (newest,) = (await hf.list_runs(limit=1)).items
    (started,) = await receipts(hf, newest.run_id)
    assert started.details["schedule"]["name"] == "once"
