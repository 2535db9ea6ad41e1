"""Tools of a tick: asked for in the ledger, run, answered in the ledger; and what to do where an answer never came."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, NamedTuple, Protocol

from msgspec.structs import replace

from holdfast import tracing
from holdfast.audit import Audit
from holdfast.audit.payloads import Payload, sha256
from holdfast.audit.statements import Step, call_key
from holdfast.errors import HoldfastError, InvalidValue, LeaseLost, ToolFailed
from holdfast.handlers.speech import Seqs, Speech, speaker
from holdfast.handlers.threads import call
from holdfast.identity import check_name, child_id
from holdfast.journal import Executed, Journal
from holdfast.protocol import commands, facts
from holdfast.protocol.audit import LOCAL, ToolCall
from holdfast.protocol.commands import ClaimCommand
from holdfast.protocol.flows import APPROVAL, TOOL
from holdfast.protocol.ledger import audited, slot_of
from holdfast.protocol.state import RunState, Tool
from holdfast.protocol.tools import AnswerTool, RequestTool
from holdfast.protocol.values import clean
from holdfast.redaction import logger

NAME_LENGTH_MAX = 128
POLICIES = ("retry", "fail", "ask")
KEY_NAMES = ("key", "tool_key", "idempotency_key")
log = logger("holdfast.tools")

Function = Callable[..., Any]
OnUnknown = str | Callable[[Any, str], Any]
"""`retry`, `fail`, `ask`, or a function of (args, key) that finds out what became of the call."""

tool_key: ContextVar[str | None] = ContextVar("holdfast_tool_key", default=None)
"""The key of the tool that is just running."""

_KNOWN = """
    SELECT tool_key, name, args_sha256, vendor, parent_id, status, rev, asked_at, tries, calls
    FROM {s}tools WHERE run_id = $1 AND slot = $2
"""
_DECISION = "SELECT rev FROM {s}steps WHERE run_id = $1 AND name = $2 AND occurrence = $3"


class Asked(BaseException):
    """A person must say what became of a tool; the tick gives its claim back until they have."""

    def __init__(self, step: str) -> None:
        super().__init__(step)
        self.step = step


class Holder(Protocol):
    """What tools need of their tick."""

    journal: Journal
    state: RunState
    tick_id: str

    @property
    def speech(self) -> Speech: ...

    def check(self) -> None: ...

    async def order(self, kind: type[ClaimCommand], *, known: bool = True, **fields: Any) -> Executed: ...


class Use(NamedTuple):
    """One use of a tool: where it stands in the handler's work, and with what."""

    slot: str
    name: str
    args: Any
    function: Function
    on_unknown: OnUnknown
    vendor: str
    parent_id: str | None
    persist: bool | None
    kept: bool


