"""What a stream sends: first what is stored after its cursor, in batches, then what its tail brings."""

from __future__ import annotations

import asyncio
import binascii
from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from typing import Annotated, TypeVar

import msgspec

from holdfast.errors import DatabaseError
from holdfast.http import frames, readers
from holdfast.http.frames import COMMENT, Frame
from holdfast.http.readers import Reader
from holdfast.http.service import Service
from holdfast.http.sse import Chunks
from holdfast.identity import check_id
from holdfast.redaction import logger
from holdfast.runtime.following import BATCH, Happened, Standing, happened, runs_among, runs_of_session, standing

log = logger("holdfast.http")

T = TypeVar("T")
AWAY_S = 1.0
LOOK_S = 5.0
HORIZON_US = 10_000_000
"""How much later than a younger run an older one may appear: their commits end in any order."""
_SEQ_MAX = (1 << 62) - 1


def seq_of(header: str | None, query: str | None) -> int:
    """The cursor of a run's stream: the header's before the query's; what is no number means from the start."""
    text = query if header is None else header
    if text is None or not text.isascii() or not text.isdigit():
        return 0
    return min(int(text[:20]), _SEQ_MAX)


class Answers:
    """Asks the database until it answers, with comments for the reader in between."""

    def __init__(self) -> None:
        self.value: object = None

    async def asked(self, ask: Callable[[], Awaitable[T]]) -> AsyncIterator[bytes]:
        """Comments for as long as it takes; then `value` is there."""
        while True:
            asking = asyncio.ensure_future(ask())
            try:
                while not (await asyncio.wait({asking}, timeout=readers.COMMENT_S))[0]:
                    yield COMMENT
                self.value = asking.result()
                return
            except DatabaseError as error:
                log.warning("a stream waits for the database: %s", error)
                yield COMMENT
                await asyncio.sleep(AWAY_S)
            finally:
                asking.cancel()


async def run_chunks(
    service: Service, reader: Reader, run_id: str, *, user_id: str, cursor: int, known: Standing | None
) -> Chunks:
    """The events of one run after a cursor, up to its `done`. Without `known` the database was away: ask it first."""
    journal, tails = service.hf.journal, service.tails
    answers = Answers()
    if known is None:
        async for comment in answers.asked(lambda: standing(journal, run_id, user_id)):
            yield comment
        known = answers.value if isinstance(answers.value, Standing) else None
    if known is None or _is_behind(known, cursor):
        return
    after = cursor
    if cursor > known.rev:
        yield frames.reset(run_id=run_id, head=known.rev)
        after = 0
    try:
        while True:
            async for comment in answers.asked(lambda: happened(journal, {run_id: after}, BATCH)):  # noqa: B023
                yield comment
            told = answers.value
            assert isinstance(told, list)
            made = _frames(told)
            if made:
                yield _joined(made)
            if any(each.is_end for each in told):
                return
            after = told[-1].seq if told else after
            if len(told) < BATCH and tails.join(run_id, after, reader):
                break
            # A long history is read piece by piece, and others get their turn in between.
            await asyncio.sleep(0)
        while not reader.is_over:
            taken = await reader.take()
            if taken is None:
                yield COMMENT
                continue
            new = _up_to_end(_later(taken, after))
            if new:
                after = new[-1].seq
                yield _joined(new)
                if new[-1].is_end:
                    return
    finally:
        tails.leave([run_id], reader)


def _frames(told: Sequence[Happened]) -> Sequence[Frame]:
    """The frames of what happened to one run, up to its end."""
    return _up_to_end([frames.frame(e.run_id, e.event, is_end=e.is_end) for e in told if e.event is not None])


def _later(made: Sequence[Frame], after: int) -> Sequence[Frame]:
    """Those that come after a place. They are in order, so mostly all of them do."""
    return made if not made or made[0].seq > after else [each for each in made if each.seq > after]


def _up_to_end(made: Sequence[Frame]) -> Sequence[Frame]:
    """What is refused after the end of a run is written down, but not told."""
    for place, each in enumerate(made, start=1):
        if each.is_end:
            return made[:place]
    return made


def _joined(made: Sequence[Frame]) -> bytes:
    return made[0].whole if len(made) == 1 else b"".join([each.whole for each in made])


def _is_behind(known: Standing, cursor: int) -> bool:
    """Has the reader seen the run's end?"""
    return known.ended_rev is not None and cursor >= known.ended_rev


Seq = Annotated[int, msgspec.Meta(ge=0, le=_SEQ_MAX)]


