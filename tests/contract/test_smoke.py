"""One run from creation to its end, on every configuration."""

from __future__ import annotations

from holdfast import Done, Holdfast


async def test_a_no_op_run_has_three_entries(hf: Holdfast) -> None:
    run = await hf.create_run(session_id="s", clog_id="noop", input=1)
    (claim,) = await hf.claim_next()

    ended = await hf.complete(claim, Done({"answer": 42}))

    assert (ended.status, ended.output, ended.rev) == ("done", {"answer": 42}, 3)
    kinds = [entry.kind for entry in await hf.journal.read(f"run:{run.run_id}")]
    assert kinds == ["run_created", "attempt_claimed", "run_terminal"]
    assert (await hf.fsck()).ok
