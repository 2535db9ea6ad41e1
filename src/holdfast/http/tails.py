"""One tail for each run that somebody follows here, however many they are.

The tails of a process share one question to the database. What it finds is encoded once and put into the bounded queue
of every reader; a reader that does not keep up loses its connection, never an event: it comes back with its cursor.
Hints make this quick, polling makes it certain.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence

from holdfast import ambient
from holdfast.errors import HoldfastError, InvalidEntry
from holdfast.http.frames import frame
from holdfast.http.metrics import Metrics
from holdfast.http.readers import Reader
from holdfast.journal import Journal
from holdfast.moments import to_us
from holdfast.redaction import logger
from holdfast.runtime.following import Happened, happened, standings
from holdfast.store.hints import EVERYTHING, Listener

log = logger("holdfast.http")

BATCH = 1_000
CHUNK = 100
POLL_FIRST_S = 0.05
POLL_MAX_S = 1.0
GONE_S = 10.0
_NOBODY = "run:"
"""A topic that no hint has: a listener without any would hear everything."""


class _Tail:
    """How far one run was read, and for whom."""

    def __init__(self, at: int) -> None:
        self.at = at
        self.readers: set[Reader] = set()


class Tails:
    """All tails of one process, and the one task that reads for them while there are any."""

    def __init__(self, journal: Journal, metrics: Metrics) -> None:
        self._journal = journal
        self._metrics = metrics
        self._tails: dict[str, _Tail] = {}
        self._listener: Listener | None = None
        self._task: asyncio.Task[None] | None = None
        self._all_at = 0.0
        self._gone_at = 0.0

    def join(self, run_id: str, after: int, reader: Reader) -> bool:
        """Put what follows `after` into the reader's queue from now on.

        False if the run's tail is further already: read up to it, then try again. What the reader has seen may come
        again, so it skips what is not after its own place.
        """
        tail = self._tails.get(run_id)
        if tail is None:
            tail = self._tails[run_id] = _Tail(after)
            self._watch()
            if self._listener is not None:
                # What was committed before we listened was no news to us.
                self._listener.tell(frozenset({f"run:{run_id}"}))
        if tail.at > after:
            return False
        tail.readers.add(reader)
        return True

    def leave(self, run_ids: Iterable[str], reader: Reader) -> None:
        for run_id in run_ids:
            tail = self._tails.get(run_id)
            if tail is None:
                continue
            tail.readers.discard(reader)
            if not tail.readers:
                del self._tails[run_id]
        self._retune()

    def readers_of(self, run_id: str) -> int:
        tail = self._tails.get(run_id)
        return len(tail.readers) if tail else 0

    async def close(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
            self._task = None

    def _watch(self) -> None:
        if self._task is None or self._task.done():
            self._task = asyncio.create_task(self._follow())
        self._retune()

    def _retune(self) -> None:
        if self._listener is not None:
            self._listener.retune([f"run:{run_id}" for run_id in self._tails] or [_NOBODY])

    async def _follow(self) -> None:
        """Read for everybody until nobody is left."""
        self._listener = listener = self._journal.store.listen(_NOBODY)
        self._retune()
        delay_s = POLL_FIRST_S
        try:
            while self._tails:
                heard = await listener.wait(delay_s - ambient.jitter(delay_s / 5))
                found = await self._look(listener.news(), heard=heard)
                delay_s = POLL_FIRST_S if found else min(delay_s * 2, POLL_MAX_S)
        finally:
            self._listener = None
            listener.close()

    async def _look(self, news: frozenset[str], *, heard: bool) -> int:
        """One question for all runs that may have moved; answer how much was new. Whatever fails, the next look is."""
        now = ambient.monotonic()
        # News of some runs must not keep us from those whose hints were lost.
        is_hinted = heard and EVERYTHING not in news and now - self._all_at < POLL_MAX_S
        wanted = [run_id for run_id in self._tails if not is_hinted or f"run:{run_id}" in news]
        try:
            found = await self._read(wanted, heard=heard)
            self._all_at = self._all_at if is_hinted else now
            await self._end_those_gone()
        except InvalidEntry as error:
            log.error("a stream ends at a damaged entry: %s", error)
            self._end(error.thread.removeprefix("run:"))
            return 0
        except HoldfastError as error:
            log.warning("streams wait for the database: %s", error)
            await asyncio.sleep(POLL_MAX_S)
            return 0
        except Exception:
            log.exception("streams could not be fed; trying again")
            await asyncio.sleep(POLL_MAX_S)
            return 0
        return found

    async def _read(self, run_ids: Sequence[str], *, heard: bool) -> int:
        total = 0
        while True:
            seen = {run_id: self._tails[run_id] for run_id in run_ids if run_id in self._tails}
            if not seen:
                return total
            told = await happened(self._journal, {run_id: tail.at for run_id, tail in seen.items()}, BATCH)
            await self._hand_out(told, seen)
            total += len(told)
            if told and not heard:
                self._metrics.missed.inc(len(told))
            if len(told) < BATCH:
                return total

    async def _hand_out(self, told: Sequence[Happened], seen: dict[str, _Tail]) -> None:
        for first in range(0, len(told), CHUNK):
            if first:
                # Readers that keep up have to get their turn before their queues are full.
                await asyncio.sleep(0)
            of_runs: dict[str, list[Happened]] = {}
            for each in told[first : first + CHUNK]:
                of_runs.setdefault(each.run_id, []).append(each)
            delivered = sum(self._put(run_id, some, seen[run_id]) for run_id, some in of_runs.items())
            self._metrics.delivered.inc(delivered)

    def _put(self, run_id: str, told: Sequence[Happened], tail: _Tail) -> int:
        """Encode what happened to one run, once, and queue it for each of its readers; answer for how many in all."""
        # Everybody may have left while we asked, and others come: their tail is another one.
        if self._tails.get(run_id) is not tail:
            return 0
        tail.at = told[-1].seq
        made = [frame(run_id, each.event, is_end=each.is_end) for each in told if each.event is not None]
        if not made:
            return 0
        now, size = ambient.wall_us(), sum(len(each.whole) for each in made)
        for each in told:
            if each.event is not None:
                self._metrics.lag.observe(max(0, now - to_us(each.event.at)) / 1e6)
        for reader in tail.readers:
            reader.put(made, size)
        return len(made) * len(tail.readers)

    async def _end_those_gone(self) -> None:
        """Runs whose entries went with them tell nobody; so we ask, now and then."""
        now = ambient.monotonic()
        if now - self._gone_at < GONE_S or not self._tails:
            return
        self._gone_at = now
        # Of those who come while we ask the answer knows nothing.
        asked = list(self._tails)
        known = await standings(self._journal, asked)
        for run_id in asked:
            if run_id not in known:
                self._end(run_id)

    def _end(self, run_id: str) -> None:
        tail = self._tails.get(run_id)
        for reader in tail.readers if tail else ():
            reader.end()
