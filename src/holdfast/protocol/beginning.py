"""The first claim of a run in one step. It comes to what folding both entries comes to, and costs a fraction of it:
every run begins like this, and a worker may begin thousands of them in a second."""

from __future__ import annotations

from immutables import Map

from holdfast.protocol.facts import ROOT, AttemptClaimed, RunCreated
from holdfast.protocol.state import Claim, RunState, Tick, Work


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
        work=Map({ROOT: work}),
        ticks=Map({claimed.claim_id: Tick(tick_id=claimed.claim_id, key=ROOT, claimed_rev=2, started_at=at)}),
    )
