"""The private committer: many callers' intentions, one commit, one answer each.

While a commit is in flight the next batch gathers; there is no artificial delay. Intentions of one run are folded in
order (plan → state → plan …) and go as one member. A member that lost its race is planned again on a fresh read;
after three losses it takes the locks first. A COMMIT that raised may still have committed: every commit leaves its
`commit_id` in the entries it wrote, and nothing is planned again before the database has said whether they are there.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Generic, TypeVar

from holdfast import ambient
from holdfast.errors import DatabaseError
from holdfast.store.database import Database
from holdfast.store.news import topics
from holdfast.store.tables import PENDING
from holdfast.store.types import (
    Busy,
    Committed,
    Intention,
    Mark,
    Member,
    OutcomeUnknown,
    Plan,
    Planner,
    Rejected,
    S,
    Slice,
    Written,
    merged,
)

T = TypeVar("T")
BATCH_MEMBERS_MAX = 500
BATCH_BYTES_MAX = 1 << 20
LOSSES_BEFORE_LOCK = 3
CROWD_MIN = 8
"""Fewer who come back together are not worth two commits."""
CROWD_FLIGHT_S = 100e-6
"""For each member. A commit that takes longer is mostly waited for, and two halves would wait twice."""
CROWD_TURNS = 2
"""Of the event loop, from an answer to the next wish: one, and another where a task stands between."""
PATIENCE_S = 30.0


class _Wish(Generic[S]):
    """An intention on its way to its answer."""

    __slots__ = ("claim_id", "future", "intention", "known", "losses", "run_id", "suspects")

    def __init__(self, intention: Intention[S]) -> None:
        self.intention = intention
        self.run_id = intention.request.run_id
        self.claim_id = intention.request.claim_id
        self.known = intention.known
        self.losses = 0
        self.suspects: list[tuple[Mark, int, Plan[S]]] = []
        self.future: asyncio.Future[Committed[S]] = asyncio.get_running_loop().create_future()

    def answer(self, committed: Committed[S]) -> None:
        if not self.future.done():
            self.future.set_result(committed)

    def fail(self, error: BaseException) -> None:
        if not self.future.done():
            self.future.set_exception(error)


class _Fold(Generic[S]):
    """The wishes of one run, folded onto one state."""

    def __init__(self, state: S, head: int, now: int, claims: frozenset[str] = frozenset()) -> None:
        self.before = self.after = state
        self.head = head
        self.now = now
        self.claims = claims
        """Whose part of the run the state shows. Another claim's ticks and anomalies may be missing from it."""
        self.plans: list[tuple[_Wish[S], Plan[S], int]] = []
        self.length = 0
        self.weight = 0
        """How long the bodies of its entries are."""

    def add(self, wish: _Wish[S], at: int) -> None:
        plan = wish.intention.plan(self.after, self.now, at)
        self.plans.append((wish, plan, self.head + self.length + 1))
        self.length += len(plan.entries)
        for entry in plan.entries:
            self.weight += len(entry.data)
        self.after = plan.after

    def answer(self, at: int | None) -> None:
        for wish, plan, first_rev in self.plans:
            wish.answer(Committed(plan, at if plan.entries else None, first_rev))


