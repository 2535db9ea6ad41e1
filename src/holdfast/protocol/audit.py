"""Audit facts: what was said, called and proposed, and which fact may follow which.

A fact is never changed: the next one of its key supersedes it from its validity on. Each rule takes the latest fact of
a key and answers the next, or None where there is nothing new to say, or raises why it cannot be. Times are the
store's business: a rule compares everything but them.
"""

from __future__ import annotations

from typing import Any

import msgspec
from msgspec.structs import asdict, astuple, replace

from holdfast.errors import Conflict, InvalidValue, NotFound
from holdfast.protocol.values import fingerprint

KINDS = frozenset({"user", "assistant", "system", "sysinfo", "tool"})
OVER = frozenset({"completed", "failed"})
DECISIONS = frozenset({"approved", "denied"})
ERRORED = frozenset({"failed", "stale"})
METADATA_KEY = "proposal"
"""What a boundary's metadata call the proposal that it is about."""
SUBJECT_MAX = 256
LOCAL = "local"
_OF_TIME = frozenset(
    {"validity", "created", "started_at", "ended_at", "latency_ms", "decided_at", "applied_at", "digest"}
)


class AuditFact(msgspec.Struct, frozen=True, kw_only=True):
    """The fields of every relation follow its table's columns."""


class Turn(AuditFact, frozen=True, kw_only=True):
    """Something that was said in a conversation. `asserted` is 0 once it was taken back."""

    id: str
    validity: int = 0
    asserted: int = 1
    created: int = 0
    digest: str = ""
    user_id: str = LOCAL
    parent_id: str | None = None
    message_id: str
    kind: str
    content: str
    thread_id: str | None = None


class ToolCall(AuditFact, frozen=True, kw_only=True):
    """A tool was asked for, or has answered. With `run_id` a run's own ledger keeps it, and nobody else may."""

    request_id: str
    call_id: str
    validity: int = 0
    asserted: int = 1
    created: int = 0
    digest: str = ""
    user_id: str = LOCAL
    run_id: str | None = None
    parent_id: str | None = None
    vendor: str
    tool_name: str
    args_sha256: str
    arguments_json: str | None = None
    status: str = "requested"
    started_at: int = 0
    ended_at: int | None = None
    latency_ms: int | None = None
    outcome_sha256: str | None = None
    outcome_json: str | None = None
    error_kind: str | None = None
    error_msg: str | None = None


class Proposal(AuditFact, frozen=True, kw_only=True):
    """An edit that someone proposes, and what became of it."""

    request_id: str
    validity: int = 0
    asserted: int = 1
    created: int = 0
    digest: str = ""
    user_id: str = LOCAL
    diffs_json: str
    confidence: float | None = None
    status: str = "pending"
    actor: str | None = None
    decided_at: int | None = None
    applied_at: int | None = None
    commit_hash: str | None = None
    results_json: str | None = None
    error_msg: str | None = None


RELATIONS: dict[str, type[Turn] | type[ToolCall] | type[Proposal]] = {
    "turns": Turn,
    "tool_calls": ToolCall,
    "proposals": Proposal,
}


def proof(fact: AuditFact) -> str:
    """The digest of everything a fact says but when: what tells that a stored row is the one that was written."""
    return fingerprint({name: value for name, value in asdict(fact).items() if name not in _OF_TIME})


def row(fact: AuditFact) -> tuple[Any, ...]:
    """The fact as its table keeps it, with its proof."""
    return astuple(replace(fact, digest=proof(fact)))


def check_owner(last: Turn | ToolCall | Proposal | None, user_id: str | None) -> None:
    """To one user the facts of another are unknown."""
    if last is not None and user_id not in (None, last.user_id):
        raise NotFound("there is no such fact for this user; choose another id")


def turn(last: Turn | None, wanted: Turn) -> Turn | None:
    """Assert a turn. The same again says nothing new; its place in the conversation is fixed."""
    if wanted.kind not in KINDS:
        raise InvalidValue(
            f"a turn's kind is one of {', '.join(sorted(KINDS))}; got {wanted.kind!r}", code="invalid_kind"
        )
    if last is None:
        return wanted
    if (last.message_id, last.thread_id) != (wanted.message_id, wanted.thread_id):
        raise _conflict(f"turn {wanted.id} belongs to another message or thread; use a new id", "conflicting_request")
    return None if _alike(last, wanted) else replace(wanted, created=last.created, user_id=last.user_id)


def retraction(last: Turn | None) -> Turn | None:
    """Take a turn back. One that is not there needs none."""
    return None if last is None or not last.asserted else replace(last, asserted=0)


def requested(last: ToolCall | None, wanted: ToolCall) -> ToolCall | None:
    """Ask for a call. It is never moved back by asking again; what it was asked with is fixed."""
    if last is None:
        return wanted
    if last.run_id != wanted.run_id:
        raise _conflict(
            f"call {wanted.call_id} is kept by run {last.run_id}; use a key of your own", "conflicting_request"
        )
    if last.status in OVER:
        return None
    if (last.args_sha256, last.parent_id) != (wanted.args_sha256, wanted.parent_id):
        text = f"call {wanted.call_id} of {wanted.request_id} was requested with other arguments or another parent"
        raise _conflict(f"{text}; use a new call_id", "conflicting_request")
    merged = replace(
        wanted,
        created=last.created,
        user_id=last.user_id,
        started_at=last.started_at,
        arguments_json=last.arguments_json if wanted.arguments_json is None else wanted.arguments_json,
    )
    return None if _alike(last, merged) else merged


