"""The span of an attempt: what it says of its tick, and which attempt of the run it follows."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from holdfast import tracing
from holdfast.errors import HoldfastError
from holdfast.handlers.ticks import ClaimedTick
from holdfast.protocol.facts import Settling
from holdfast.redaction import logger

log = logger("holdfast.tracing")

_LAST = """
    SELECT settled_rev
    FROM {s}ticks
    WHERE run_id = $1 AND settled_rev IS NOT NULL AND outcome NOT IN ('abandoned', 'released')
    ORDER BY claimed_rev DESC
    LIMIT 1
"""


@asynccontextmanager
async def attempt(tick: ClaimedTick) -> AsyncIterator[None]:
    """What happens inside is one span, linked to the attempt before it. Waits lie between spans, never in one."""
    state = tick.state
    attributes = {
        tracing.OPERATION: tracing.INVOKE_AGENT,
        tracing.AGENT_NAME: state.clog_id,
        tracing.CONVERSATION_ID: state.session_id,
        tracing.RUN_ID: state.run_id,
        tracing.TICK_ID: tick.tick_id,
        tracing.QUEUE: state.queue,
        tracing.ATTEMPT: tick.attempt,
        tracing.DELIVERIES: tick.deliveries,
        **({tracing.STEP: tick.key} if tick.key else {}),
        **({tracing.PARENT_RUN_ID: state.parent_run_id} if state.parent_run_id else {}),
    }
    after = await _before(tick)
    with tracing.root(f"{tracing.INVOKE_AGENT} {state.clog_id}", attributes, after=after) as span:
        tick.span = span
        try:
            yield
        except Exception:
            raise
        except BaseException:
            # Told to stop, or left to a person: the claim is given back.
            span.tell({tracing.OUTCOME: tracing.RELEASED})
            raise


async def _before(tick: ClaimedTick) -> str | None:
    """The traceparent of the attempt that last ended, if that was traced. One whose process was killed left no span."""
    if tick.is_first:
        return None
    run_id = tick.state.run_id
    try:
        for (rev,) in await tick.journal.store.fetch(_LAST, run_id):
            fact = (await tick.journal.facts_at([(run_id, rev)]))[run_id, rev]
            return fact.traceparent if isinstance(fact, Settling) else None
    except HoldfastError as error:
        # A run does not wait for its links.
        log.warning("the span of tick %s has no link: %s", tick.tick_id, error.code)
    return None
