"""One tick from inside: what it says is stored at once, what it wants beside its outcome is staged."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Sequence
from typing import Any

import msgspec
from immutables import Map

from holdfast.audit import Audit
from holdfast.errors import Conflict, InvalidValue, NotFound, StorageError
from holdfast.handlers.speech import Said, Seqs, Speech, speaker
from holdfast.handlers.tools import Function, Tools
from holdfast.identity import check_name, new_id
from holdfast.journal import Executed, Journal
from holdfast.protocol import commands, facts
from holdfast.protocol.commands import NOTHING_STAGED, ChildStart, ClaimCommand, Command, OutboxRow, Staged
from holdfast.protocol.facts import ROOT, Parent
from holdfast.protocol.outcomes import Done, Ok
from holdfast.protocol.settle import enqueued
from holdfast.protocol.state import RunState
from holdfast.protocol.values import clean, fingerprint
from holdfast.runtime import RunInfo
from holdfast.runtime.claims import LOST, check_fence
from holdfast.runtime.pulse import Hold
from holdfast.scopes import TickStorage
from holdfast.tracing import Span

SPACE_LENGTH_MAX = 256
TYPE_LENGTH_MAX = 128


class ReceivedSignal(msgspec.Struct, frozen=True, kw_only=True):
    """The signal that brought a tick's input."""

    seq: int
    name: str | None
    has_input: bool
    key: str | None


class Tick:
    """What handlers of one tick share, whichever clogs they belong to."""

    def __init__(self, journal: Journal, state: RunState, tick_id: str) -> None:
        self.journal = journal
        self.state = state
        self.tick_id = tick_id
        self.key = ROOT
        self.attempt = self.deliveries = 0
        self.signal: ReceivedSignal | None = None
        self.parent: Parent | None = None
        self._outbox: list[OutboxRow] = []
        self._children: dict[str, tuple[ChildStart, RunInfo]] = {}
        # Made when they are first used: many ticks only answer.
        self._speech: Speech | None = None
        self._storage: TickStorage | None = None

    @property
    def speech(self) -> Speech:
        if self._speech is None:
            self._speech = Speech(self._say, self.tick_id)
        return self._speech

    @property
    def storage(self) -> TickStorage:
        if self._storage is None:
            self._storage = TickStorage(
                self.journal,
                run_id=self.state.run_id,
                session_id=self.state.session_id,
                user_id=self.state.user_id,
                tick_id=self.tick_id,
                spent=self.state.ticks[self.tick_id].spent,
            )
        return self._storage

    async def conclude(self, said: Seqs) -> None:
        """This speaker has ended; what they said is on disk."""
        if self._speech is not None:
            await self._speech.conclude(said)

    async def last_words(self) -> Sequence[Said]:
        return () if self._speech is None else await self._speech.last_words()

    def close(self) -> None:
        """Say nothing more."""
        if self._speech is not None:
            self._speech.close()
            # They know each other: apart, neither waits for the collector.
            self._speech = None

    @property
    def cancelled(self) -> bool:
        return False

    def check(self) -> None:
        """Raise `LeaseLost` once no effect of this tick may start any more."""

    def staged(self) -> Staged:
        stored = self._storage
        if stored is None and not self._outbox and not self._children:
            return NOTHING_STAGED
        return Staged(
            storage=stored.staged if stored else (),
            outbox=tuple(self._outbox),
            children=tuple(start for start, _ in self._children.values()),
            deletes=stored.deletes if stored else (),
        )

    async def emit(self, said: Sequence[tuple[str, Any]]) -> list[int]:
        self.check()
        return await self.speech.emit(
            [
                Said(check_name(kind, "type", longest=TYPE_LENGTH_MAX), *clean(data), seqs=speaker.get())
                for kind, data in said
            ]
        )

    def stream(self, kind: str, text: str) -> None:
        self.check()
        check_name(kind, "type", longest=TYPE_LENGTH_MAX)
        if not isinstance(text, str):
            raise InvalidValue(f"a stream takes text, got a {type(text).__name__}; use emit for other values")
        if text:
            delta = Said(kind, *clean(text), merged=True, seqs=speaker.get())
            # Nobody waits for a delta, so this is the only moment to refuse it.
            self.journal.check_size(facts.Event(type=kind, data=[self.tick_id, delta.data], tick_id=self.tick_id))
            self.speech.stream(delta)

    async def enqueue(self, target_space: str, payload: Any, key: str | None) -> str:
        """Stage a delivery. The same key and payload again is the same delivery."""
        row, is_known = await self.outbox_row(target_space, payload, key)
        if not is_known:
            self._outbox.append(row)
        return row.outbox_id

    async def outbox_row(self, target_space: str, payload: Any, key: str | None) -> tuple[OutboxRow, bool]:
        """A delivery that could be staged, and whether it is staged or stored already."""
        self.check()
        value, repaired = clean(payload)
        space = check_name(target_space, "target_space", longest=SPACE_LENGTH_MAX)
        row = OutboxRow(
            outbox_id=new_id(),
            target_space=space,
            payload=value,
            payload_sha=fingerprint(value),
            idempotency_key=None if key is None else check_name(key, "key"),
            repaired=repaired,
        )
        self.journal.check_size(*enqueued(self.tick_id, [row]))
        known = await self._known_delivery(row) if key is not None else None
        return (row, False) if known is None else (msgspec.structs.replace(row, outbox_id=known), True)

    async def use_tool(self, name: str, args: Any, function: Function, **options: Any) -> Any:
        raise Conflict("a directly called endpoint uses no tools; use them in a tick of the run")

    def start_child(self, start: ChildStart, info: RunInfo) -> RunInfo:
        raise Conflict("a directly called endpoint starts no children; start them in a tick of the run")

    async def _known_delivery(self, row: OutboxRow) -> str | None:
        staged = [
            (other.outbox_id, other.payload_sha)
            for other in self._outbox
            if (other.target_space, other.idempotency_key) == (row.target_space, row.idempotency_key)
        ]
        sql = "SELECT outbox_id, payload_sha FROM {s}outbox WHERE target_space = $1 AND idempotency_key = $2"
        stored = await self.journal.store.fetch(sql, row.target_space, row.idempotency_key)
        for outbox_id, payload_sha in [*staged, *stored]:
            if payload_sha != row.payload_sha:
                text = f"key {row.idempotency_key!r} was used in {row.target_space} for another payload"
                raise Conflict(f"{text}; choose a new key", code="key_reused")
            return str(outbox_id)
        return None

    async def _say(self, said: Sequence[Said]) -> int:
        raise NotImplementedError


