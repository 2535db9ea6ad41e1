"""The mailbox: every signal is one tick, in order, whatever the tick before it answered."""

from __future__ import annotations

from typing import Any

import pytest

from holdfast import Context, Continue, Done, Fail, Holdfast, Ok, Retry, RetryPolicy, Wait
from tests.conftest import FakeClock
from tests.contract.builders import create, idle, kinds, look, rows
from tests.runtime.clogs import answering, inputs


def signalled(hf: Holdfast, answer: Any, *signals: Any) -> Any:
    """A handler that is sent these signals while it runs; `...` is one without input."""

    async def advance(given: Any, ctx: Context) -> Any:
        for signal in signals:
            receipt = await (hf.signal(ctx.run_id) if signal is ... else hf.signal(ctx.run_id, signal))
            assert receipt.accepted == (not (await look(hf, ctx.run_id)).finished_at)
        if isinstance(answer, Exception):
            raise answer
        return answer

    return advance


async def undelivered(hf: Holdfast, run_id: str) -> int:
    """How many signals no tick has consumed."""
    return sum(row[-1] is None for row in (await rows(hf, run_id)).tables["signals"])


@pytest.mark.clause("O-40", "H-O3", "OB-7")
async def test_three_signals_are_three_ticks_in_order(hf: Holdfast) -> None:
    seen = answering(hf)
    run = await idle(hf)
    for given in ("a", "b", "c"):
        await hf.signal(run.run_id, given)

    for count in (1, 2, 3):
        assert (await hf.advance()).advanced == 1
        assert len(seen) == count

    assert inputs(seen) == ["a", "b", "c"]
    assert (await hf.advance()).advanced == 0


@pytest.mark.clause("O-36", "O-39", "O-40", "H-O3", "OB-6")
@pytest.mark.parametrize(
    ("answer", "after"),
    [(Ok(), ["hello", "new"]), (Wait(seconds=3_600), ["hello", "new"]), (Continue("go on"), ["hello", "go on", "new"])],
)
async def test_a_signal_during_a_tick_is_delivered_after_it(hf: Holdfast, answer: Any, after: list[str]) -> None:
    seen = answering(hf, signalled(hf, answer, "new"))
    run = await create(hf)

    assert (await hf.advance()).results[0].status == "pending"
    while (await hf.advance()).advanced:
        pass

    assert inputs(seen) == after
    assert await undelivered(hf, run.run_id) == 0


@pytest.mark.clause("H-O2", "H-O3", "H-O5", "OB-5")
@pytest.mark.parametrize("answer", [Retry("busy"), ValueError("busy")])
async def test_a_signal_during_a_failing_tick_waits_behind_its_retry(
    hf: Holdfast, clock: FakeClock, answer: Any
) -> None:
    seen = answering(hf, signalled(hf, answer, "new"))
    await create(hf)

    await hf.advance()
    assert (await hf.advance()).advanced == 0
    clock.advance(1)
    await hf.advance()
    await hf.advance()

    assert [(each.input, each.attempt) for each in seen] == [("hello", 0), ("hello", 1), ("new", 0)]


@pytest.mark.clause("H-O13", "C-20", "OB-6")
@pytest.mark.parametrize("answer", [Done(), Fail("no")])
async def test_a_signal_during_the_last_tick_is_kept_though_nobody_gets_it(hf: Holdfast, answer: Any) -> None:
    seen = answering(hf, signalled(hf, answer, "new"))
    run = await create(hf)

    await hf.drain()

    assert inputs(seen) == ["hello"]
    assert await undelivered(hf, run.run_id) == 1
    assert "signal_received" in await kinds(hf, run.run_id)


@pytest.mark.clause("H-O3", "OB-6")
async def test_a_signal_like_the_one_at_work_is_one_more_tick(hf: Holdfast) -> None:
    seen = answering(hf, signalled(hf, Ok(), "same"))
    run = await idle(hf)
    await hf.signal(run.run_id, "same")

    await hf.drain()

    assert inputs(seen) == ["same", "same"]


