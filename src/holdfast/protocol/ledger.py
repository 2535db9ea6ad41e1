"""The ledger of tools in a run's state: which slots are open, which have answers, and what the audit says of them.

A *slot* is a place in a handler's work: the same work, done again, comes to the same slots. Its tool key stays the same
from the first request on, whoever asks again. Where an outcome has committed, its slots are closed; those of a flow
stay, because its body comes to them again.
"""

from __future__ import annotations

from typing import Any

from msgspec.structs import replace

from holdfast.protocol import facts
from holdfast.protocol.audit import ToolCall, row
from holdfast.protocol.facts import Fact, ToolAnswered, ToolRequested
from holdfast.protocol.flows import keep
from holdfast.protocol.state import RunState, Tool

ANSWERS = frozenset({"completed", "failed"})


def call_id(tool_key: str, calls: int) -> str:
    """What the audit calls the call: the slot's key, numbered from the second call on."""
    return tool_key if calls == 0 else f"{tool_key}#{calls + 1}"


def slot_of(runnable_key: str, scope: str, name: str, args_sha256: str, occurrence: int) -> str:
    """A place in the work of a runnable. Lengths, so that no two places share a name."""
    return f"{runnable_key}|{len(scope)}:{scope}|{len(name)}:{name}|{args_sha256}#{occurrence}"


def ask(state: RunState, fact: ToolRequested, at: int) -> RunState:
    """Remember that the tool may be running. Asked again, the call is the same one."""
    known = state.tools.get(fact.slot)
    is_again = known is not None and known.status == "requested" and fact.calls == known.calls
    is_new = known is None or (known.status == "failed" and fact.calls > known.calls)
    if not is_new and not (is_again and known is not None and fact.tries > known.tries):
        return state
    tool = Tool(
        slot=fact.slot,
        tool_key=fact.tool_key,
        name=fact.name,
        args_sha256=fact.args_sha256,
        vendor=fact.vendor,
        parent_id=fact.parent_id,
        status="requested",
        rev=state.rev,
        asked_at=known.asked_at if known is not None and is_again else at,
        tries=fact.tries,
        calls=fact.calls,
        kept=fact.kept,
    )
    return replace(state, tools=state.tools.set(tool.slot, tool))


def settle(state: RunState, fact: ToolAnswered) -> RunState:
    """Remember the answer, and that what was said for it stays said."""
    known = state.tools[fact.slot]
    answered = replace(known, status=fact.status, rev=state.rev)
    return keep(replace(state, tools=state.tools.set(fact.slot, answered)), fact.claim_id, fact.said)


def close(state: RunState, runnable_key: str | None = None) -> RunState:
    """An outcome of this work (or of all) has committed: it is never done again, so its slots have done theirs."""
    if not state.tools:
        return state
    prefix = "" if runnable_key is None else f"{runnable_key}|"
    gone = [tool.slot for tool in state.tools.values() if not tool.kept and tool.slot.startswith(prefix)]
    if not gone:
        return state
    tools = state.tools.mutate()
    for slot in gone:
        del tools[slot]
    return replace(state, tools=tools.finish())


def of_fork(state: RunState) -> RunState:
    """A fork has the answers of its original; what was only asked for is asked for anew."""
    answered = {slot: tool for slot, tool in state.tools.items() if tool.status != "requested"}
    return state if len(answered) == len(state.tools) else replace(state, tools=type(state.tools)(answered))


def audited(before: RunState, fact: Fact, after: RunState, at: int) -> ToolCall | None:
    """The audit fact that this entry is, if it moved a call.

    A request holds from a microsecond before its entry on: so its answer is later even where time stands still, and a
    look at the instant of any entry sees what that entry says.
    """
    if isinstance(fact, ToolRequested) and fact.tries == 0 and after.tools is not before.tools:
        return _audit_fact(after, fact, status="requested", validity=at - 1, created=at - 1, started_at=at)
    if isinstance(fact, ToolAnswered) and after.tools is not before.tools:
        asked_at = before.tools[fact.slot].asked_at
        return _audit_fact(
            after,
            fact,
            status=fact.status,
            validity=at,
            created=asked_at - 1,
            started_at=asked_at,
            ended_at=at,
            outcome_sha256=fact.outcome_sha256,
            outcome_json=fact.outcome_json,
            error_kind=fact.error_kind,
            error_msg=fact.error,
        )
    return None


def audit_row(before: RunState, fact: Fact, after: RunState, at: int) -> tuple[Any, ...] | None:
    """The same as its table keeps it."""
    found = audited(before, fact, after, at)
    return None if found is None else row(found)


def _audit_fact(state: RunState, fact: facts.ToolRequested | facts.ToolAnswered, **fields: Any) -> ToolCall:
    return ToolCall(
        request_id=state.run_id,
        call_id=fact.call_id,
        user_id=state.user_id,
        run_id=state.run_id,
        parent_id=fact.parent_id or state.run_id,
        vendor=fact.vendor,
        tool_name=fact.name,
        args_sha256=fact.args_sha256,
        arguments_json=fact.arguments_json if isinstance(fact, ToolRequested) else None,
        **fields,
    )
