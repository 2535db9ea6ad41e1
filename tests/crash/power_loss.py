"""What a power loss may leave of a SQLite database, at any moment of a recorded workload.

A write is only certain after a sync of its file; a name appears or goes only after a sync of its folder. Before that,
the disk may hold none of it, all of it, any part of it, and of a write any first sectors.
"""

from __future__ import annotations

import hashlib
import random
import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import closing
from pathlib import Path
from typing import NamedTuple

from tests.crash.syscalls import Create, Line, Operation, Sync, Truncate, Unlink, Write, acked

SECTOR = 512
POLICIES = ("dropped", "kept", "some", "torn")
# Not the shared memory beside them: it is rebuilt, and must be.
SURVIVORS = ("db", "db-wal", "db-journal")
Image = dict[str, bytes]
Journal = dict[tuple[str, int], bytes]


class _Change(NamedTuple):
    """An operation that is not on disk yet, and the file it concerns whatever that is called by now."""

    number: int
    operation: Operation
    file: int


class Disk:
    """A folder on a disk that forgets what was not synced."""

    def __init__(self, folder: str) -> None:
        self._folder = folder
        self._files: dict[int, bytearray] = {}
        self._names: dict[str, int] = {}
        self._live: dict[str, int] = {}
        self._pending: list[_Change] = []

    def carry_out(self, number: int, operation: Operation) -> None:
        match operation:
            case Create(path):
                if path not in self._live:
                    self._live[path] = len(self._files)
                    self._files[len(self._files)] = bytearray()
                    self._pending.append(_Change(number, operation, self._live[path]))
            case Unlink(path):
                self._pending.append(_Change(number, operation, self._live.pop(path)))
            case Write(path) | Truncate(path):
                self._pending.append(_Change(number, operation, self._live[path]))
            case Sync():
                self._sync(operation)
            case Line():
                pass

    def image(self, policy: str, chance: random.Random) -> Image:
        """The files that a reader finds after the power came back."""
        files = {number: bytearray(content) for number, content in self._files.items()}
        names = dict(self._names)
        for change in self._pending:
            surviving = _survivor(change, policy, chance)
            if surviving is not None:
                _apply(surviving, files, names)
        found = {Path(path).name: bytes(files[number]) for path, number in names.items()}
        return {name: content for name, content in found.items() if name in SURVIVORS}

    def _sync(self, sync: Sync) -> None:
        is_folder = sync.path == self._folder
        settled = [
            change
            for change in self._pending
            if change.number < sync.began
            and (is_folder if _is_of_folder(change) else self._live.get(sync.path) == change.file)
        ]
        for change in settled:
            _apply(change, self._files, self._names)
        self._pending = [change for change in self._pending if change not in settled]


def _is_of_folder(change: _Change) -> bool:
    return isinstance(change.operation, Create | Unlink)


