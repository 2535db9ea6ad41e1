"""What a handler may answer, and what becomes of answers that make no sense."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any

import pytest

from holdfast import Clog, Context, Continue, Done, Fail, Holdfast, Ok, Retry, RetryPolicy, Wait
from tests.conftest import FakeClock
from tests.contract.builders import create, kinds, look
from tests.runtime.clogs import answering, events, inputs


class _Unprintable(Exception):
    def __str__(self) -> str:
        raise ValueError("not even this")


@pytest.mark.clause("O-13", "O-20")
@pytest.mark.parametrize("answer", [None, Ok()])
async def test_none_and_ok_rest_the_run(hf: Holdfast, answer: Any) -> None:
    answering(hf, answer)
    run = await create(hf)

    (result,) = (await hf.advance()).results

    assert (result.outcome, result.status) == ("ok", "idle")
    assert await kinds(hf, run.run_id) == ["run_created", "attempt_claimed", "tick_settled"]


@pytest.mark.clause("O-14", "H-O6")
@pytest.mark.parametrize("output", [None, 0, "", {"a": [1, 2.5, None]}])
async def test_done_carries_its_output(hf: Holdfast, output: Any) -> None:
    answering(hf, Done(output))
    run = await create(hf)

    await hf.advance()

    assert ((await look(hf, run.run_id)).status, (await look(hf, run.run_id)).output) == ("done", output)
    assert (await events(hf, run.run_id))[-1].data["output"] == output


@pytest.mark.clause("O-15")
@pytest.mark.parametrize("given", [None, 0, {"n": 1}])
async def test_continue_carries_its_input(hf: Holdfast, given: Any) -> None:
    seen = answering(hf, Continue(given))
    run = await create(hf)

    (result,) = (await hf.advance()).results
    assert (result.outcome, (await look(hf, run.run_id)).pending_input) == ("continue", given)
    await hf.advance()

    assert inputs(seen) == ["hello", given]


@pytest.mark.clause("O-16")
async def test_wait_sleeps_until_for_or_without_end(hf: Holdfast, clock: FakeClock) -> None:
    until = clock.now() + timedelta(minutes=1)
    answering(hf, Wait(until=until), Wait(seconds=60), Wait(seconds=timedelta(minutes=1)), Wait())
    runs = [(await create(hf)).run_id for _ in range(4)]

    await hf.advance()

    after = [await look(hf, run_id) for run_id in runs]
    assert [run.status for run in after] == ["waiting"] * 4
    assert [run.wake_at for run in after] == [until, until, until, None]


@pytest.mark.clause("C-7")
@pytest.mark.parametrize("after", [7, 7.0, timedelta(seconds=7)])
async def test_retry_may_say_when(hf: Holdfast, clock: FakeClock, after: Any) -> None:
    answering(hf, Retry("rate limited", after=after))
    run = await create(hf)

    await hf.advance()

    found = await look(hf, run.run_id)
    assert (found.wake_at, found.last_error) == (clock.now() + timedelta(seconds=7), "rate limited")


@pytest.mark.clause("O-18", "O-19")
async def test_fail_ends_the_run_with_its_error(hf: Holdfast) -> None:
    answering(hf, Fail("bad input", kind="bad_input"))
    run = await create(hf)

    (result,) = (await hf.advance()).results

    after = await look(hf, run.run_id)
    assert (result.outcome, after.status) == ("failed", "failed")
    assert (after.last_error, after.error_kind) == ("bad input", "bad_input")
    assert [event.type for event in await events(hf, run.run_id)][-2:] == ["error", "done"]


@pytest.mark.clause("OB-3", "O-17")
@pytest.mark.parametrize(
    ("error", "text"),
    [(ValueError("no such city"), "no such city"), (ValueError(), "ValueError"), (KeyError("k"), "'k'")],
)
async def test_an_exception_is_a_retry_with_its_text(hf: Holdfast, error: Exception, text: str) -> None:
    answering(hf, error)
    run = await create(hf)

    (result,) = (await hf.advance()).results

    after = await look(hf, run.run_id)
    assert (result.outcome, result.status, after.attempt) == ("retry", "pending", 1)
    assert (after.last_error, after.error_kind) == (text, "exception")


@pytest.mark.clause("OB-3", "O-17")
async def test_the_last_exception_ends_the_run(hf: Holdfast) -> None:
    answering(hf, ValueError("first"), ValueError("second"))
    run = await create(hf, retry=RetryPolicy(max_attempts=2))

    await hf.drain()

    after = await look(hf, run.run_id)
    assert (after.status, after.attempt, after.last_error) == ("failed", 2, "second")


@pytest.mark.clause("OB-3")
async def test_a_very_long_error_is_cut_and_a_strange_one_repaired(hf: Holdfast) -> None:
    answering(hf, ValueError("x" * 100_000), ValueError("nul \0"))
    long, strange = [(await create(hf)).run_id for _ in range(2)]

    await hf.advance()

    assert len((await look(hf, long)).last_error or "") <= 2_048
    assert (await look(hf, strange)).last_error == "nul \ufffd"


@pytest.mark.clause("OB-3")
async def test_an_exception_that_cannot_be_printed_is_a_retry_too(hf: Holdfast) -> None:
    answering(hf, _Unprintable())
    run = await create(hf)

    await hf.advance()

    assert (await look(hf, run.run_id)).last_error == "_Unprintable"


@pytest.mark.parametrize("error", [StopIteration("x"), SystemExit(3), KeyboardInterrupt()])
async def test_no_exception_of_a_handler_stops_the_others(hf: Holdfast, error: BaseException) -> None:
    seen = answering(hf, error)
    first = await create(hf)
    await create(hf)

    assert (await hf.advance()).advanced == 2
    assert len(seen) == 2
    assert (await look(hf, first.run_id)).attempt == 1


@pytest.mark.parametrize("answer", ["text", 0, False, {"a": 1}, Ok, Exception("returned")])
async def test_what_is_no_outcome_is_a_retry_that_says_so(hf: Holdfast, answer: Any) -> None:
    async def answers(given: Any, ctx: Context) -> Any:
        return answer

    answering(hf, answers)
    run = await create(hf)

    (result,) = (await hf.advance()).results

    after = await look(hf, run.run_id)
    assert (result.outcome, result.status, after.error_kind) == ("retry", "pending", "invalid_outcome")
    assert type(answer).__name__ in (after.last_error or "")


@pytest.mark.parametrize(
    "answer",
    [
        Done(object()),
        Done(float("inf")),
        Done("x" * (9 << 20)),
        Continue({1, 2}),
        Wait(seconds=-1),
        Wait(seconds=float("nan")),
        Wait(seconds="soon"),  # type: ignore[arg-type]
        Wait(until=datetime(2030, 1, 1)),
        Wait(until="tomorrow"),  # type: ignore[arg-type]
        Retry("no", after=-1),
        Retry("no", after="later"),  # type: ignore[arg-type]
    ],
)
async def test_an_outcome_that_cannot_be_stored_is_a_retry_that_says_so(hf: Holdfast, answer: Any) -> None:
    async def answers(given: Any, ctx: Context) -> Any:
        await ctx.outbox("email", "staged")
        ctx.stream("text", "last words")
        return answer

    answering(hf, answers)
    run = await create(hf)

    (result,) = (await hf.advance()).results

    after = await look(hf, run.run_id)
    assert (result.outcome, result.status) == ("retry", "pending")
    assert (after.attempt, after.error_kind) == (1, "invalid_value")
    assert await hf.journal.store.fetch("SELECT 1 FROM {s}outbox") == []
    told = [event.type for event in await events(hf, run.run_id)]
    assert told[2:5] == ["message_start", "text", "message_end"]


@pytest.mark.clause("O-19")
async def test_an_error_may_be_the_exception_itself(hf: Holdfast) -> None:
    answering(hf, Fail(ValueError("broken")), Retry(ValueError("busy")))  # type: ignore[arg-type]
    failed, retried = [(await create(hf)).run_id for _ in range(2)]

    await hf.advance()

    assert ((await look(hf, failed)).status, (await look(hf, failed)).last_error) == ("failed", "broken")
    assert ((await look(hf, retried)).status, (await look(hf, retried)).last_error) == ("pending", "busy")


@pytest.mark.clause("OB-3", "H-O15")
async def test_a_clog_without_a_handler_fails_its_runs(hf: Holdfast) -> None:
    hf.register(Clog("chat"))
    run = await create(hf)

    result = await hf.advance()

    after = await look(hf, run.run_id)
    assert (result.advanced, result.results[0].outcome) == (1, "failed")
    assert (after.status, after.attempt, after.last_error) == ("failed", 0, "no onAdvance handler")