class ClaimedTick(Tick):
    """A tick of the run's own: everything it writes is fenced by its claim."""

    def __init__(
        self, journal: Journal, state: RunState, hold: Hold, signal: ReceivedSignal | None, audit: Audit
    ) -> None:
        super().__init__(journal, state, hold.beat.claim_id)
        self.hold = hold
        beat = hold.beat
        self._fence: dict[str, Any] = {
            "runnable_key": beat.key,
            "claim_id": beat.claim_id,
            "claim_token_hash": beat.claim_token_hash,
        }
        self._audit = audit
        self.signal = signal
        self._tools: Tools | None = None
        work = state.work[hold.beat.key]
        self.attempt, self.deliveries = work.attempt, work.deliveries
        # What the last commit of this tick left behind spares the next one its read.
        self._known: RunState | None = state
        self._first: asyncio.Task[Executed] | None = None
        self._last_words: Sequence[Said] | None = None
        self.key = hold.beat.key
        self.is_flow = False
        self.plan: commands.Plan | None = None
        """Of a workflow: what its planner needs to know about the end of this tick."""
        self.awaits: tuple[str, ...] = ()
        """What wakes the run of a flow before its time."""
        self.span: Span | None = None
        """Of a process that collects spans: this attempt's."""

    @property
    def is_first(self) -> bool:
        """Has the run never been worked on? Then there is nothing to remember."""
        return self.state.ticks[self.tick_id].claimed_rev == 2

    @property
    def tools(self) -> Tools:
        if self._tools is None:
            self._tools = Tools(self, self._audit, self.key)
        return self._tools

    @property
    def cancelled(self) -> bool:
        return self.hold.cancel_requested

    def check(self) -> None:
        self.hold.check()

    async def settle(self, outcome: Any, *, repaired: bool = False, keep_staged: bool = True) -> Executed:
        """End the tick. An outcome that was refused may be followed by another one."""
        if self._first is not None:
            first, self._first = self._first, None
            await first
        if self._last_words is None:
            self._last_words = await self.last_words()
        staged = self.staged() if keep_staged else NOTHING_STAGED
        command = commands.Settle(
            **self._fence,
            **_events(self._last_words),
            outcome=outcome,
            repaired=repaired,
            staged=staged,
            awaits=self.awaits,
            flow=self.is_flow,
            plan=self.plan,
            traceparent=None if self.span is None else self.span.traceparent,
        )
        # Rows of storage, a workflow's steps, what a flow waits for, and the slots that an outcome closes are judged
        # with the commit, so they must be read for it.
        uses_tools = self._tools is not None and self._tools.are_used
        is_alone = self.key == ROOT and not (staged.storage or self.awaits or self.plan or uses_tools)
        known = self._known if is_alone else None
        # A wait or a retry still has to show that its times and words can be kept.
        checked = isinstance(outcome, Ok | Done) and not command.events
        executed = await self.journal.submit(self.state.run_id, command, known=known, checked=checked)
        check_fence(executed, self.state.run_id)
        return executed

    async def order(
        self, kind: type[ClaimCommand], *, known: bool = True, checked: bool = False, **fields: Any
    ) -> Executed:
        """Give a command of this claim's holder. What a refusal means is for the caller, unless the claim is lost.

        `checked`: every field was made by us, or cleaned.
        """
        command = kind(**self._fence, **fields)
        seen = self._known if known else None
        executed = await self._ordered(self.journal.submit(self.state.run_id, command, known=seen, checked=checked))
        if self._first is not None and self._first.done():
            # Not waited for: orders that were given side by side are answered in the order of their commits, and
            # nothing may come between.
            first, self._first = self._first, None
            first.result()
        return executed

    def order_first(self, kind: type[ClaimCommand], **fields: Any) -> None:
        """The same, taken now and not waited for: the next order, or the end of the tick, answers for both."""
        command = kind(**self._fence, **fields)
        ordered = self._ordered(self.journal.submit(self.state.run_id, command, known=self._known))
        self._first = asyncio.get_running_loop().create_task(ordered)
        # A tick that ends without a word, because its claim is lost, needs nobody to hear it twice.
        self._first.add_done_callback(lambda task: task.cancelled() or task.exception())

    async def _ordered(self, submitted: Awaitable[Executed]) -> Executed:
        executed = await submitted
        if executed.decision.refusal in LOST:
            check_fence(executed, self.state.run_id)
        # Steps are never judged twice in one tick; carried along, each would make the next one dearer. So would tools
        # that have their answer.
        tools = executed.state.tools
        if tools:
            open_ones = (tool for tool in tools.values() if tool.status == "requested" and not tool.kept)
            tools = Map({tool.slot: tool for tool in open_ones})
        if self._known is None or self._known.rev < executed.state.rev:
            self._known = msgspec.structs.replace(executed.state, steps=Map(), tools=tools)
        return executed

    async def use_tool(self, name: str, args: Any, function: Function, **options: Any) -> Any:
        return await self.tools.use(name, args, function, **options)

    def close(self) -> None:
        super().close()
        if self._first is not None:
            self._first.cancel()

    async def release(self) -> None:
        """Give the claim back as if it had never been taken."""
        executed = await self.journal.execute(self.state.run_id, commands.Release(**self._fence))
        check_fence(executed, self.state.run_id)

    def start_child(self, start: ChildStart, info: RunInfo) -> RunInfo:
        """Stage the start of a child; of several starts of one child the first stands."""
        self.check()
        self.journal.check_size(
            facts.ChildRunStarted(
                child_run_id=start.child_run_id, clog_id=start.clog_id, child_key=start.child_key, start=start.start
            )
        )
        return self._children.setdefault(start.child_run_id, (start, info))[1]

    def hand_over_child(self, child_run_id: str) -> ChildStart | None:
        """The staged start of this child, which from now on is the caller's business; None if there is none."""
        start, _ = self._children.pop(child_run_id, (None, None))
        return start

    async def _say(self, said: Sequence[Said]) -> int:
        command = commands.Emit(**self._fence, **_events(said))
        executed = await self.journal.execute(self.state.run_id, command, known=self._known)
        check_fence(executed, self.state.run_id)
        self._known = executed.state
        return executed.first_rev


