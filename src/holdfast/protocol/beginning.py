"""The creation of a run, and its first claim, in one step each. They come to what folding the entries comes to, and
cost a fraction of it: every run begins like this, and thousands of them may begin in a second."""

from __future__ import annotations

from immutables import Map
from msgspec.structs import replace

from holdfast.protocol.facts import ROOT, AttemptClaimed, RunCreated
from holdfast.protocol.messages import is_message
from holdfast.protocol.state import Claim, RunState, Tick, Work


def created(state: RunState, fact: RunCreated, at: int, digest: str) -> RunState:
    """The run after its first fact. `digest` is that of its body. Who is in a lane does not begin here."""
    assert fact.lane is None
    assert not state.exists
    rev = state.rev + 1
    visible_at = at + fact.delay_us
    return replace(
        state,
        session_id=fact.session_id,
        user_id=fact.user_id,
        clog_id=fact.clog_id,
        queue=fact.queue,
        mode=fact.mode,
        priority=fact.priority,
        max_attempts=fact.max_attempts,
        backoff_us=fact.backoff_us,
        backoff_max_us=fact.backoff_max_us,
        max_deliveries=fact.max_deliveries,
        resumable=fact.resumable,
        parent_run_id=fact.parent.run_id if fact.parent else None,
        created_digest=digest,
        created_key=None if fact.key is None else (fact.key, fact.key_digest or ""),
        created_at=at,
        status="pending" if fact.has_input else "idle",
        rev=rev,
        at=at,
        input_rev=rev if fact.has_input else None,
        wake_at=visible_at if fact.has_input and fact.delay_us else None,
        spoken=is_message(fact),
        work=state.work.set(ROOT, Work(visible_at=visible_at, input_rev=rev)) if fact.has_input else state.work,
    )


def begun(run_id: str, created: RunCreated, created_at: int, digest: str, claimed: AttemptClaimed, at: int) -> RunState:
    """The run after these two facts, the claim being one that was just given. `digest` is that of the first body.

    Who else stands in a lane is not told by them, so a run in a lane does not begin here.
    """
    assert created.lane is None
    assert created.has_input
    work = Work(
        visible_at=created_at + created.delay_us,
        input_rev=1,
        deliveries=1,
        claim=Claim(claimed.claim_id, claimed.claim_token_hash, claimed.owner_id, at + claimed.lease_us),
    )
    return RunState(
        run_id=run_id,
        session_id=created.session_id,
        user_id=created.user_id,
        clog_id=created.clog_id,
        queue=created.queue,
        mode=created.mode,
        priority=created.priority,
        max_attempts=created.max_attempts,
        backoff_us=created.backoff_us,
        backoff_max_us=created.backoff_max_us,
        max_deliveries=created.max_deliveries,
        resumable=created.resumable,
        parent_run_id=created.parent.run_id if created.parent else None,
        created_digest=digest,
        created_key=None if created.key is None else (created.key, created.key_digest or ""),
        created_at=created_at,
        started_at=at,
        status="active",
        rev=2,
        at=at,
        deliveries=1,
        input_rev=1,
        spoken=is_message(created),
        work=Map({ROOT: work}),
        ticks=Map({claimed.claim_id: Tick(tick_id=claimed.claim_id, key=ROOT, claimed_rev=2, started_at=at)}),
    )