class SessionCursor(msgspec.Struct):
    """Where a reader of a session is: runs up to `settled_us` are told whole, but for those in `runs`."""

    settled_us: Seq = 0
    runs: dict[str, Seq] = {}

    @classmethod
    def parsed(cls, text: str | None) -> SessionCursor:
        """The cursor, or the beginning for what is none."""
        if text is None:
            return cls()
        try:
            raw = urlsafe_b64decode(f"{text}{'=' * (-len(text) % 4)}".encode("ascii"))
            found = msgspec.json.decode(raw, type=SessionCursor)
            for run_id in found.runs:
                check_id(run_id, "run_id")
        except (ValueError, binascii.Error, msgspec.DecodeError):
            return cls()
        return found

    @property
    def text(self) -> str:
        return urlsafe_b64encode(msgspec.json.encode(self)).decode().rstrip("=")


class SessionChunks:
    """The events of all runs of a session, also of those that begin meanwhile. It has no end of its own."""

    def __init__(
        self, service: Service, reader: Reader, session_id: str, *, user_id: str, cursor: SessionCursor
    ) -> None:
        self._service = service
        self._reader = reader
        self._session_id = session_id
        self._user_id = user_id
        self._cursor = cursor
        self._created: dict[str, int] = {}
        self._joined: set[str] = set()
        self._ended: set[str] = set()
        self._is_gone = False
        self._answers = Answers()

    async def chunks(self) -> Chunks:
        listener = self._service.hf.journal.store.listen(f"session:{self._session_id}")
        ears = asyncio.create_task(self._hear(listener.wait))
        try:
            while not self._is_gone:
                async for chunk in self._catch_up():
                    yield chunk
                taken = await self._reader.take()
                if taken is None:
                    yield COMMENT
                told = b"".join(self._told(each) for each in taken or () if self._is_new(each))
                if told:
                    yield told
        finally:
            ears.cancel()
            listener.close()
            self._service.tails.leave(self._joined, self._reader)

    async def _hear(self, wait: Callable[[float], Awaitable[bool]]) -> None:
        while True:
            await wait(LOOK_S)
            self._reader.poke()

    async def _catch_up(self) -> Chunks:
        """Tell what the runs that we do not follow yet have to say, then follow them."""
        async for comment in self._answers.asked(self._runs):
            yield comment
        found = self._answers.value
        self._is_gone = found is None
        for run in found if isinstance(found, list) else ():
            self._created[run.run_id] = run.created_at
            seen = self._cursor.runs.get(run.run_id, 0)
            if _is_behind(run, seen):
                self._ended.add(run.run_id)
            if run.run_id in self._joined or _is_behind(run, seen):
                continue
            if seen > run.rev:
                self._cursor.runs[run.run_id] = 0
                yield frames.reset(run_id=run.run_id, head=run.rev)
            async for chunk in self._replay(run.run_id):
                yield chunk

    async def _replay(self, run_id: str) -> Chunks:
        journal = self._service.hf.journal
        while True:
            after = self._cursor.runs.get(run_id, 0)
            async for comment in self._answers.asked(lambda: happened(journal, {run_id: after}, BATCH)):  # noqa: B023
                yield comment
            told = self._answers.value
            assert isinstance(told, list)
            made = _frames(told)
            if made:
                yield b"".join(self._told(each) for each in made)
            if any(each.is_end for each in told):
                return
            if told:
                after = self._cursor.runs[run_id] = told[-1].seq
            if len(told) < BATCH and self._service.tails.join(run_id, after, self._reader):
                self._joined.add(run_id)
                return

    async def _runs(self) -> list[Standing] | None:
        """The runs that may have something to say: new ones, open ones, and those that ended while nobody looked.

        None once there is no such session.
        """
        journal = self._service.hf.journal
        sql = "SELECT 1 FROM {s}sessions WHERE session_id = $1 AND user_id = $2"
        if not await journal.store.fetch(sql, self._session_id, self._user_id):
            return None
        found = await runs_of_session(journal, self._session_id, self._user_id, self._cursor.settled_us)
        known = {run.run_id for run in found}
        # A cursor comes from outside: what it names is looked for in this session of this user only.
        named = [run_id for run_id in self._cursor.runs if run_id not in known]
        return [*await runs_among(journal, self._session_id, self._user_id, named), *found]

    def _is_new(self, item: Frame) -> bool:
        """Is it after our place in a run that we still follow? Asked frame by frame: each moves the place."""
        return item.run_id in self._joined and item.seq > self._cursor.runs.get(item.run_id, 0)

    def _told(self, item: Frame) -> bytes:
        """The frame with the place behind it as its id."""
        self._cursor.runs[item.run_id] = item.seq
        told = item.told(self._settled(item).text)
        if item.is_end:
            self._service.tails.leave([item.run_id], self._reader)
            self._joined.discard(item.run_id)
        return told

    def _settled(self, item: Frame) -> SessionCursor:
        """What is told whole and old enough needs no mention any more."""
        cursor = self._cursor
        if item.is_end:
            newest = max(self._created.values(), default=0)
            cursor.settled_us = max(cursor.settled_us, newest - HORIZON_US)
            self._ended.add(item.run_id)
            for run_id in [each for each in self._ended if self._created.get(each, newest) <= cursor.settled_us]:
                cursor.runs.pop(run_id, None)
        return cursor
