"""`ctx.child`: a run that starts with its parent's outcome, once for each key."""

from __future__ import annotations

from typing import Any

import pytest

from holdfast import Clog, Conflict, Context, Continue, Done, Fail, Holdfast, InvalidValue, Ok, Retry, RetryPolicy
from holdfast.protocol.commands import Delete
from tests.conftest import FakeClock
from tests.contract.builders import LEASE_S, claim_one, create, entries, event_types, kinds, look, quiet
from tests.runtime.clogs import answering, inputs


def starting(found: list[Any], answer: Any = None, **options: Any) -> Any:
    """A handler that starts a child and notes what it was told of it."""
    told = {"key": "k", "input": "go", **options}

    async def advance(given: Any, ctx: Context) -> Any:
        found.append(await ctx.child("helper", **told))
        return Ok() if answer is None else answer

    return advance


@pytest.mark.clause("S-50", "S-52", "S-53", "S-16")
async def test_a_child_starts_with_its_parents_outcome(hf: Holdfast) -> None:
    async def starts(given: Any, ctx: Context) -> Ok:
        child = await ctx.child("helper", key="k", input="go")
        assert (child.status, child.pending_input, child.parent_run_id) == ("pending", "go", ctx.run_id)
        assert await hf.get_run(child.run_id) is None
        found.append(child)
        return Ok()

    found: list[Any] = []
    answering(hf, starts)
    run = await create(hf, queue="fast", user_id="ann")
    await hf.advance()
    await quiet(hf)

    child = await look(hf, found[0].run_id)
    assert (child.status, child.pending_input, child.parent_run_id) == ("pending", "go", run.run_id)
    assert (child.session_id, child.queue, child.clog_id) == (run.session_id, "fast", "helper")
    assert await hf.as_user("ann").get_run(child.run_id) == child
    assert "child_started" in await event_types(hf, run.run_id)


@pytest.mark.clause("S-51", "S-54")
async def test_the_same_clog_and_key_is_the_same_child(hf: Holdfast, clock: FakeClock) -> None:
    found: list[Any] = []
    starts = starting(found, Continue())

    async def starts_three(given: Any, ctx: Context) -> Continue:
        await starts(given, ctx)
        await starts(given, ctx)
        found.append(await ctx.child("helper", key="other"))
        found.append(await ctx.child("chat", key="k"))
        return Continue()

    answering(hf, starts_three, starts)
    run = await create(hf)
    await hf.advance(max_runs=1)
    await quiet(hf)
    clock.advance(1)
    await hf.signal(run.run_id)
    await hf.advance()

    first, again, other_key, other_clog, later = (child.run_id for child in found)
    assert first == again == later
    assert len({first, other_key, other_clog}) == 3
    assert (await kinds(hf, run.run_id)).count("child_run_started") == 3


@pytest.mark.clause("S-54", "H-O14")
@pytest.mark.parametrize("answer", [Retry("again", after=0), ValueError("again")])
async def test_a_retried_parent_has_one_child(hf: Holdfast, clock: FakeClock, answer: Any) -> None:
    found: list[Any] = []
    starts = starting(found)

    async def fails(given: Any, ctx: Context) -> Any:
        await starts(given, ctx)
        if isinstance(answer, Exception):
            raise answer
        return answer

    answering(hf, fails, starts)
    run = await create(hf)
    await hf.advance()
    clock.advance(1)
    await hf.advance(max_runs=1)
    await quiet(hf)

    assert len({child.run_id for child in found}) == 1
    assert (await kinds(hf, run.run_id)).count("child_run_started") == 1
    assert len((await hf.list_runs(clog_id="helper")).items) == 1