class Committer(Generic[S]):
    """Group commit over one database. `commits` and `members` count what was written, for measurement."""

    def __init__(
        self,
        database: Database,
        planner: Planner[S],
        on_commit: Callable[[Sequence[Member], Sequence[str]], None],
        wanted: Callable[[set[str]], set[str]],
        *,
        grouped: bool = True,
    ) -> None:
        self._database = database
        self._planner = planner
        self._on_commit = on_commit
        self._wanted = wanted
        self._members_max = BATCH_MEMBERS_MAX if grouped else 1
        self._waiting: list[_Wish[S]] = []
        self._fresh: dict[str, tuple[_Fold[S], int]] = {}
        self._held: list[tuple[_Fold[S], int]] = []
        self._flusher: asyncio.Task[None] | None = None
        self._exact: set[asyncio.Task[None]] = set()
        self.commits = 0
        self.members = 0
        self.intentions = 0

    def submit(self, intention: Intention[S]) -> asyncio.Future[Committed[S]]:
        """Take the intention now, behind those of its run that were taken before.

        When this is answered, the intention is on disk, or its plan had nothing to write.
        """
        wish = _Wish(intention)
        self._enqueue(wish)
        return wish.future

    async def commit(self, intention: Intention[S]) -> Committed[S]:
        """The same, waited for."""
        return await self.submit(intention)

    async def close(self) -> None:
        """Wait for what is in flight."""
        while self._flusher or self._exact:
            await asyncio.gather(*filter(None, [self._flusher, *self._exact]), return_exceptions=True)
            await asyncio.sleep(0)

    def _enqueue(self, wish: _Wish[S]) -> None:
        if wish.intention.exact or wish.losses >= LOSSES_BEFORE_LOCK:
            task = asyncio.create_task(self._commit_locked(wish))
            self._exact.add(task)
            task.add_done_callback(self._exact.discard)
            return
        self._waiting.append(wish)
        if self._flusher is None:
            self._flusher = asyncio.create_task(self._flush_all())

    async def _flush_all(self) -> None:
        # Let everything that is ready to run now join the first batch.
        await asyncio.sleep(0)
        try:
            while self._waiting:
                batch, self._waiting = self._waiting[: self._members_max], self._waiting[self._members_max :]
                await self._flush([wish for wish in batch if not wish.future.done()])
                await self._hear_from_first_half()
        finally:
            self._let_go()
            self._flusher = None

    async def _hear_from_first_half(self) -> None:
        """Give those of a crowd who are answered the time to say what they want next."""
        for _ in range(CROWD_TURNS):
            if self._waiting or not self._held:
                return
            await asyncio.sleep(0)

    def _let_go(self) -> None:
        """Answer the other half as soon as what we are about to do must be waited for."""
        if self._held:
            asyncio.get_running_loop().call_soon(self._answer_held)

    def _answer_held(self) -> None:
        held, self._held = self._held, []
        for fold, at in held:
            fold.answer(at)

    async def _flush(self, batch: list[_Wish[S]]) -> None:
        self._let_go()
        try:
            for chunk in _chunks(await self._fold(batch)):
                await self._write(chunk)
        except Exception as error:
            # What is on disk is no failure.
            self._answer_held()
            for wish in batch:
                wish.fail(error)

    async def _fold(self, batch: list[_Wish[S]]) -> list[_Fold[S]]:
        """Read what is not known, then plan every wish on what its run's earlier wishes leave behind."""
        by_run: dict[str, list[_Wish[S]]] = {}
        for wish in batch:
            by_run.setdefault(wish.run_id, []).append(wish)
        unread = {run_id: wishes for run_id, wishes in by_run.items() if not _are_known(wishes)}
        folds = await self._read_folds(unread)
        for run_id, wishes in by_run.items():
            if run_id not in unread:
                known = self._known(wishes[0])
                folds[run_id] = _Fold(known, self._planner.head(known), 0, _claims(wishes))
        for run_id, wishes in by_run.items():
            for wish in wishes:
                try:
                    if not (wish.suspects and await self._answered_before(wish, folds[run_id].head)):
                        folds[run_id].add(wish, PENDING)
                except Exception as error:
                    wish.fail(error)
        self._fresh.clear()
        return list(folds.values())

    async def _read_folds(self, unread: dict[str, list[_Wish[S]]]) -> dict[str, _Fold[S]]:
        if not unread:
            return {}
        requests = [wish.intention.request for wishes in unread.values() for wish in wishes]
        seen = iter(await patiently(lambda: self._database.read_slices(requests)))
        folds: dict[str, _Fold[S]] = {}
        for run_id, wishes in unread.items():
            # All parts are of one snapshot, so together they are one larger slice.
            whole = merged([next(seen) for _ in wishes])
            state = self._planner.open(run_id, whole)
            folds[run_id] = _Fold(state, self._planner.head(state), whole.now, _claims(wishes))
        return folds

    def _known(self, wish: _Wish[S]) -> S:
        """The newest state we can plan on without reading: what the last batch left, if it is newer."""
        assert wish.known is not None
        fold, at = self._fresh.get(wish.run_id, (None, 0))
        if fold is None or wish.claim_id not in fold.claims:
            return wish.known
        if self._planner.head(fold.after) <= self._planner.head(wish.known):
            return wish.known
        return self._planner.resolved(fold.after, at)

    async def _write(self, folds: list[_Fold[S]]) -> None:
        self._let_go()
        writing = [fold for fold in folds if fold.length]
        for fold in folds:
            if not fold.length:
                fold.answer(None)
        if not writing:
            return
        members = [self._member(fold) for fold in writing]
        commit_id = ambient.random_bits(62)
        # Alone, its news travels with it. Commits that carry news wait for each other in the database's one queue of
        # them, disk and all, so where there are many they go without and tell afterwards.
        news = sorted(self._wanted(topics(members))) if len(members) == 1 else ()
        begun = ambient.monotonic()
        try:
            written = await patiently(lambda: self._database.write(members, commit_id, news))
        except OutcomeUnknown:
            written = await self._find_out(writing, members, commit_id)
        except Rejected as error:
            await self._halve(writing, error)
            return
        was_quick = ambient.monotonic() - begun < CROWD_FLIGHT_S * len(members)
        self._settle(writing, members, written, told=news, was_quick=was_quick)

    def _member(self, fold: _Fold[S]) -> Member:
        return self._planner.member(fold.before, fold.after, [plan for _, plan, _ in fold.plans])

    async def _find_out(self, folds: list[_Fold[S]], members: list[Member], commit_id: int) -> list[Written]:
        """The connection died. Ask whether the commit is there; what is not there now may still arrive."""
        marks = [Mark(member.thread, member.expected_rev + 1) for member in members]
        landed = await patiently(lambda: self._database.landed(marks, commit_id))
        for fold, mark in zip(folds, marks, strict=True):
            if mark not in landed:
                for wish, plan, first_rev in fold.plans:
                    wish.suspects.append((Mark(mark.thread, first_rev), commit_id, plan))
        return [Written(landed.get(mark), mark.rev - 1) for mark in marks]

    async def _halve(self, folds: list[_Fold[S]], error: Rejected) -> None:
        """One poisoned member must not fail its neighbours."""
        if len(folds) > 1:
            middle = len(folds) // 2
            await self._write(folds[:middle])
            await self._write(folds[middle:])
            return
        # Alone: a key or an id that someone else took meanwhile shows itself on a fresh read.
        for wish, _, _ in folds[0].plans:
            self._lose(wish, _refused(error))

    def _settle(
        self,
        folds: list[_Fold[S]],
        members: list[Member],
        written: Sequence[Written],
        *,
        told: Sequence[str],
        was_quick: bool,
    ) -> None:
        accepted: list[Member] = []
        landed: list[tuple[_Fold[S], int]] = []
        for fold, member, result in zip(folds, members, written, strict=True):
            if result.at is None:
                for wish, _, _ in fold.plans:
                    self._lose(wish, None)
                continue
            accepted.append(member)
            landed.append((fold, result.at))
            self._fresh[member.run_id] = (fold, result.at)
        if accepted:
            # Before anybody is answered: whoever waits for news should not have to wait for them too.
            self._count(accepted, sum(len(fold.plans) for fold, _ in landed), told)
        # Those who wait for one commit come back together and wait together again: the database rests while we work,
        # and we while it works. Answered in two halves, one is worked on while the other is written.
        is_crowd = was_quick and len(landed) >= CROWD_MIN and not self._waiting and self._database.is_apart
        first = len(landed) // 2 if is_crowd else len(landed)
        self._held += landed[first:]
        for fold, at in landed[:first]:
            fold.answer(at)

    def _count(self, accepted: list[Member], intentions: int, told: Sequence[str] = ()) -> None:
        self.commits += 1
        self.members += len(accepted)
        self.intentions += intentions
        self._on_commit(accepted, told)

    def _lose(self, wish: _Wish[S], error: DatabaseError | None) -> None:
        wish.known = None
        wish.losses += 1
        if error is not None and wish.losses > LOSSES_BEFORE_LOCK:
            wish.fail(error)
            return
        self._enqueue(wish)

    async def _answered_before(self, wish: _Wish[S], head: int) -> bool:
        """Did a commit of unknown fate succeed after all? Certain once the run's head has reached its revision."""
        for mark, commit_id, plan in wish.suspects:
            if mark.rev <= head:
                at = await self._landed_at(mark, commit_id)
                if at is not None:
                    wish.answer(Committed(plan, at, mark.rev))
                    return True
        return False

    async def _landed_at(self, mark: Mark, commit_id: int) -> int | None:
        landed = await patiently(lambda: self._database.landed([mark], commit_id))
        return landed.get(mark)

    async def _commit_locked(self, wish: _Wish[S]) -> None:
        """Lock first, decide with the very instant, write: for wishes that keep losing, or need the exact time."""
        patience = Patience()
        try:
            while not await self._try_locked(wish, patience):
                pass
        except Exception as error:
            wish.fail(error)

    async def _try_locked(self, wish: _Wish[S], patience: Patience) -> bool:
        """True once the wish is answered; False to try again."""
        commit_id = ambient.random_bits(62)
        folds: list[_Fold[S]] = []

        def plan(seen: Slice, at: int) -> Member | None:
            state = self._planner.open(wish.run_id, seen)
            fold = _Fold(state, self._planner.head(state), at)
            folds.append(fold)
            if any(mark.rev <= fold.head for mark, _, _ in wish.suspects):
                return None
            fold.add(wish, at)
            return self._member(fold) if fold.length else None

        try:
            at = await patiently(lambda: self._database.write_locked(wish.intention.request, plan, commit_id))
        except OutcomeUnknown as error:
            for _, decided, first_rev in folds[-1].plans if folds else ():
                wish.suspects.append((Mark(f"run:{wish.run_id}", first_rev), commit_id, decided))
            await patience.pause(error)
            return False
        except Rejected as error:
            wish.losses += 1
            if wish.losses > 2 * LOSSES_BEFORE_LOCK:
                raise _refused(error) from error
            return False
        fold = folds[-1]
        if not fold.plans:
            answered = await self._answered_before(wish, fold.head)
            wish.suspects = [suspect for suspect in wish.suspects if suspect[0].rev > fold.head]
            return answered
        fold.answer(at)
        if at is not None:
            self._count([self._member(fold)], 1)
        return True