@pytest.mark.clause("H-O3", "O-36")
async def test_a_bare_signal_is_a_tick_without_input(hf: Holdfast) -> None:
    seen = answering(hf, signalled(hf, Ok(), ...))
    await create(hf)

    await hf.drain()

    assert inputs(seen) == ["hello", None]
    assert seen[1].signal.has_input is False


@pytest.mark.clause("H-O2", "OB-9")
async def test_an_interrupt_ends_a_backoff_and_changes_no_order(hf: Holdfast) -> None:
    seen = answering(hf, Retry("busy"))
    run = await create(hf)
    await hf.advance()

    await hf.signal(run.run_id, "patient")
    assert (await hf.advance()).advanced == 0
    await hf.signal(run.run_id, "urgent", interrupt=True)
    assert await hf.drain() == 3

    assert inputs(seen) == ["hello", "hello", "patient", "urgent"]


@pytest.mark.clause("H-O3", "H-O5")
async def test_retried_input_then_continue_then_signals(hf: Holdfast) -> None:
    seen = answering(hf, signalled(hf, Retry("busy", after=0), "one", "two"), Continue("on"), Ok())
    await create(hf)

    assert await hf.drain() == 5
    assert inputs(seen) == ["hello", "hello", "on", "one", "two"]


@pytest.mark.clause("H-O2")
async def test_a_retry_of_a_signals_input_comes_before_later_signals(hf: Holdfast) -> None:
    seen = answering(hf, signalled(hf, Retry("busy"), "later"))
    run = await idle(hf)
    await hf.signal(run.run_id, "first")

    await hf.drain()

    assert inputs(seen) == ["first", "first", "later"]


@pytest.mark.clause("H-O3", "C-17")
async def test_a_handler_knows_the_signal_that_brought_its_input(hf: Holdfast) -> None:
    seen = answering(hf, Retry("busy", after=0), Continue("mine"), Wait(seconds=1), Ok())
    run = await idle(hf)
    receipt = await hf.signal(run.run_id, "told", name="news", key="k1")

    await hf.drain()

    told, retried, continued, timed = (each.signal for each in seen)
    assert (told.seq, told.name, told.has_input, told.key) == (receipt.rev, "news", True, "k1")
    assert retried == told
    assert (continued, timed) == (None, None)
    assert inputs(seen) == ["told", "told", "mine", None]


@pytest.mark.clause("H-O3")
async def test_an_input_from_creation_came_with_no_signal(hf: Holdfast) -> None:
    seen = answering(hf)
    await create(hf)

    await hf.advance()

    assert seen[0].signal is None


@pytest.mark.clause("C-21")
async def test_signals_to_a_paused_run_wait_for_the_answer(hf: Holdfast) -> None:
    seen = answering(hf)
    run = await idle(hf)
    await hf.pause(run.run_id, "review")
    await hf.signal(run.run_id, "a")
    await hf.signal(run.run_id, "b")

    assert (await hf.advance()).advanced == 0
    await hf.resume(run.run_id)
    assert await hf.drain() == 2
    assert inputs(seen) == ["a", "b"]


@pytest.mark.clause("C-26")
async def test_a_signal_sent_twice_with_one_key_is_one_tick(hf: Holdfast) -> None:
    seen = answering(hf)
    run = await idle(hf)

    first = await hf.signal(run.run_id, "once", key="k")
    again = await hf.signal(run.run_id, "once", key="k")
    await hf.drain()

    assert first == again
    assert inputs(seen) == ["once"]


@pytest.mark.clause("H-O3", "O-17")
async def test_a_run_that_used_up_its_attempts_keeps_what_was_waiting(hf: Holdfast) -> None:
    answering(hf, ValueError("no"))
    run = await create(hf, retry=RetryPolicy(max_attempts=1))
    await hf.signal(run.run_id, "waiting")

    await hf.drain()

    assert (await look(hf, run.run_id)).status == "failed"
    assert await undelivered(hf, run.run_id) == 1
