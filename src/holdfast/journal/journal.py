"""The journal: append, read, checkpoints, views, and every past moment of a run.

Here protocol and store meet. A command becomes an intention, an intention becomes entries and rows in one commit,
and the state of any revision or instant can be folded again from the entries alone.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Coroutine, Mapping, Sequence
from typing import Any, NamedTuple, TypeVar

import msgspec

from holdfast.errors import Conflict, HoldfastError, InvalidEntry, NotFound
from holdfast.identity import check_id, check_name
from holdfast.journal import boundaries, dead_letters, handoffs, lanes, schedules, wakeups
from holdfast.journal.checks import check_command, check_fact
from holdfast.journal.entries import (
    RUN_PREFIX,
    JournalEntry,
    decoded,
    fact_of,
    is_whole,
    line,
    line_from,
    line_of,
    missing,
    proved,
)
from holdfast.journal.observing import Observer
from holdfast.journal.planner import Executed, Limits, RunPlanner, member, plan_command, plan_facts, request_for
from holdfast.journal.redacting import redacted
from holdfast.protocol import catalog, facts
from holdfast.protocol.beginning import begun
from holdfast.protocol.commands import Claim, Command, Create
from holdfast.protocol.decisions import Decision
from holdfast.protocol.evolve import fold
from holdfast.protocol.facts import Fact, WorkflowStarted
from holdfast.protocol.state import PENDING, UNKNOWN, RunState, Work
from holdfast.protocol.values import canonical, clean, digest, whole_number
from holdfast.redaction import Redaction
from holdfast.store import Claimed, ClaimRequest, Committed, Entry, Intention, SliceRequest, Statement, Store

P = TypeVar("P")
BATCH = 500
REV_MAX = (1 << 31) - 1
POSITION_MAX = (1 << 62) - 1


class Swept(NamedTuple):
    """What a sweep found, and how long it is until a schedule has its next window; None if none has."""

    found: int
    window_us: int | None


class Journal:
    """One append-only journal. Threads of runs are folded and indexed as they grow; others are just kept."""

    def __init__(
        self,
        store: Store[RunState],
        limits: Limits | None = None,
        notifier: wakeups.Notifier | None = None,
        redaction: Redaction | None = None,
    ) -> None:
        self._store = store
        self._limits = limits or Limits()
        self._notifier = notifier
        self._redaction = redaction or Redaction()
        self._deliveries: set[asyncio.Task[None]] = set()
        self.observer: Observer | None = None
        """Who is told of every command that is carried out or refused here."""

    @property
    def store(self) -> Store[RunState]:
        return self._store

    @property
    def redaction(self) -> Redaction:
        """What people look at goes through this."""
        return self._redaction

    @property
    def is_busy(self) -> bool:
        """Are handoffs, promotions or wakeups on their way?"""
        return bool(self._deliveries)

    async def close(self) -> None:
        """Wait for handoffs on their way; those that do not arrive are found by the next sweep."""
        await asyncio.gather(*self._deliveries, return_exceptions=True)

    async def append(self, thread: str, entries: Sequence[dict[str, Any]], expected_rev: int | None = None) -> int:
        """Add entries and answer the thread's new head; a stale `expected_rev` raises `Conflict`, nothing written.

        On a run's thread the facts are folded and the rows written in the same commit.
        """
        check_name(thread, "thread")
        if expected_rev is not None:
            whole_number(expected_rev, "expected_rev", 0, REV_MAX)
        if not isinstance(entries, list | tuple) or not entries:
            raise InvalidEntry("nothing to append; give a list of at least one entry")
        if _view(thread) is not None:
            raise Conflict(f"{thread} is a view of the runs' threads; append to run:<run_id>", code="reserved_thread")
        lines = [line_from(entry, max_bytes=self._limits.max_body_bytes) for entry in entries]
        if not thread.startswith(RUN_PREFIX):
            return await self._store.append(thread, lines, expected_rev)
        run_id = check_id(thread.removeprefix(RUN_PREFIX), "run_id")
        given = [(facts.from_value(line.kind, msgspec.json.decode(line.data)), line) for line in lines]
        for fact, _ in given:
            check_fact(fact)
        committed = await self._store.commit(
            Intention(request=SliceRequest(run_id, whole=True), plan=plan_facts(given, expected_rev), exact=True)
        )
        await self._promote(committed.plan.after)
        return committed.first_rev + len(given) - 1

    async def read(self, thread: str, after: int = 0, limit: int | None = None) -> list[JournalEntry]:
        """Entries in order, each proved, up to the recorded head. `after` is a revision; on a view it is a position."""
        check_name(thread, "thread")
        _check_range(after, limit)
        if _view(thread) is not None:
            return [decoded(entry) for entry in await self._read_view(thread, after, limit)]
        return [decoded(entry) for entry in await self._read_thread(thread, after, limit)]

    async def tail(self, cursors: Mapping[str, int], limit: int = 1_000) -> list[JournalEntry]:
        """What is new on several threads, each after its own revision.

        Never by position alone: an entry with a lower one may still be on its way to commit.
        """
        for thread, after in cursors.items():
            check_name(thread, "thread")
            _check_range(after, limit)
        entries = await self._store.tail(cursors, limit)
        for thread, after in cursors.items():
            list(proved((entry for entry in entries if entry.thread == thread), after=after))
        return [decoded(entry) for entry in entries]

    async def save_checkpoint(self, thread: str, rev: int, state: Any) -> None:
        """Remember a projection and the exact revision it covers, in place of the last one."""
        check_name(thread, "thread")
        whole_number(rev, "rev", 0, REV_MAX)
        value, _ = clean(state)
        text = line("checkpoint", canonical(value), max_bytes=self._limits.max_body_bytes).data
        await self._store.save_checkpoint(thread, rev, text, digest(str(rev), text))

    async def load_checkpoint(self, thread: str) -> tuple[int, Any] | None:
        """The checkpoint, or None if there is none that can be trusted: the thread is the truth."""
        saved = await self._store.load_checkpoint(check_name(thread, "thread"))
        if saved is None:
            return None
        rev, text, proof = saved
        heads = await self._store.heads([thread])
        if digest(str(rev), text) != proof or rev > heads.get(thread, 0):
            return None
        return rev, msgspec.json.decode(text)

    async def project(self, thread: str, start: P, step: Callable[[P, JournalEntry], P]) -> P:
        """Fold a thread with a caller's own projection, from its checkpoint if that can be trusted."""
        saved = await self.load_checkpoint(thread)
        after, state = saved if saved is not None else (0, start)
        for entry in await self.read(thread, after):
            state = step(state, entry)
        return state

    async def execute(
        self,
        run_id: str,
        command: Command,
        *,
        known: RunState | None = None,
        exact: bool = False,
        closes: tuple[str, str] | None = None,
        guard: Statement | None = None,
    ) -> Executed:
        """Decide, commit, evolve. When this returns, the answer is on disk.

        A `guard` is a statement that must change a row in the same commit; where it does not, nothing is written.
        """
        return await self.submit(run_id, command, known=known, exact=exact, closes=closes, guard=guard)

    def submit(
        self,
        run_id: str,
        command: Command,
        *,
        known: RunState | None = None,
        exact: bool = False,
        closes: tuple[str, str] | None = None,
        guard: Statement | None = None,
        checked: bool = False,
    ) -> Coroutine[Any, Any, Executed]:
        """The same in two halves: the command is taken now, in the order of the calls; its answer may be awaited.

        `checked`: every field of the command was made by us, or cleaned.
        """
        if not checked:
            check_id(run_id, "run_id")
            check_command(command)
        command = redacted(command, self._redaction, max_bytes=self._limits.max_body_bytes)
        request = request_for(run_id, command)
        intention = Intention(
            request=request,
            plan=plan_command(command, self._limits, closes=closes, guard=guard),
            known=known,
            # What is shared with other runs, looks at all of this one, or has statements of its own, is decided
            # behind the locks.
            exact=exact or bool(request.shared or request.whole or getattr(command, "statements", ()) or guard),
        )
        return self._executed(run_id, command, self._store.submit(intention))

    def submit_claim(self, run_id: str, command: Claim) -> Coroutine[Any, Any, Executed]:
        """Claim a run whose creation was submitted just before: both are one commit, unless others come between."""
        intention = Intention(
            # No claim is named, as in the request of the creation: of a run that is not there yet both know all.
            request=SliceRequest(run_id),
            plan=plan_command(command, self._limits),
            known=RunState(run_id=run_id),
        )
        return self._executed(run_id, command, self._store.submit(intention))

    async def _executed(
        self, run_id: str, command: Command, submitted: asyncio.Future[Committed[RunState]]
    ) -> Executed:
        committed = await submitted
        plan = committed.plan
        state = plan.after if committed.at is None else plan.after.resolved(committed.at)
        decision: Decision = plan.answer
        executed = Executed(decision, state, committed.at, committed.first_rev)
        if self.observer is not None:
            self.observer.executed(command, executed)
        if committed.at is not None:
            self._deliver_soon(run_id, committed.first_rev, decision)
            if state.lane is not None:
                await self._promote(state)
            if self._notifier is not None:
                self._tell_soon([(state, decision.facts)], committed.at)
        return executed

    async def create_all(self, creations: Sequence[tuple[str, Create]]) -> list[RunState]:
        """Create many runs in one commit, all or none. Keys and ids must be free, and every field checked."""
        members, states = [], []
        for run_id, given in creations:
            command = redacted(given, self._redaction, max_bytes=self._limits.max_body_bytes)
            # Several of one lane may come together, so none enters before all of them stand in it.
            before = RunState(run_id=run_id, lane_head=UNKNOWN)
            plan = plan_command(command, self._limits)(before, 0, PENDING)
            members.append(member(before, plan.after, [plan]))
            states.append(plan.after)
        at = await self._store.create_all(members)
        if self.observer is not None:
            self.observer.created(len(members))
        created = [state.resolved(at) for state in states]
        for state in {(state.session_id, state.lane): state for state in created}.values():
            await self._promote(state)
        if self._notifier is not None:
            told = [(state, (command.fact,)) for state, (_, command) in zip(created, creations, strict=True)]
            self._tell_soon(told, at)
        return created

    def check_size(self, *staged: Fact) -> None:
        """Raise `InvalidValue` at once for what a later commit would find too large to keep."""
        for fact in staged:
            line_of(fact, max_bytes=self._limits.max_body_bytes)

    async def claim(self, request: ClaimRequest) -> list[Claimed]:
        return await self._store.claim(request)

    def begun(self, item: Claimed, claimed: facts.AttemptClaimed) -> tuple[RunState, Fact] | None:
        """The run after its first claim and the fact that made it; None where its one entry does not tell all."""
        first = item.first
        if first is None or not is_whole(first):
            return None
        created = fact_of(first)
        if not isinstance(created, facts.RunCreated) or created.lane is not None or not created.has_input:
            # Who else stands in a lane is told by rows alone.
            return None
        return begun(item.run_id, created, first.at, first.digest.hex(), claimed, item.at), created

    async def state(self, run_id: str, *, rev: int | None = None, at: int | None = None) -> RunState | None:
        """The run folded from its entries: now, after a revision, or as it was at an instant.

        None before its first entry, and once it is deleted; a revision that is not there yet raises `NotFound`.
        """
        if rev is not None and whole_number(rev, "as_of", -POSITION_MAX, POSITION_MAX) < 1:
            return None
        entries = await self.facts(run_id, limit=None if rev is None else min(rev, REV_MAX), until_at=at)
        if not entries or await self._store.gone_among([run_id]):
            return None
        if rev is not None and entries[-1][0].rev < rev:
            raise NotFound(f"run:{run_id} is at revision {entries[-1][0].rev}; {rev} does not exist yet")
        return fold(RunState(run_id=run_id), ((fact, entry.at) for entry, fact in entries))

    async def facts(
        self, run_id: str, after: int = 0, limit: int | None = None, *, until_at: int | None = None
    ) -> list[tuple[Entry, Fact]]:
        """The run's entries with their facts, each proved."""
        _check_range(after, limit)
        entries = await self._read_thread(RUN_PREFIX + run_id, after, limit, until_at=until_at)
        return [(entry, fact_of(entry)) for entry in entries]

    async def facts_at(self, places: Sequence[tuple[str, int]]) -> dict[tuple[str, int], Fact]:
        """The facts at these revisions of these runs, each proved."""
        return {place: fact for place, (fact, _) in (await self.told_at(places)).items()}

    async def told_at(self, places: Sequence[tuple[str, int]]) -> dict[tuple[str, int], tuple[Fact, int]]:
        """The same with the instant of each."""
        entries = await self._store.entries_at([(RUN_PREFIX + run_id, rev) for run_id, rev in places])
        for run_id, rev in places:
            entry = entries.get((RUN_PREFIX + run_id, rev))
            if entry is None:
                raise missing(RUN_PREFIX + run_id, rev)
            list(proved([entry], after=rev - 1))
        return {
            (thread.removeprefix(RUN_PREFIX), rev): (fact_of(entry), entry.at)
            for (thread, rev), entry in entries.items()
        }

    async def definition(self, state: RunState) -> WorkflowStarted | None:
        """The workflow that the run follows, as the run remembers it; None for a run that follows none."""
        if state.definition_rev is None:
            return None
        place = (state.run_id, state.definition_rev)
        fact = (await self.facts_at([place]))[place]
        assert isinstance(fact, WorkflowStarted)
        return fact

    async def slices(
        self, run_ids: Sequence[str], *, tick_id: str = "", with_steps: bool = False
    ) -> dict[str, RunState]:
        """Runs as their rows show them, without reading their history. Unknown ids are left out.

        Of a run's ticks the open ones are shown, and the one that is named; on request the steps of its workflow.
        """
        wanted = "all" if with_steps else ""
        requests = [SliceRequest(run_id, claim_id=tick_id, planner=wanted) for run_id in run_ids]
        seen = await self._store.slices(requests)
        planner = RunPlanner()
        return {
            run_id: planner.open(run_id, part)
            for run_id, part in zip(run_ids, seen, strict=True)
            if part.run is not None
        }

    async def view_facts(self, thread: str) -> list[tuple[str, Fact, int]]:
        """A view as (run id, fact, instant), for its pure fold."""
        entries = await self._read_view(thread, 0, None)
        return [(entry.thread.removeprefix(RUN_PREFIX), fact_of(entry), entry.at) for entry in entries]

    async def settle_down(self, run_id: str) -> None:
        """Deliver the open handoffs that concern this run, and let the next one into its lane."""
        await handoffs.deliver_all(self, run_id)
        for state in (await self.slices([run_id])).values():
            await self._promote(state)

    async def sweep(self) -> int:
        """Deliver every open handoff, fill every free lane, close what nobody answered, start what is scheduled.

        Answers how much there was. Safe to repeat anywhere.
        """
        return (await self.sweep_and_look()).found

    async def sweep_and_look(self) -> Swept:
        """The same, for those who mean to be there when the next window of a schedule comes."""
        found = 0
        timers = await self._store.next_timers()
        if timers.handoff or timers.free_lane:
            found = await handoffs.sweep(self) + await lanes.sweep(self)
            timers = await self._store.next_timers()
        if timers.dead_letter is not None:
            found += await dead_letters.sweep(self)
        if timers.question is None and timers.window is None:
            # Most of the time nothing has a time of its own, and then nobody needs to ask what time it is.
            return Swept(found, None)
        now = await self._store.now()
        if timers.question is not None and timers.question <= now:
            found += await boundaries.sweep(self, now)
        if timers.window is None or timers.window > now:
            return Swept(found, None if timers.window is None else timers.window - now)
        moved = await schedules.sweep(self, now)
        # Whoever moved one on does not know yet where to; whoever could not leaves it to others.
        return Swept(found + moved, 0 if moved else None)

    def tell_of_dead_letters(self) -> None:
        """Runs whose deliveries were just given up hear of it soon."""
        self.soon(self._tell_of_dead_letters())

    async def _tell_of_dead_letters(self) -> None:
        await dead_letters.sweep(self)

    async def _read_thread(
        self, thread: str, after: int, limit: int | None, *, until_at: int | None = None
    ) -> list[Entry]:
        """A thread's entries, each proved. Lost ones are missed between others and at the end: rows know the head."""
        # The head first: what is committed between the two reads only adds entries.
        head, head_at = await self._recorded_head(thread)
        entries = list(proved(await self._store.read(thread, after, limit, until_at=until_at), after=after))
        reached = entries[-1].rev if entries else after
        cut = limit is not None and len(entries) >= limit
        if reached < head and not cut and (until_at is None or head_at <= until_at):
            raise missing(thread, reached + 1)
        return entries

    async def _recorded_head(self, thread: str) -> tuple[int, int]:
        """The revision and instant that the rows give as the thread's last; zeros where they say nothing."""
        if thread.startswith(RUN_PREFIX):
            sql = """
                SELECT rev, at FROM {s}runs WHERE run_id = $1
                UNION ALL
                SELECT rev, at FROM {s}tombstones WHERE run_id = $1 AND rev > 0
            """
            name = thread.removeprefix(RUN_PREFIX)
        else:
            sql, name = "SELECT rev, at FROM {s}threads WHERE thread = $1", thread
        for rev, at in await self._store.fetch(sql, name):
            return rev, at
        return 0, 0

    async def check_unused(self, run_ids: Sequence[str]) -> None:
        """Runs that were removed with their threads left nothing that a creation would run into."""
        for run_id in await self._store.gone_among(run_ids):
            raise Conflict(f"run {run_id} was deleted, and an id is never used again", code="id_reused")

    async def _read_view(self, thread: str, after: int, limit: int | None) -> list[Entry]:
        view = _view(thread)
        assert view is not None
        condition, value, kinds = view
        entries = await self._store.read_view(condition, value, kinds, after, limit)
        for entry in entries:
            # Revisions may be apart here, so each entry is proved alone.
            list(proved([entry], after=entry.rev - 1))
        return entries

    def _deliver_soon(self, run_id: str, first_rev: int, decision: Decision) -> None:
        for handoff in decision.handoffs:
            open_handoff = handoffs.OpenHandoff(handoff.target_run_id, run_id, handoff.kind, first_rev + handoff.fact)
            self.soon(handoffs.deliver(self, open_handoff, decision.facts[handoff.fact]))

    async def _promote(self, state: RunState) -> None:
        """Whoever queued up in a lane or left it looks whose turn it is, and answers when the next one is due."""
        if state.lane is not None and not (state.ticket and state.ticket.held):
            await asyncio.shield(self.soon(lanes.promote(self, state.session_id, state.lane)))

    def _tell_soon(self, changed: Sequence[tuple[RunState, Sequence[Fact]]], at: int) -> None:
        assert self._notifier is not None
        by_queue: dict[str, list[tuple[str, Work]]] = {}
        for state, decided in changed:
            for work in wakeups.due_work(state, decided, at):
                by_queue.setdefault(state.queue, []).append((state.run_id, work))
        for queue, due in by_queue.items():
            self.soon(wakeups.tell(self, self._notifier, queue, due))

    def soon(self, delivery: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Now if possible. A failure costs time only: what must happen stands in rows that the sweep reads."""
        task = asyncio.create_task(_quietly(delivery))
        self._deliveries.add(task)
        task.add_done_callback(self._deliveries.discard)
        return task


async def _quietly(delivery: Coroutine[Any, Any, None]) -> None:
    with contextlib.suppress(HoldfastError):
        await delivery


def _check_range(after: int, limit: int | None) -> None:
    whole_number(after, "after", 0, POSITION_MAX)
    if limit is not None:
        whole_number(limit, "limit", 0, REV_MAX)


def _view(thread: str) -> tuple[str, str, tuple[str, ...] | None] | None:
    """How a view is selected, or None for a thread of its own."""
    if thread == "catalog":
        return "all", "", catalog.KINDS
    kind, _, name = thread.partition(":")
    if kind == "dispatch":
        return "queue", name, _DISPATCH_KINDS
    if kind == "run_index":
        return "clog", name, catalog.KINDS
    return None


_DISPATCH_KINDS = tuple(kind for kind in facts.KINDS if kind != "event")
"""Everything that moves a run in its queue; what handlers say to people does not."""
