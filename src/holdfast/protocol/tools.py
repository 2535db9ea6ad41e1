"""Tools: asked for before they run and answered once, so that a worker's death leaves a question, not a guess."""

from __future__ import annotations

from typing import Any

from holdfast.protocol.commands import ClaimCommand
from holdfast.protocol.decisions import Decision, lost_fence, refuse
from holdfast.protocol.facts import ToolAnswered, ToolRequested
from holdfast.protocol.ledger import call_id
from holdfast.protocol.state import RunState

VENDOR = "local"


class RequestTool(ClaimCommand, frozen=True, kw_only=True):
    """A tool is about to run. `again` says that it may have run before, and runs once more with the same key."""

    slot: str
    tool_key: str
    name: str
    args_sha256: str
    args: Any = None
    arguments_json: str | None = None
    vendor: str = VENDOR
    parent_id: str | None = None
    kept: bool = False
    again: bool = False


class AnswerTool(ClaimCommand, frozen=True, kw_only=True):
    """A tool has answered, or failed. `shown` is what people see of a result that holds secrets."""

    slot: str
    status: str
    result: Any = None
    shown: Any = None
    outcome_sha256: str | None = None
    outcome_json: str | None = None
    error: str | None = None
    error_kind: str | None = None
    said: tuple[tuple[int, int], ...] = ()
    repaired: bool = False


def request(state: RunState, command: RequestTool, now: int) -> Decision:
    """Once for each slot; a slot whose call failed begins another call under the same key."""
    refusal = lost_fence(state, command, now)
    if refusal:
        return refuse(state, refusal, ToolRequested.kind, command)
    known = state.tools.get(command.slot)
    is_new = known is None or known.status == "failed"
    if known is not None and not is_new and not (command.again and known.status == "requested"):
        return Decision(repeat_rev=known.rev)
    tool_key = known.tool_key if known else command.tool_key
    calls = 0 if known is None else known.calls + is_new
    requested = ToolRequested(
        runnable_key=command.runnable_key,
        claim_id=command.claim_id,
        claim_token_hash=command.claim_token_hash,
        slot=command.slot,
        tool_key=tool_key,
        call_id=call_id(tool_key, calls),
        name=command.name,
        args_sha256=command.args_sha256,
        args=command.args,
        arguments_json=command.arguments_json,
        vendor=command.vendor,
        parent_id=command.parent_id,
        calls=calls,
        tries=0 if known is None or is_new else known.tries + 1,
        kept=command.kept,
    )
    return Decision(facts=(requested,))


def answer(state: RunState, command: AnswerTool, now: int) -> Decision:
    refusal = lost_fence(state, command, now)
    if refusal:
        return refuse(state, refusal, ToolAnswered.kind, command)
    known = state.tools.get(command.slot)
    if known is None or known.status != "requested":
        same = known is not None and known.status == command.status
        return Decision(repeat_rev=known.rev if known else 0) if same else _conflict(state, command)
    answered = ToolAnswered(
        runnable_key=command.runnable_key,
        claim_id=command.claim_id,
        claim_token_hash=command.claim_token_hash,
        slot=command.slot,
        call_id=call_id(known.tool_key, known.calls),
        name=known.name,
        args_sha256=known.args_sha256,
        vendor=known.vendor,
        parent_id=known.parent_id,
        status=command.status,
        result=command.result,
        shown=command.shown,
        outcome_sha256=command.outcome_sha256,
        outcome_json=command.outcome_json,
        error=command.error,
        error_kind=command.error_kind,
        said=[list(each) for each in command.said],
        repaired=command.repaired,
    )
    return Decision(facts=(answered,))


def _conflict(state: RunState, command: AnswerTool) -> Decision:
    return refuse(state, "conflicting_completion", ToolAnswered.kind, command)
