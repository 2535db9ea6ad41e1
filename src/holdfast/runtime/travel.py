"""`Travel`: a run as it was at any instant, with everything that belonged to it, and what two instants differ in."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Any

import msgspec

from holdfast.audit.instants import END, At, instant
from holdfast.audit.records import ConversationTurn, Pair, ToolCallDone, ToolCallRequested
from holdfast.errors import NotFound
from holdfast.identity import check_id
from holdfast.moments import from_us
from holdfast.protocol import facts
from holdfast.protocol.events import view
from holdfast.protocol.facts import Fact
from holdfast.runtime.copies import Copies
from holdfast.runtime.records import RunInfo
from holdfast.store import Entry

SHOWN_MAX = 10_000


class PastCall(msgspec.Struct, frozen=True, kw_only=True):
    """A tool call: its request, and its end if it had one."""

    request: ToolCallRequested
    done: ToolCallDone | None


class PastApproval(msgspec.Struct, frozen=True, kw_only=True):
    """A question to a person, and the answer if there was one."""

    step: str
    kind: str
    asked_at: datetime
    metadata: dict[str, Any]
    action: str | None = None
    actor: str | None = None
    comment: str | None = None
    resolved_at: datetime | None = None


class PastClaim(msgspec.Struct, frozen=True, kw_only=True):
    """Who worked on the run, and until when they might."""

    runnable_key: str
    owner_id: str
    claim_id: str
    lease_until: datetime


class Moment(msgspec.Struct, frozen=True, kw_only=True):
    """Everything about a run at one instant."""

    at: datetime
    run: RunInfo
    conversation: tuple[ConversationTurn, ...]
    tool_calls: tuple[PastCall, ...]
    approvals: tuple[PastApproval, ...]
    claims: tuple[PastClaim, ...]

    def to_dict(self) -> dict[str, Any]:
        """The same as JSON values."""
        plain: dict[str, Any] = msgspec.to_builtins(self)
        return plain


class Happened(msgspec.Struct, frozen=True, kw_only=True):
    """An entry as people see it: its kind, and the event it shows, if it shows one."""

    rev: int
    at: datetime
    kind: str
    event: str | None


class Difference(msgspec.Struct, frozen=True, kw_only=True):
    """What changed between two instants: (then, now) for each field of the run, new facts, and the entries between."""

    run_id: str
    run: dict[str, tuple[Any, Any]]
    conversation: tuple[ConversationTurn, ...]
    tool_calls: tuple[PastCall, ...]
    approvals: tuple[PastApproval, ...]
    entries: tuple[Happened, ...]

    def to_dict(self) -> dict[str, Any]:
        """The same as JSON values."""
        plain: dict[str, Any] = msgspec.to_builtins(self)
        return plain


class Travel(Copies):
    """Look back."""

    async def as_of(self, run_id: str, at: At = "NOW") -> Moment | None:
        """The run, its conversation, tool calls, approvals and claims at an instant; None where there was no run yet.

        The instant is `NOW`, a text of RFC 3339, an aware datetime, or microseconds since the epoch.
        """
        us = instant(at)
        state = await self.journal.state(check_id(run_id, "run_id"), at=us)
        if state is None or self._user_id not in (None, state.user_id):
            return None
        told = [(entry, fact) for entry, fact in await self.journal.facts(run_id, until_at=us)]
        turns = await self.audit.list_conversation_since(0, SHOWN_MAX, thread_id=state.session_id, at=us)
        calls = await self.audit.list_tool_calls(request_id=run_id, limit=SHOWN_MAX, at=us)
        work = sorted(state.work.items())
        return Moment(
            at=from_us(us if us < END else max(state.at, await self._store.now())),
            run=await self._info(state),
            conversation=tuple(turns),
            tool_calls=_calls(calls),
            approvals=_approvals(told),
            claims=tuple(
                PastClaim(
                    runnable_key=key,
                    owner_id=item.claim.owner_id,
                    claim_id=item.claim.claim_id,
                    lease_until=from_us(item.claim.lease_until),
                )
                for key, item in work
                if item.claim is not None
            ),
        )

    async def diff(self, run_id: str, earlier: At, later: At = "NOW") -> Difference:
        """What happened to a run after one instant and up to another."""
        before, after = await self.as_of(run_id, earlier), await self.as_of(run_id, later)
        if after is None:
            raise NotFound(f"there was no run {run_id} at {later}")
        since = before.run.rev if before else 0
        entries = await self.journal.facts(run_id, since, limit=after.run.rev - since)
        return Difference(
            run_id=run_id,
            run=_changed(before.run if before else None, after.run),
            conversation=_new(before.conversation if before else (), after.conversation),
            tool_calls=_new(before.tool_calls if before else (), after.tool_calls),
            approvals=_new(before.approvals if before else (), after.approvals),
            entries=tuple(_happened(entry, fact) for entry, fact in entries),
        )


def _calls(pairs: Sequence[Pair]) -> tuple[PastCall, ...]:
    """In the order in which they were requested."""
    return tuple(PastCall(request=request, done=done) for request, done in reversed(pairs))


def _approvals(told: Sequence[tuple[Entry, Fact]]) -> tuple[PastApproval, ...]:
    found: list[PastApproval] = []
    for entry, fact in told:
        at = from_us(entry.at)
        match fact:
            case facts.ManualStepPaused():
                found.append(PastApproval(step=fact.step, kind=fact.boundary, asked_at=at, metadata=fact.metadata))
            case facts.ManualStepResolved() if found and found[-1].step == fact.step and found[-1].action is None:
                answer = {"action": fact.action, "actor": fact.actor, "comment": fact.comment, "resolved_at": at}
                found[-1] = msgspec.structs.replace(found[-1], **answer)
            case _:
                continue
    return tuple(found)


def _happened(entry: Entry, fact: Fact) -> Happened:
    shown = view(fact)
    return Happened(rev=entry.rev, at=from_us(entry.at), kind=entry.kind, event=shown.type if shown else None)


def _changed(before: RunInfo | None, after: RunInfo) -> dict[str, tuple[Any, Any]]:
    names = RunInfo.__struct_fields__
    pairs = {name: (getattr(before, name) if before else None, getattr(after, name)) for name in names}
    return {name: pair for name, pair in pairs.items() if pair[0] != pair[1]}


def _new(before: Sequence[Any], after: Sequence[Any]) -> tuple[Any, ...]:
    return tuple(item for item in after if item not in before)
