"""The judgements that every rule about a run is made from, and what they do to its state."""

from __future__ import annotations

from typing import Any

from msgspec.structs import replace

from holdfast.protocol.facts import ROOT, Fact
from holdfast.protocol.state import Refusal, RunState, counted


def judge_fence(state: RunState, key: str, claim_id: str, claim_token_hash: str | None, at: int) -> str | None:
    """Why this claim may not act now, or None if it may. The lease's end itself is too late."""
    work = state.work.get(key)
    claim = work.claim if work else None
    if (
        claim is None
        or claim.claim_id != claim_id
        or (claim_token_hash is not None and claim.claim_token_hash != claim_token_hash)
    ):
        return "stale_claim"
    return None if claim.holds(at) else "expired_claim"


def judge_repeat(state: RunState, claim_id: str, result_digest: str | None) -> str | None:
    """What became of a claim that is no longer open: `repeat` of the same result, another result, or unknown."""
    tick = state.ticks.get(claim_id)
    if tick is None or tick.result_digest is None:
        return None
    return "repeat" if tick.result_digest == result_digest else "conflicting_completion"


def judge_claim(state: RunState, key: str, claim_id: str, claim_token_hash: str, at: int) -> str | None:
    """Why the item may not be claimed now, or None if it may, or if this very claim holds it already."""
    work = state.work.get(key)
    if work is None:
        return "terminal_attempt" if _is_over(state, key) else "unknown_runnable_intent"
    if work.claim and work.claim.claim_id == claim_id and work.claim.claim_token_hash == claim_token_hash:
        return None
    if claim_id in state.ticks:
        return "stale_claim"
    if state.boundary:
        return "active_manual_step"
    if work.claim and work.claim.holds(at):
        return "active_claim"
    return "attempt_not_visible" if work.blocked or at < counted(work.visible_at, at) else None


def _is_over(state: RunState, key: str) -> bool:
    runnable = state.runnables.get(key)
    return runnable is not None and runnable.status in ("completed", "failed")


def refuse(state: RunState, fact: Fact, reason: str) -> RunState:
    """The fact is not accepted: nothing changes but `anomalies`."""
    return state.refuse(
        Refusal(
            reason=reason,
            entry_kind=fact.kind,
            rev=state.rev,
            runnable_key=getattr(fact, "runnable_key", ROOT),
            claim_id=getattr(fact, "claim_id", None) or getattr(fact, "tick_id", None) or "",
            step=getattr(fact, "step", ""),
        )
    )


def judge_result(state: RunState, fact: Any, at: int) -> str | None:
    """None if the claim may end its tick so; else `repeat` of what it said before, or why not."""
    refusal = judge_fence(state, fact.runnable_key, fact.claim_id, fact.claim_token_hash, at)
    if refusal is None:
        return None
    return judge_repeat(state, fact.claim_id, fact.result_digest) or refusal


def close_tick(state: RunState, tick_id: str, outcome: str, result_digest: str | None = None) -> RunState:
    tick = state.ticks.get(tick_id)
    if tick is None:
        return state
    closed = replace(tick, outcome=outcome, result_digest=result_digest, settled_rev=state.rev)
    return replace(state, ticks=state.ticks.set(tick_id, closed))