def _are_known(wishes: Sequence[_Wish[Any]]) -> bool:
    """Can all of them be planned on what one of them knows? Only if they speak of one claim."""
    if len(wishes) == 1:
        return wishes[0].known is not None
    return len(_claims(wishes)) == 1 and all(wish.known is not None for wish in wishes)


def _claims(wishes: Sequence[_Wish[Any]]) -> frozenset[str]:
    return frozenset([wish.claim_id for wish in wishes])


def _refused(error: Rejected) -> DatabaseError:
    return DatabaseError(f"the database refused this write: {error}", code="write_rejected")


class Patience:
    """How long we go on with a database that does not answer: longer and longer pauses, then an end in words."""

    def __init__(self, patience_s: float = PATIENCE_S) -> None:
        self._patience_s = patience_s
        self._deadline = ambient.monotonic() + patience_s
        self._delay_s = 0.01

    async def pause(self, error: Busy | OutcomeUnknown) -> None:
        """Wait, with full jitter, before the next try; raise `DatabaseError` when there have been enough."""
        if ambient.monotonic() >= self._deadline:
            fate = "" if isinstance(error, Busy) else " (this call may or may not have been carried out)"
            text = f"the database was not ready for {self._patience_s:.0f} s: {error}{fate}"
            timed_out = isinstance(error, Busy) and error.timed_out
            raise DatabaseError(text, code="database_timeout" if timed_out else "database_unavailable") from error
        await asyncio.sleep(ambient.jitter(self._delay_s))
        self._delay_s = min(self._delay_s * 2, 1.0)


async def patiently(attempt: Callable[[], Awaitable[T]], *, patience_s: float = PATIENCE_S) -> T:
    """Try again while the database is busy; give up in words when it stays so."""
    patience = Patience(patience_s)
    while True:
        try:
            return await attempt()
        except Busy as error:
            await patience.pause(error)


def _chunks(folds: list[_Fold[Any]]) -> list[list[_Fold[Any]]]:
    """Keep a statement under a megabyte of bodies; a larger body travels alone."""
    chunks: list[list[_Fold[Any]]] = [[]]
    size = 0
    for fold in folds:
        if chunks[-1] and size + fold.weight > BATCH_BYTES_MAX:
            chunks.append([])
            size = 0
        chunks[-1].append(fold)
        size += fold.weight
    return chunks