def done(last: ToolCall | None, wanted: ToolCall) -> ToolCall:
    """The call has ended so. `wanted` names the end alone; the rest is the request's."""
    if last is None:
        text = f"call {wanted.call_id} of {wanted.request_id} was never requested"
        raise _conflict(f"{text}; record the request first", "not_requested")
    if last.run_id != wanted.run_id:
        raise _conflict(
            f"call {wanted.call_id} is kept by run {last.run_id}, which records its end", "conflicting_request"
        )
    return replace(
        last,
        status=wanted.status,
        ended_at=wanted.ended_at,
        latency_ms=wanted.latency_ms,
        outcome_sha256=wanted.outcome_sha256,
        outcome_json=wanted.outcome_json,
        error_kind=wanted.error_kind,
        error_msg=wanted.error_msg,
    )


def ended(last: ToolCall | None, wanted: ToolCall) -> ToolCall | None:
    """The end of a call, once: the same again says nothing new, and no other can follow."""
    after = done(last, wanted)
    assert last is not None
    if last.status not in OVER:
        return after
    if last.status != after.status:
        text = f"call {wanted.call_id} of {wanted.request_id} is {last.status}, and that is final"
        raise _conflict(text, "invalid_transition")
    ends = [(f.outcome_sha256, f.error_kind, f.error_msg) for f in (last, after)]
    if ends[0] != ends[1]:
        text = f"call {wanted.call_id} of {wanted.request_id} ended with another result"
        raise _conflict(f"{text}; the first one stays", "conflicting_completion")
    return None


def proposed(last: Proposal | None, wanted: Proposal) -> Proposal | None:
    """Propose an edit. Until it is decided, and once it has failed, it may be proposed anew with other diffs."""
    if last is None:
        return wanted
    same = (last.diffs_json, last.confidence) == (wanted.diffs_json, wanted.confidence)
    if same:
        return None
    if last.status != "pending" and last.status not in ERRORED:
        text = f"proposal {wanted.request_id} is {last.status}; propose other diffs under a new id"
        raise _conflict(text, "conflicting_request")
    return replace(wanted, created=last.created, user_id=last.user_id)


def decided(last: Proposal | None, request_id: str, decision: str, actor: str | None) -> Proposal | None:
    """Approve or deny, anew where it failed. What was approved and then applied was approved all the same."""
    word = str(decision).lower()
    if word not in DECISIONS:
        raise InvalidValue(f"a decision is approved or denied; got {decision!r}", code="invalid_kind")
    fact = _proposal(last, request_id)
    if fact.status == "pending" or fact.status in ERRORED:
        return replace(fact, status=word, actor=actor, decided_at=None, error_msg=None)
    if is_decided(fact.status, word):
        return None
    raise _conflict(f"proposal {request_id} is {fact.status} and cannot become {word}", "invalid_transition")


def is_decided(status: str, decision: str) -> bool:
    """Does a proposal of this status stand as decided so?"""
    return status == decision or (decision == "approved" and status in ("applied", "reverted"))


def confirmed(last: Proposal | None, request_id: str, min_confidence: float, actor: str) -> Proposal | None:
    """Approve without a person what is pending and sure enough; anything else is left as it is."""
    fact = _proposal(last, request_id)
    if fact.status != "pending" or fact.confidence is None or fact.confidence < min_confidence:
        return None
    return decided(fact, request_id, "approved", actor)


def errored(last: Proposal | None, request_id: str, status: str, error_msg: str | None) -> Proposal | None:
    """The edit could not be made (`failed`), or what it edits is not what it was (`stale`). It may be decided anew."""
    fact = _proposal(last, request_id)
    if (fact.status, fact.error_msg) == (status, error_msg):
        return None
    if fact.status not in ("pending", "approved") and fact.status not in ERRORED:
        raise _conflict(f"proposal {request_id} is {fact.status} and cannot become {status}", "invalid_transition")
    return replace(fact, status=status, error_msg=error_msg)


def subject(metadata: dict[str, Any]) -> str | None:
    """The proposal that a question with these metadata is about; None where it is about none."""
    named = metadata.get(METADATA_KEY)
    return named if isinstance(named, str) and 0 < len(named) <= SUBJECT_MAX else None


def applied(
    last: Proposal | None, request_id: str, *, results_json: str | None, applied_at: int | None, commit_hash: str | None
) -> Proposal | None:
    """What was approved is done. Applying twice with the same result is applying once."""
    fact = _proposal(last, request_id)
    if fact.status == "approved":
        return replace(
            fact, status="applied", results_json=results_json, applied_at=applied_at, commit_hash=commit_hash
        )
    if fact.status != "applied":
        raise _conflict(f"proposal {request_id} is {fact.status} and cannot become applied", "invalid_transition")
    if (fact.results_json, fact.commit_hash) != (results_json, commit_hash):
        text = f"proposal {request_id} was applied with another result; the first one stays"
        raise _conflict(text, "conflicting_completion")
    return None


def reverted(last: Proposal | None, request_id: str, *, actor: str | None) -> Proposal | None:
    """What was applied is undone."""
    fact = _proposal(last, request_id)
    if fact.status == "reverted":
        return None
    if fact.status != "applied":
        raise _conflict(f"proposal {request_id} is {fact.status} and cannot become reverted", "invalid_transition")
    return replace(fact, status="reverted", actor=actor or fact.actor)


def _proposal(last: Proposal | None, request_id: str) -> Proposal:
    if last is None:
        raise _conflict(f"there is no proposal {request_id}; record it as proposed first", "not_requested")
    return last


def _alike(one: AuditFact, other: AuditFact) -> bool:
    return proof(replace(one, user_id=LOCAL)) == proof(replace(other, user_id=LOCAL))


def _conflict(text: str, code: str) -> Conflict:
    return Conflict(text, code=code)
