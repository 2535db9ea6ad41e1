"""Facts as journal lines and back. What was stored is proved before it is believed."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from datetime import datetime
from typing import Any

import msgspec

from holdfast.errors import InvalidEntry, InvalidValue
from holdfast.moments import from_us
from holdfast.protocol import facts
from holdfast.protocol.facts import Fact
from holdfast.protocol.values import canonical, clean, digest
from holdfast.store import Entry, NewEntry

RUN_PREFIX = "run:"


class JournalEntry(msgspec.Struct, frozen=True, kw_only=True):
    """One line of the journal, decoded."""

    thread: str
    rev: int
    kind: str
    data: Any
    at: datetime
    position: int


def line(kind: str, data: str, *, max_bytes: int) -> NewEntry:
    """A line to write, unless its body is too large to keep."""
    if len(data) > max_bytes or (len(data) * 4 > max_bytes and len(data.encode()) > max_bytes):
        raise InvalidValue(f"the body of this {kind} is over {max_bytes} bytes; store a reference instead")
    return NewEntry(kind, data, digest(kind, data))


def line_of(fact: Fact, *, max_bytes: int) -> NewEntry:
    return line(fact.kind, facts.encode(fact), max_bytes=max_bytes)


def line_from(entry: Any, *, max_bytes: int) -> NewEntry:
    """A caller's `{"kind", "data"}` as a line: cleaned, and flagged if it had to be repaired."""
    if not isinstance(entry, dict) or not isinstance(entry.get("kind"), str) or not entry["kind"]:
        raise InvalidEntry('an entry is an object with "kind" (text) and "data"')
    kind, repaired_kind = clean(entry["kind"])
    if repaired_kind or len(kind) > 128:
        raise InvalidEntry("the kind of an entry is at most 128 characters without NUL or lone surrogates")
    data, repaired = clean(entry.get("data"))
    if repaired and isinstance(data, dict):
        data = {**data, "repaired": True}
    return line(kind, canonical(data), max_bytes=max_bytes)


def proved(entries: Iterable[Entry], *, after: int) -> Iterator[Entry]:
    """The entries of one thread, each with the next revision and an unharmed body; the first that is not raises."""
    expected = after
    for entry in entries:
        expected += 1
        if entry.rev != expected:
            raise _invalid(entry, f"revision {expected} is missing; found {entry.rev} instead")
        if not is_whole(entry):
            raise _invalid(entry, "its digest does not match: the body or the kind was changed after it was written")
        yield entry


def is_whole(entry: Entry) -> bool:
    """Is this the line that was written?"""
    return digest(entry.kind, entry.data) == entry.digest


def missing(thread: str, rev: int) -> InvalidEntry:
    """The error for an entry that must be there and is not."""
    return InvalidEntry(
        f"invalid journal entry {rev} of {thread}: it is missing, though the rows speak of it", thread=thread, rev=rev
    )


def fact_of(entry: Entry) -> Fact:
    """The fact in a run's entry, or `InvalidEntry` that names its place."""
    try:
        return facts.decode(entry.kind, entry.data)
    except InvalidEntry as error:
        raise _invalid(entry, str(error)) from error


def decoded(entry: Entry) -> JournalEntry:
    """The entry for people and programs. Entries of a run must be facts; others are any JSON."""
    if entry.thread.startswith(RUN_PREFIX):
        fact_of(entry)
    try:
        data = msgspec.json.decode(entry.data)
    except (msgspec.DecodeError, UnicodeError, RecursionError) as error:
        raise _invalid(entry, f"its body is not JSON: {error}") from error
    return JournalEntry(
        thread=entry.thread,
        rev=entry.rev,
        kind=entry.kind,
        data=data,
        at=from_us(entry.at),
        position=entry.position,
    )


def _invalid(entry: Entry, why: str) -> InvalidEntry:
    return InvalidEntry(
        f"invalid journal entry {entry.rev} of {entry.thread} (position {entry.position}): {why}",
        thread=entry.thread,
        rev=entry.rev,
        position=entry.position,
    )