class BegunTick(Tick):
    """A tick for direct calls: it holds no claim and moves no status."""

    async def settle(self, clog_id: str, method: str, error: str | None) -> None:
        """The call returned: what it wrote is kept, what it used up stays used up."""
        if words := await self.last_words():
            await self._say(words)
        command = commands.CallEndpoint(
            tick_id=self.tick_id,
            clog_id=clog_id,
            method=method,
            spent=tuple(sorted(self.storage.spent)),
            error=error,
            staged=self.staged() if error is None else Staged(),
        )
        self._check(await self.journal.execute(self.state.run_id, command))

    async def _say(self, said: Sequence[Said]) -> int:
        command: Command = commands.Speak(tick_id=self.tick_id, **_events(said))
        executed = await self.journal.execute(self.state.run_id, command)
        self._check(executed)
        return executed.first_rev

    def _check(self, executed: Executed) -> None:
        check_begun(executed.decision.refusal, self.state.run_id, self.tick_id)


def _events(said: Sequence[Said]) -> dict[str, Any]:
    """What a command knows of events: which ones, and which of them had to be repaired."""
    if not said:
        return {}
    return {
        "events": tuple((event.type, event.data) for event in said),
        "repairs": tuple(place for place, event in enumerate(said) if event.repaired),
    }


def check_begun(refusal: str | None, run_id: str, tick_id: str) -> None:
    """Raise, in words, why endpoints cannot be called in this tick."""
    match refusal:
        case None:
            return
        case "not_found":
            raise NotFound(f"run {run_id} has no tick {tick_id} for calls; begin one with begin_tick")
        case "tick_active":
            raise Conflict(f"tick {tick_id} is a worker's; call endpoints in a tick of begin_tick", code="tick_active")
        case "STORAGE_CONFLICT":
            raise StorageError("a row was changed since this call read it; nothing was written", code=refusal)
        case "STORAGE_WRITE_ALREADY_CALLED":
            raise StorageError("another call wrote in this tick meanwhile; nothing was written", code=refusal)
        case _:
            raise Conflict(f"run {run_id} refused this call: {refusal}", code=refusal)
