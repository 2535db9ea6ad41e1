"""The recorders: each says one thing, and says it once however often it is called."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from holdfast.audit.instants import Validity, caller_us
from holdfast.audit.payloads import Payloads, given_sha256, parsed
from holdfast.audit.statements import Answer, Statement, call_key, proposal_key, turn_key
from holdfast.errors import InvalidValue
from holdfast.identity import UUID, check_name
from holdfast.protocol import audit as rules
from holdfast.protocol.audit import LOCAL, Proposal, ToolCall, Turn
from holdfast.protocol.values import clean, whole_number

LATENCY_MS_MAX = 1 << 53
ACTIONS = {"approved": "approve", "denied": "reject"}
"""What a decision on a proposal is called where a run asks about it."""

Id = str | UUID


class Recorders:
    """Statements with their rules. What becomes of a statement, now or with others, is for the class below."""

    _payloads: Payloads
    _user_id: str | None

    async def record(self, statement: Statement) -> Validity | None:
        """Since when the key reads as the statement wants it; None if there is nothing to be said of it."""
        raise NotImplementedError

    async def upsert_conversation_turn(
        self,
        id: Id,
        *,
        message_id: Id,
        kind: str,
        content: str,
        parent_id: Id | None = None,
        thread_id: Id | None = None,
    ) -> Validity | None:
        """Something was said. The same again changes nothing; other words are a new fact in the same place."""
        fact = Turn(
            id=_id(id, "id"),
            user_id=self._owner,
            parent_id=_maybe_id(parent_id, "parent_id"),
            message_id=_id(message_id, "message_id"),
            kind=kind,
            content=self._payloads.said(content),
            thread_id=_maybe_id(thread_id, "thread_id"),
        )
        return await self.record(Statement(turn_key(fact.id), lambda last: rules.turn(last, fact), self._user_id))

    async def retract_conversation_turn(self, id: Id) -> Validity | None:
        """Take a turn back: from now on no snapshot shows it, earlier ones still do."""
        key = turn_key(_id(id, "id"))
        return await self.record(Statement(key, rules.retraction, self._user_id, retracts=True))

    async def record_tool_call_requested(
        self,
        request_id: Id,
        call_id: str,
        *,
        tool_name: str,
        vendor: str = LOCAL,
        parent_id: Id | None = None,
        arguments_json: Any = None,
        args_sha256: str | None = None,
        started_at_ms: datetime | int | None = None,
        started: datetime | int | None = None,
        persist_payloads: bool | None = None,
    ) -> Validity | None:
        """A tool is asked for. The hash of its arguments is kept always, they themselves only where that is wanted.

        `started_at_ms` (or `started`) is when its caller says that it began.
        """
        name = check_name(tool_name, "tool_name")
        payload = self._payloads.of(parsed(arguments_json, "arguments_json"), name, persist_payloads)
        fact = ToolCall(
            request_id=_id(request_id, "request_id"),
            call_id=check_name(call_id, "call_id"),
            user_id=self._owner,
            parent_id=_maybe_id(parent_id, "parent_id"),
            vendor=check_name(vendor, "vendor"),
            tool_name=name,
            args_sha256=payload.sha256
            if arguments_json is not None or args_sha256 is None
            else given_sha256(args_sha256),
            arguments_json=payload.text,
            started_at=caller_us(started if started_at_ms is None else started_at_ms, "started_at_ms") or 0,
        )
        key = call_key(fact.request_id, fact.call_id)
        return await self.record(Statement(key, lambda last: rules.requested(last, fact), self._user_id))

    async def record_tool_call_done(
        self,
        request_id: Id,
        call_id: str,
        *,
        status: str,
        outcome_json: Any = None,
        error_kind: str | None = None,
        error_msg: str | None = None,
        ended_at_ms: datetime | int | None = None,
        latency_ms: int | None = None,
        persist_payloads: bool | None = None,
    ) -> Validity | None:
        """The tool has answered, or failed. The first answer stays."""
        if status not in rules.OVER:
            raise InvalidValue(f"a call ends completed or failed; got {status!r}", code="invalid_kind")
        if (status == "completed" and (error_kind, error_msg) != (None, None)) or (
            status == "failed" and outcome_json is not None
        ):
            raise InvalidValue("an outcome belongs to a completed call, error_kind and error_msg to a failed one")
        outcome = parsed(outcome_json, "outcome_json")
        error = self._payloads.error(error_msg)
        kind = None if error_kind is None else check_name(error_kind, "error_kind")
        ended_at = caller_us(ended_at_ms, "ended_at_ms")
        latency = None if latency_ms is None else whole_number(latency_ms, "latency_ms", 0, LATENCY_MS_MAX)

        def rule(last: ToolCall | None) -> ToolCall | None:
            payload = self._payloads.of(outcome, last.tool_name if last else "", persist_payloads)
            wanted = ToolCall(
                request_id=key.values[0],
                call_id=key.values[1],
                vendor="",
                tool_name="",
                args_sha256="",
                status=status,
                ended_at=ended_at,
                latency_ms=latency,
                outcome_sha256=payload.sha256 if status == "completed" else None,
                outcome_json=payload.text if status == "completed" else None,
                error_kind=kind,
                error_msg=error,
            )
            return rules.ended(last, wanted)

        key = call_key(_id(request_id, "request_id"), check_name(call_id, "call_id"))
        return await self.record(Statement(key, rule, self._user_id))

    async def record_edit_proposed(
        self, request_id: Id, *, diffs_json: Any, confidence: float | None = None
    ) -> Validity | None:
        """Someone proposes an edit; until it is decided, and once it has failed, it may be proposed anew."""
        score, _ = clean(confidence)
        if score is not None and (isinstance(score, bool) or not isinstance(score, int | float)):
            raise InvalidValue(f"confidence is a number, got a {type(confidence).__name__}")
        fact = Proposal(
            request_id=_id(request_id, "request_id"),
            user_id=self._owner,
            diffs_json=self._payloads.kept(parsed(diffs_json, "diffs_json")),
            confidence=None if score is None else float(score),
        )
        key = proposal_key(fact.request_id)
        return await self.record(Statement(key, lambda last: rules.proposed(last, fact), self._user_id))

    async def record_edit_decision(self, request_id: Id, decision: str, actor: str | None = None) -> Validity | None:
        """Someone approves the proposal or denies it; one that failed or is stale may be decided anew.

        A run that asks about it is answered in the same commit. Such an answer needs an actor, and comes too late
        once the question has expired: then neither is decided (`stale_manual_resolution`).
        """
        name = _id(request_id, "request_id")
        who = None if actor is None else check_name(actor, "actor")
        action = ACTIONS.get(str(decision).lower())
        answer = None if action is None else Answer(action, who)
        return await self._propose(name, lambda last: rules.decided(last, name, decision, who), answer)

    async def record_edit_applied(
        self,
        request_id: Id,
        *,
        results_json: Any = None,
        applied_at: datetime | int | None = None,
        commit_hash: str | None = None,
    ) -> Validity | None:
        """An approved proposal was carried out."""
        name = _id(request_id, "request_id")
        results = None if results_json is None else self._payloads.kept(parsed(results_json, "results_json"))
        at = caller_us(applied_at, "applied_at")
        commit = None if commit_hash is None else check_name(commit_hash, "commit_hash")

        def rule(last: Proposal | None) -> Proposal | None:
            return rules.applied(last, name, results_json=results, applied_at=at, commit_hash=commit)

        return await self._propose(name, rule)

    async def record_edit_reverted(self, request_id: Id, *, actor: str | None = None) -> Validity | None:
        """An applied proposal was undone."""
        name = _id(request_id, "request_id")
        who = None if actor is None else check_name(actor, "actor")
        return await self._propose(name, lambda last: rules.reverted(last, name, actor=who))

    async def record_edit_failed(self, request_id: Id, error_msg: str | None = None) -> Validity | None:
        """The edit was tried and could not be made. Approving it again means: try again."""
        return await self._errored(request_id, "failed", error_msg)

    async def record_edit_stale(self, request_id: Id, error_msg: str | None = None) -> Validity | None:
        """What the edit changes has itself changed since it was proposed."""
        return await self._errored(request_id, "stale", error_msg)

    async def _errored(self, request_id: Id, status: str, error_msg: str | None) -> Validity | None:
        name = _id(request_id, "request_id")
        why = self._payloads.error(error_msg)
        return await self._propose(name, lambda last: rules.errored(last, name, status, why))

    async def _propose(self, request_id: str, rule: Any, answer: Answer | None = None) -> Validity | None:
        return await self.record(Statement(proposal_key(request_id), rule, self._user_id, answer=answer))

    @property
    def _owner(self) -> str:
        return self._user_id or LOCAL


def _id(value: Id, name: str) -> str:
    return check_name(str(value) if isinstance(value, UUID) else value, name)


def _maybe_id(value: Id | None, name: str) -> str | None:
    return None if value is None else _id(value, name)