class Tools:
    """The tools of one tick. The same use in work that is done again is the same call, and keeps its answer."""

    def __init__(self, tick: Holder, audit: Audit, runnable_key: str) -> None:
        self._tick = tick
        self._audit = audit
        self._runnable_key = runnable_key
        self._uses: dict[tuple[str, str, str], int] = {}

    @property
    def are_used(self) -> bool:
        return bool(self._uses)

    async def use(
        self,
        name: str,
        args: Any,
        function: Function,
        *,
        on_unknown: OnUnknown = "retry",
        vendor: str = LOCAL,
        parent_id: str | None = None,
        persist_payloads: bool | None = None,
        scope: str = "",
        kept: bool = False,
    ) -> Any:
        """What the tool answers. A tool that answered is not run again; one that failed is, by work that is retried."""
        self._tick.check()
        check_name(name, "name", longest=NAME_LENGTH_MAX)
        if not callable(on_unknown) and on_unknown not in POLICIES:
            raise InvalidValue(f"on_unknown is one of {', '.join(POLICIES)} or a function of (args, key)")
        value, _ = clean(args)
        digest = sha256(value)
        where = (scope, name, digest)
        occurrence = self._uses[where] = self._uses.get(where, -1) + 1
        use = Use(
            slot=slot_of(self._runnable_key, scope, name, digest, occurrence),
            name=name,
            args=value,
            function=function,
            on_unknown=on_unknown,
            vendor=check_name(vendor, "vendor"),
            parent_id=None if parent_id is None else check_name(parent_id, "parent_id"),
            persist=persist_payloads,
            kept=kept,
        )
        known = await self._known(use)
        if known is not None and known.status == "completed":
            return await self._answer(known)
        await self._tick.speech.rest()
        if known is not None and known.status == "requested":
            return await self._find_out(use, known)
        return await self._run(use, await self._request(use, again=False))

    async def _known(self, use: Use) -> Tool | None:
        """What earlier ticks left in this slot. Nobody else writes there while this tick holds its claim."""
        if not use.kept:
            return self._tick.state.tools.get(use.slot)
        for row in await self._tick.journal.store.fetch(_KNOWN, self._tick.state.run_id, use.slot):
            names = ("tool_key", "name", "args_sha256", "vendor", "parent_id", "status", "rev", "asked_at")
            return Tool(slot=use.slot, **dict(zip((*names, "tries", "calls"), row, strict=True)), kept=True)
        return None

    async def _answer(self, known: Tool) -> Any:
        run_id = self._tick.state.run_id
        fact = (await self._tick.journal.facts_at([(run_id, known.rev)]))[run_id, known.rev]
        assert isinstance(fact, facts.ToolAnswered)
        return fact.result

    async def _find_out(self, use: Use, known: Tool) -> Any:
        """It was asked for and never answered: whoever ran it is gone, and only its policy can say what that means."""
        if use.on_unknown == "retry":
            return await self._run(use, await self._request(use, again=True))
        if use.on_unknown == "ask":
            return await self._ask(use, known)
        if callable(use.on_unknown):
            probe = use.on_unknown
            return await self._record(use, known.tool_key, lambda: call(probe, use.args, known.tool_key))
        text = f"nobody knows whether tool {use.name} ran: its worker was lost before it answered"
        raise await self._give_up(use, ToolFailed(text, code="tool_unknown"))

    async def _ask(self, use: Use, known: Tool) -> Any:
        """Put the question to a person, or hear their answer: again with the same key, or not at all."""
        step = f"{TOOL}{use.name}:{known.tool_key}"
        decision = await self._decision(step, known.tries)
        if decision is None:
            shown = self._audit.payloads.redaction.masked(use.args)
            notes = {"tool": use.name, "args": shown, "tool_key": known.tool_key, "question": "unknown_tool"}
            await self._tick.order(commands.OpenBoundary, step=step, occurrence=known.tries, metadata=notes)
            # Another question may be open; then this one is asked once that one is answered.
            raise Asked(step)
        if decision.action == "approve":
            return await self._run(use, await self._request(use, again=True))
        text = (
            f"nobody knows whether tool {use.name} ran, and it may not run again: {decision.comment or decision.action}"
        )
        raise await self._give_up(use, ToolFailed(text, code="tool_rejected"))

    async def _decision(self, step: str, occurrence: int) -> facts.ManualStepResolved | None:
        run_id = self._tick.state.run_id
        found = await self._tick.journal.store.fetch(_DECISION, run_id, f"{APPROVAL}{step}", occurrence)
        for (rev,) in found:
            fact = (await self._tick.journal.facts_at([(run_id, rev)]))[run_id, rev]
            assert isinstance(fact, facts.ManualStepResolved)
            return fact
        return None

    async def _request(self, use: Use, *, again: bool) -> str:
        """The tool is in the ledger before it runs; answers its key."""
        payload = self._payload(use.args, use)
        executed = await self._order(
            RequestTool,
            use,
            is_known=use.slot not in self._tick.state.tools,
            tool_key=child_id(self._tick.state.run_id, self._tick.tick_id, "tool", use.slot),
            name=use.name,
            args_sha256=payload.sha256,
            args=self._audit.payloads.redaction.masked(use.args),
            arguments_json=payload.text,
            vendor=use.vendor,
            parent_id=use.parent_id,
            kept=use.kept,
            again=again,
        )
        return executed.state.tools[use.slot].tool_key

    async def _run(self, use: Use, key: str) -> Any:
        takes_key = _takes_two(use.function)
        arguments = (use.args, key) if takes_key else (use.args,)
        return await self._record(use, key, lambda: call(use.function, *arguments))

    async def _record(self, use: Use, key: str, work: Callable[[], Awaitable[Any]]) -> Any:
        """Do the work and record how it ended. Cut off in the middle, nothing is recorded: nobody knows."""
        said: Seqs = []
        with tracing.span(f"{tracing.EXECUTE_TOOL} {use.name}", self._attributes(use, key)):
            try:
                with _inside(key, said):
                    value, repaired = clean(await work())
                self._tick.journal.check_size(facts.Event(type="tool_result", data=value))
            except LeaseLost:
                raise
            except Exception as error:
                await self._give_up(use, error, said)
                raise
        await self._tick.speech.conclude(said)
        payload = self._payload(value, use)
        shown = self._audit.payloads.redaction.masked(value)
        await self._order(
            AnswerTool,
            use,
            status="completed",
            result=value,
            shown=None if shown == value else shown,
            outcome_sha256=payload.sha256,
            outcome_json=payload.text,
            said=tuple(said),
            repaired=repaired,
        )
        _pass_on(said)
        return value

    def _attributes(self, use: Use, key: str) -> dict[str, str]:
        return {
            tracing.OPERATION: tracing.EXECUTE_TOOL,
            tracing.TOOL_NAME: use.name,
            tracing.TOOL_TYPE: "function",
            tracing.TOOL_CALL_ID: key,
            tracing.RUN_ID: self._tick.state.run_id,
        }

    async def _give_up(self, use: Use, error: Exception, said: Seqs | None = None) -> Exception:
        """Record that the call failed; answers the error."""
        await self._tick.speech.conclude(said if said is not None else [])
        kind = error.code if isinstance(error, HoldfastError) else type(error).__name__
        await self._order(
            AnswerTool,
            use,
            status="failed",
            error=self._audit.payloads.error(str(error) or type(error).__name__),
            error_kind=kind,
            said=tuple(said or ()),
        )
        _pass_on(said or [])
        return error

    async def _order(
        self, kind: type[RequestTool] | type[AnswerTool], use: Use, *, is_known: bool = True, **fields: Any
    ) -> Executed:
        # What earlier ticks left is not among what this one carries along, so it is read for the decision.
        executed = await self._tick.order(kind, known=is_known and not use.kept, slot=use.slot, **fields)
        for fact in executed.decision.facts if executed.at is not None else ():
            await self._announce(fact, executed)
        return executed

    async def _announce(self, fact: facts.Fact, executed: Executed) -> None:
        """Tell who listens to the audit. A listener's trouble is not the run's."""
        tool = executed.state.tools.get(getattr(fact, "slot", ""))
        if tool is None or executed.at is None:
            return
        then = replace(executed.state, tools=executed.state.tools.set(tool.slot, replace(tool, status="requested")))
        after = audited(then, fact, executed.state, executed.at)
        if after is None:
            return
        asked = isinstance(fact, facts.ToolRequested)
        old: ToolCall | None = None if asked else replace(after, status="requested", validity=after.created)
        await self._audit.announce(Step(call_key(after.request_id, after.call_id), old, after))

    def _payload(self, value: Any, use: Use) -> Payload:
        """What the audit keeps. A payload that it cannot keep costs the audit the payload, and the run nothing."""
        try:
            return self._audit.payloads.of(value, use.name, use.persist)
        except InvalidValue as error:
            log.warning("the audit keeps only the hash of a payload of tool %s: %s", use.name, error.code)
            return Payload(sha256(value), None)


def _takes_two(function: Function) -> bool:
    """Does it want its key beside its arguments? A second one that has a default is asked for by its name."""
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):
        return False
    placed = [p for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    is_wanted = len(placed) >= 2 and (placed[1].default is placed[1].empty or placed[1].name in KEY_NAMES)
    return is_wanted or any(p.kind is p.VAR_POSITIONAL for p in parameters)


@contextmanager
def _inside(key: str, said: Seqs) -> Iterator[None]:
    """What happens here is the tool's: its key, and its words."""
    keys, speakers = tool_key.set(key), speaker.set(said)
    try:
        yield
    finally:
        speaker.reset(speakers)
        tool_key.reset(keys)


def _pass_on(said: Seqs) -> None:
    """Whoever used the tool has said what it said."""
    outer = speaker.get()
    if outer is not None:
        outer.extend(said)
