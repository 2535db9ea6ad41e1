"""A delivery that was given up is told to the run that asked for it, once, and fails nothing."""

from __future__ import annotations

from typing import Any

import pytest

from holdfast import Clog, DeadLetter, Done, Holdfast, Ok
from holdfast.handlers import Context
from tests.conftest import FakeClock
from tests.contract.builders import quiet


async def asking(hf: Holdfast, outcome: Any = None) -> str:
    """A run whose tick has sent something that nobody wants."""
    clog = Clog("asks")

    @clog.on_advance
    async def advance(given: Any, ctx: Context) -> Any:
        await ctx.outbox("mail", {"to": "nobody"})
        return outcome or Ok()

    hf.register(clog)
    run = await hf.create_run(session_id="s", clog_id="asks", input=1)
    await hf.advance()
    return run.run_id


async def told(hf: Holdfast, run_id: str) -> list[Any]:
    return [event.data async for event in hf.events(run_id) if event.type == "outbox_dead"]


def refusing(hf: Holdfast) -> None:
    @hf.deliver("mail")
    async def sink(payload: Any, **_: Any) -> None:
        raise DeadLetter("no such box; password=hunter22")


@pytest.mark.clause("C-23")
async def test_a_dead_letter_is_an_event_of_its_run_and_does_not_fail_it(hf: Holdfast) -> None:
    run_id = await asking(hf)
    refusing(hf)

    await hf.outbox.flush_once()
    await quiet(hf)

    (data,) = await told(hf, run_id)
    assert (data["target_space"], data["error_kind"]) == ("mail", "dead_letter")
    assert data["error"] == "no such box; password=[redacted]"
    run = await hf.get_run(run_id)
    assert run is not None
    assert run.status == "idle"


@pytest.mark.clause("C-23")
async def test_one_that_a_crash_left_untold_is_found_by_the_sweep_and_told_once(
    hf: Holdfast, monkeypatch: pytest.MonkeyPatch
) -> None:
    run_id = await asking(hf)
    refusing(hf)
    monkeypatch.setattr(hf.journal, "tell_of_dead_letters", lambda: None)
    await hf.outbox.flush_once()
    assert await told(hf, run_id) == []

    for _ in range(3):
        await hf.journal.sweep()

    assert len(await told(hf, run_id)) == 1


@pytest.mark.clause("C-23")
async def test_a_run_that_is_over_stays_as_it_ended(hf: Holdfast, clock: FakeClock) -> None:
    run_id = await asking(hf, Done("over"))
    head = (await hf.get_run(run_id)).rev  # type: ignore[union-attr]
    refusing(hf)

    await hf.outbox.flush_once()
    await quiet(hf)

    assert await told(hf, run_id) == []
    assert (await hf.get_run(run_id)).rev == head  # type: ignore[union-attr]
    assert (await hf.journal.store.next_timers()).dead_letter is None


async def test_what_no_run_asked_for_is_told_to_nobody(hf: Holdfast) -> None:
    refusing(hf)
    await hf.outbox.enqueue({"to": "nobody"}, "mail")

    await hf.outbox.flush_once()
    await quiet(hf)

    assert (await hf.journal.store.next_timers()).dead_letter is None