def _survivor(change: _Change, policy: str, chance: random.Random) -> _Change | None:
    if policy == "dropped" or (policy in ("some", "torn") and chance.random() < 0.5):
        return None
    operation = change.operation
    if policy == "torn" and isinstance(operation, Write) and len(operation.data) > SECTOR:
        sectors = chance.randrange(1, len(operation.data) // SECTOR + 1)
        return change._replace(operation=operation._replace(data=operation.data[: sectors * SECTOR]))
    return change


def _apply(change: _Change, files: dict[int, bytearray], names: dict[str, int]) -> None:
    content = files[change.file]
    match change.operation:
        case Create(path):
            names[path] = change.file
        case Unlink(path):
            names.pop(path, None)
        case Write(_, offset, data):
            content.extend(bytes(max(0, offset + len(data) - len(content))))
            content[offset : offset + len(data)] = data
        case Truncate(_, size):
            del content[size:]


class Verdict(NamedTuple):
    """What is wrong with an image; empty when nothing is."""

    problems: list[str]
    journal: Journal


class Moment(NamedTuple):
    """One image of one instant, with what had been promised by then."""

    number: int
    policy: str
    image: Image
    promised: frozenset[tuple[str, int]]


def moments(operations: Sequence[Operation], folder: Path, seed: int) -> Iterator[Moment]:
    """Four images after every operation. The same seed tears the same way."""
    chance = random.Random(seed)
    disk = Disk(str(folder))
    promised: frozenset[tuple[str, int]] = frozenset()
    for number, operation in enumerate(operations):
        disk.carry_out(number, operation)
        ack = acked(operation.text) if isinstance(operation, Line) else None
        promised = promised | {ack} if ack else promised
        for policy in POLICIES:
            yield Moment(number, policy, disk.image(policy, chance), promised)


class Inspector:
    """Opens images and reads their journal; equal images are opened once."""

    def __init__(self, folder: Path, truth: Journal) -> None:
        self._folder = folder
        self._truth = truth
        self._seen: dict[bytes, Verdict] = {}

    @property
    def images(self) -> int:
        return len(self._seen)

    def inspect(self, moment: Moment) -> list[str]:
        """Everything wrong with this moment: damage, gaps, changed entries, broken promises."""
        name = fingerprint(moment.image)
        if name not in self._seen:
            self._seen[name] = self._open(moment.image)
        damage, journal = self._seen[name]
        lost = sorted(promise for promise in moment.promised if promise not in journal)
        where = f"operation {moment.number}, unsynced writes {moment.policy}"
        return [f"{where}: {text}" for text in damage + [f"lost {thread} {rev}" for thread, rev in lost]]

    def _open(self, image: Image) -> Verdict:
        try:
            journal = read_journal(lay_out(image, self._folder))
        except sqlite3.Error as error:
            return Verdict([f"unreadable: {error}"], {})
        changed = [f"{thread} {rev} changed" for (thread, rev), digest in journal.items() - self._truth.items()]
        return Verdict([*changed, *gaps(journal)], journal)


def fingerprint(image: Image) -> bytes:
    parts = (part for name in sorted(image) for part in (name.encode(), len(image[name]).to_bytes(8), image[name]))
    return hashlib.sha256(b"".join(parts)).digest()


def lay_out(image: Image, folder: Path) -> Path:
    """Put the image where it can be opened, and nothing else there."""
    folder.mkdir(exist_ok=True)
    for path in folder.iterdir():
        path.unlink()
    for name, content in image.items():
        (folder / name).write_bytes(content)
    return folder / "db"


def read_journal(path: Path) -> Journal:
    """Every entry's digest after SQLite's own recovery. Raises `sqlite3.Error` when the file is not sound."""
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        connection.execute("PRAGMA synchronous = OFF")
        for check in ("integrity_check", "foreign_key_check"):
            found = [tuple(row) for row in connection.execute(f"PRAGMA {check}")]
            if found not in ([], [("ok",)]):
                raise sqlite3.DatabaseError(f"{check}: {found[:3]}")
        if not connection.execute("SELECT 1 FROM sqlite_schema WHERE name = 'journal'").fetchone():
            return {}
        rows = connection.execute("SELECT thread, rev, kind, data, digest FROM journal ORDER BY thread, rev")
        return {(thread, rev): _proved(kind, data, digest) for thread, rev, kind, data, digest in rows}


def _proved(kind: str, data: str, digest: bytes) -> bytes:
    if hashlib.sha256(f"{kind}\n{data}\n".encode()).digest() != digest:
        raise sqlite3.DatabaseError("an entry does not match its digest")
    return digest


def gaps(journal: Journal) -> list[str]:
    """Threads whose revisions are not 1, 2, 3 …"""
    revisions: dict[str, list[int]] = {}
    for thread, rev in journal:
        revisions.setdefault(thread, []).append(rev)
    return [
        f"{thread} has a gap: {found}"
        for thread, found in revisions.items()
        if sorted(found) != list(range(1, len(found) + 1))
    ]
