"""`Questions`: what people ask about runs. Nothing here writes."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import aclosing
from typing import Any, Literal

from holdfast.errors import NotFound, RunCancelled, RunFailed
from holdfast.identity import check_id
from holdfast.journal import RunPlanner
from holdfast.moments import from_us
from holdfast.protocol import facts
from holdfast.protocol.events import view
from holdfast.protocol.state import RunState
from holdfast.protocol.values import whole_number
from holdfast.runtime.claims import Claims
from holdfast.runtime.endings import Ending, read_ending
from holdfast.runtime.explanation import Explanation, explanation
from holdfast.runtime.graphing import RunGraph, run_graph
from holdfast.runtime.history import read_history
from holdfast.runtime.inbox import OpenQuestion, open_questions
from holdfast.runtime.inspection import Inspection, inspection
from holdfast.runtime.lane_places import lane_place
from holdfast.runtime.listing import ListedRun, Page, question
from holdfast.runtime.records import Event
from holdfast.store import SliceRequest

POLL_S = 0.5
BATCH = 500
EVENTS_MAX = 1 << 31


class Questions(Claims):
    """Lists, events and views of runs."""

    async def list_runs(
        self,
        session_id: str | None = None,
        clog_id: str | None = None,
        status: str | Sequence[str] | None = None,
        limit: int = 20,
        cursor: str | None = None,
    ) -> Page[ListedRun]:
        """Runs without their contents, newest first; at most 100 at a time. `cursor` is the `next` of the last page.

        A run that is created meanwhile never moves the pages that follow.
        """
        equal = {
            "session_id": None if session_id is None else check_id(session_id, "session_id"),
            "clog_id": None if clog_id is None else check_id(clog_id, "clog_id"),
            "user_id": self._user_id,
        }
        asked = question(equal, status, limit, cursor)
        if asked.statuses == ():
            return Page([], None)
        return asked.page(await self._store.fetch(asked.text, *asked.values))

    async def approvals(
        self,
        session_id: str | None = None,
        clog_id: str | None = None,
        kind: Literal["pause", "approval"] | None = "approval",
        limit: int = 20,
        cursor: str | None = None,
    ) -> Page[OpenQuestion]:
        """The inbox: open questions over all runs, those of the newest runs first; `kind=None` shows pauses too."""
        equal = {
            "session_id": None if session_id is None else check_id(session_id, "session_id"),
            "clog_id": None if clog_id is None else check_id(clog_id, "clog_id"),
            "boundary_kind": kind,
            "user_id": self._user_id,
        }
        return await open_questions(self.journal, equal, limit, cursor)

    async def inspect(self, run_id: str) -> Inspection | None:
        """Everything about the run at one instant; None for a run that this caller does not know."""
        seen = await self._seen(run_id)
        return None if seen is None else await self._inspected(*seen)

    async def explain(self, run_id: str) -> Explanation | None:
        """Why the run is where it is, and what would move it on; None for a run that this caller does not know."""
        seen = await self._seen(run_id)
        if seen is None:
            return None
        return explanation(
            await self._inspected(*seen),
            known_clogs=self._known_clogs,
            lane_place=await lane_place(self._store, seen[0]),
        )

    async def graph(self, run_id: str) -> RunGraph | None:
        """The run's steps as nodes and edges with their states; None for a run that this caller does not know."""
        seen = await self._seen(run_id)
        return None if seen is None else run_graph(seen[0], await self.journal.definition(seen[0]))

    async def result(self, run_id: str, timeout: float | None = None) -> Any:
        """The output of a run, once it is done; `RunFailed`, `RunCancelled` or `TimeoutError` if it is not."""
        thread = f"run:{check_id(run_id, 'run_id')}"
        listener = self._store.listen(thread)
        quiet_s = self._store.hints.newborn.quiet_s(thread, self._user_id)
        try:
            async with asyncio.timeout(timeout):
                if quiet_s:
                    await listener.wait(quiet_s)
                while not (ending := await self._ending(run_id)).is_over:
                    await listener.wait(POLL_S)
        finally:
            listener.close()
        if ending.status == "done":
            return ending.output
        run = await self._existing(run_id)
        wrong = RunCancelled if run.status == "cancelled" else RunFailed
        raise wrong(f"run {run_id} is {run.status}: {run.last_error or run.error_kind or ''}", run=run)

    async def _ending(self, run_id: str) -> Ending:
        ending = await read_ending(self._store, run_id, self._user_id)
        if ending is None:
            raise NotFound(f"there is no run {run_id}")
        return ending

    async def events(
        self, run_id: str, after: int = 0, *, follow: bool = False, limit: int | None = None
    ) -> AsyncIterator[Event]:
        """The run's public events in order, from after a seq, at most `limit`. With `follow`, until the run is over.

        An unknown run has none, and following it ends at once.

        The seq of the last one is where the next page begins.
        """
        check_id(run_id, "run_id")
        left = EVENTS_MAX if limit is None else whole_number(limit, "limit", 0, EVENTS_MAX)
        if not left or await self._is_hidden(run_id):
            return
        async with aclosing(self._events(run_id, after, follow)) as found:
            async for event in found:
                yield event
                left -= 1
                if not left:
                    return

    async def _events(self, run_id: str, after: int, follow: bool) -> AsyncGenerator[Event, None]:
        listener = self._store.listen(f"run:{run_id}")
        try:
            while True:
                found = await self.journal.facts(run_id, after, BATCH)
                for entry, fact in found:
                    after = entry.rev
                    shown = view(fact)
                    is_end = isinstance(fact, facts.RunTerminal)
                    if is_end and not await self._ended_at(run_id, entry.rev):
                        continue
                    if shown:
                        yield Event(seq=entry.rev, at=from_us(entry.at), **shown._asdict())
                    if is_end:
                        return
                if not found:
                    if not follow or await self._is_over(run_id, after):
                        return
                    await listener.wait(POLL_S)
        finally:
            listener.close()

    async def _is_over(self, run_id: str, after: int) -> bool:
        """Will nothing follow? The run is gone, or its end has been seen."""
        rows = await self._store.fetch_by_key("SELECT ended_rev FROM {s}runs WHERE run_id = $1", run_id)
        return not rows or (rows[0][0] is not None and rows[0][0] <= after)

    async def _is_hidden(self, run_id: str) -> bool:
        """Is the run another user's, or deleted? The thread of a deleted one stays for audit, in `journal.read`."""
        if self._user_id is not None:
            sql = "SELECT 1 FROM {s}runs WHERE run_id = $1 AND user_id = $2"
            return not await self._store.fetch_by_key(sql, run_id, self._user_id)
        return bool(await self._store.fetch_by_key("SELECT 1 FROM {s}tombstones WHERE run_id = $1", run_id))

    async def _ended_at(self, run_id: str, rev: int) -> bool:
        """Did the run take this end? One written by hand may have been refused."""
        state = (await self.journal.slices([run_id])).get(run_id)
        return state is None or state.ended_rev == rev

    async def _seen(self, run_id: str) -> tuple[RunState, int] | None:
        """The whole run as its rows show it, with the clock of that moment."""
        (part,) = await self._store.slices([SliceRequest(check_id(run_id, "run_id"), whole=True)])
        if part.run is None:
            return None
        state = RunPlanner().open(run_id, part)
        return (state, part.now) if self._user_id in (None, state.user_id) else None

    async def _inspected(self, state: RunState, now: int) -> Inspection:
        return inspection(state, now, await read_history(self._store, state))