@pytest.mark.clause("S-54")
async def test_a_start_that_is_still_on_its_way_is_not_started_again(
    hf: Holdfast, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A crash after the parent's commit leaves the child to the next sweep; its parent may be faster."""
    found: list[Any] = []
    answering(hf, starting(found, Continue()), starting(found))
    run = await create(hf)
    with monkeypatch.context() as crash:
        crash.setattr(hf.journal, "_deliver_soon", lambda *_: None)
        await hf.advance()
        crash.setattr(hf.journal, "sweep", lambda: _nothing())
        await hf.advance()
    await quiet(hf)

    assert len({child.run_id for child in found}) == 1
    assert (await kinds(hf, run.run_id)).count("child_run_started") == 1
    assert (await look(hf, found[0].run_id)).status == "pending"


async def _nothing() -> int:
    return 0


@pytest.mark.clause("S-50")
async def test_a_child_needs_a_key(hf: Holdfast) -> None:
    async def starts(given: Any, ctx: Context) -> Done:
        with pytest.raises(TypeError, match="key"):
            await ctx.child("helper", input=1)  # type: ignore[call-arg]
        for key in ("", None, 7, "a\0"):
            with pytest.raises(InvalidValue):
                await ctx.child("helper", key=key)  # type: ignore[arg-type]
        with pytest.raises(InvalidValue):
            await ctx.child("no good name", key="k")
        with pytest.raises(TypeError):
            await ctx.child("helper", key="k", run_id="mine")
        return Done("fine")

    answering(hf, starts)
    run = await create(hf)
    await hf.advance()

    assert (await look(hf, run.run_id)).output == "fine"


@pytest.mark.clause("S-50")
async def test_a_child_has_options_of_its_own(hf: Holdfast) -> None:
    found: list[Any] = []
    options = {"queue": "slow", "session_id": "elsewhere", "retry": RetryPolicy(max_attempts=7), "mode": "single"}
    answering(hf, starting(found, **options))
    await create(hf)
    await hf.advance()
    await quiet(hf)

    child = await look(hf, found[0].run_id)
    assert (child.queue, child.session_id, child.max_attempts) == ("slow", "elsewhere", 7)
    assert child.status == "pending"


@pytest.mark.clause("S-50")
async def test_a_child_without_input_rests_until_it_is_told(hf: Holdfast) -> None:
    async def starts(given: Any, ctx: Context) -> Done:
        return Done((await ctx.child("helper", key="k")).run_id)

    answering(hf, starts)
    seen = answering(hf, name="helper")
    run = await create(hf)
    await hf.drain()
    child_id = (await look(hf, run.run_id)).output
    assert (await look(hf, child_id)).status == "idle"

    await hf.signal(child_id, "now")
    await hf.drain()
    assert inputs(seen) == ["now"]


@pytest.mark.clause("S-52", "S-53")
async def test_a_child_knows_its_parent_and_a_parent_its_childs_end(hf: Holdfast) -> None:
    parents: list[Any] = []

    async def helps(given: Any, ctx: Context) -> Done:
        parents.append(ctx.parent)
        return Done({"found": given})

    found: list[Any] = []
    answering(hf, starting(found))
    answering(hf, helps, name="helper")
    run = await create(hf)
    await hf.drain()
    await quiet(hf)

    (parent,) = parents
    assert (parent.run_id, parent.child_key) == (run.run_id, "k")
    finished = (await entries(hf, run.run_id))[-1]
    assert (finished.kind, finished.data["output"]) == ("child_run_finished", {"found": "go"})
    assert (await hf.advance()).advanced == 0


@pytest.mark.clause("S-53")
async def test_a_run_of_its_own_has_no_parent(hf: Holdfast) -> None:
    async def looks(given: Any, ctx: Context) -> Done:
        return Done(ctx.parent is None)

    answering(hf, looks)
    run = await create(hf)
    await hf.advance()

    assert (await look(hf, run.run_id)).output is True


@pytest.mark.clause("C-6")
async def test_children_are_cancelled_with_their_parent(hf: Holdfast) -> None:
    found: list[Any] = []
    answering(hf, starting(found))
    run = await create(hf)
    await hf.advance()
    await quiet(hf)

    await hf.cancel(run.run_id)
    await quiet(hf)

    assert (await look(hf, found[0].run_id)).status == "cancelled"


@pytest.mark.clause("S-55")
async def test_a_child_that_was_deleted_is_not_made_again(hf: Holdfast) -> None:
    found: list[Any] = []

    async def starts_again(given: Any, ctx: Context) -> Done:
        with pytest.raises(Conflict) as gone:
            await ctx.child("helper", key="k", input="go")
        return Done(gone.value.code)

    answering(hf, starting(found, Continue()), starts_again)
    answering(hf, Done(), name="helper")
    run = await create(hf)
    await hf.advance()
    await quiet(hf)
    await hf.journal.execute(found[0].run_id, Delete())
    await hf.advance()

    assert (await look(hf, run.run_id)).output == "id_reused"


async def test_a_child_of_a_clog_that_cannot_resume_cannot_either(hf: Holdfast, clock: FakeClock) -> None:
    found: list[Any] = []
    answering(hf, starting(found))
    hf.register(Clog("helper", resumable=False))
    await create(hf)
    await hf.advance(max_runs=1)
    await quiet(hf)
    await claim_one(hf)
    clock.advance(LEASE_S)
    await hf.advance()

    after = await look(hf, found[0].run_id)
    assert (after.status, after.error_kind) == ("failed", "worker_lost")


@pytest.mark.clause("H-O14")
async def test_a_failing_parent_still_starts_what_it_asked_for(hf: Holdfast) -> None:
    found: list[Any] = []
    answering(hf, starting(found, Fail("no")))
    await create(hf)
    await hf.advance()
    await quiet(hf)

    assert (await look(hf, found[0].run_id)).status == "pending"
