"""Telling a notifier that work is due: after the commit, never instead of it. Polling finds the work anyway."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Any, Protocol

from holdfast.journal.planner import Executed
from holdfast.protocol import facts
from holdfast.protocol.commands import Command, NoteWakeup
from holdfast.protocol.facts import Fact
from holdfast.protocol.state import RunState, Work
from holdfast.redaction import logger

log = logger("holdfast.notifier")
PATIENCE_S = 5.0

Notifier = Callable[[str, Sequence[str]], Awaitable[Any]]
"""Told (queue, run ids) once their work is on disk and due. `False` or an exception means: nobody was told."""

_MAKE_DUE = (
    facts.RunCreated,
    facts.SignalReceived,
    facts.TickSettled,
    facts.TickAbandoned,
    facts.AttemptScheduled,
    facts.AttemptFailed,
    facts.ManualStepResolved,
    facts.LaneEntered,
)


class Carrier(Protocol):
    """What a wakeup needs of the journal."""

    async def execute(self, run_id: str, command: Command) -> Executed: ...


def due_work(state: RunState, decided: Iterable[Fact], at: int) -> tuple[Work, ...]:
    """The items that these facts made claimable at once."""
    if not any(isinstance(fact, _MAKE_DUE) for fact in decided):
        return ()
    return tuple(
        work for work in state.work.values() if work.claim is None and not work.blocked and work.visible_at <= at
    )


async def tell(journal: Carrier, notifier: Notifier, queue: str, due: Sequence[tuple[str, Work]]) -> None:
    """Call the notifier and note that it was told. Its failure is its own: the work stays due."""
    run_ids = list(dict.fromkeys(run_id for run_id, _ in due))
    try:
        async with asyncio.timeout(PATIENCE_S):
            told = await notifier(queue, run_ids)
    except Exception:
        log.exception("the notifier failed for queue %s; workers will find the work by themselves", queue)
        return
    if told is False:
        return
    for run_id, work in due:
        await journal.execute(run_id, NoteWakeup(runnable_key=work.key))
