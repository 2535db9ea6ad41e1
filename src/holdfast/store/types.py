"""What crosses the seam of the store: complete intentions in, plain answers out. Never an open transaction."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from typing import Any, Generic, NamedTuple, Protocol, TypeVar

import msgspec

S = TypeVar("S")
Row = tuple[Any, ...]
Statement = tuple[str, tuple[Any, ...]]
"""A portable text ($1, $2 …) and its parameters."""


class Change(NamedTuple):
    """A write that answers rows: one statement on Postgres, a few in a row under SQLite's one writer.

    Both are given the same `$1`, `$2` …; `{now}` is the commit's own instant. The last statement's rows are the answer.
    """

    sqlite: tuple[str, ...]
    postgres: str


def line_digest(kind: str, data: str) -> bytes:
    """What proves that a stored line is the line that was written."""
    return hashlib.sha256(f"{kind}\n{data}\n".encode()).digest()


class Entry(NamedTuple):
    """One line of the journal as it stands on disk."""

    position: int
    thread: str
    rev: int
    kind: str
    data: str
    at: int
    digest: bytes
    commit_id: int


class NewEntry(NamedTuple):
    """A line to write. The store gives it its revision, its instant and its position."""

    kind: str
    data: str
    digest: bytes


class Fence(NamedTuple):
    """The claim that must still hold, judged after the locks, in the statement that writes."""

    key: str
    claim_id: str
    claim_token_hash: str


class Changes(msgspec.Struct, gc=False):
    """Index rows to put and to drop, by table; a drop names the key."""

    puts: dict[str, list[Row]] = {}
    drops: dict[str, list[Row]] = {}


class Member(msgspec.Struct, kw_only=True, gc=False):
    """One run's share of a commit: accepted whole if the run is still at `expected_rev` and every fence holds."""

    run_id: str
    expected_rev: int
    run: Row
    """The moving part of the run's row; empty where only its revision and instant move."""
    created: Row | None = None
    entries: list[NewEntry]
    changes: Changes
    fences: list[Fence] = []
    statements: list[Statement] = []
    """A caller's own, in the same transaction; a member that has some is written alone, behind its lock."""
    guard: Statement | None = None
    """An update that must find its row, in the same transaction, or nothing is written; it too is written alone."""
    plain: bool = False
    """Of the moving part of the run's row, nothing but `PLAIN` differs from what stands there."""
    gone: bool = False
    """The run's row goes, and with it every row that hangs on it; the entries stay."""

    @property
    def thread(self) -> str:
        return f"run:{self.run_id}"

    @property
    def last_rev(self) -> int:
        """The run's revision once it is accepted."""
        return self.expected_rev + len(self.entries)

    @property
    def size(self) -> int:
        return sum(len(entry.data) for entry in self.entries)


class Written(NamedTuple):
    """`at` is the member's instant, or None if it was refused; `rev` is the head that was found."""

    at: int | None
    rev: int


class SliceRequest(NamedTuple):
    """Which part of a run a command needs to see; `whole` asks for every row and travels alone.

    Open children are shown, and the one that is named; of many, `only_child` shows one alone. `session_id` and `lane`
    matter for a run that is not there yet. `storage` (any text) asks for the versions of the run's storage rows,
    `shared` (a JSON list) names rows that several runs share: these travel alone, behind a lock. `step` and
    `occurrence` name a step of a flow, `awaited` (a JSON list) the signals and children it waits for. `runnables` (a
    JSON list) names workflow steps; `planner` (any text) asks for all of them but the items of maps.
    """

    run_id: str
    claim_id: str = ""
    runnable_key: str = ""
    child_run_id: str = ""
    scope: str = ""
    key: str = ""
    session_id: str = ""
    lane: str = ""
    storage: str = ""
    shared: str = ""
    step: str = ""
    occurrence: str = ""
    awaited: str = ""
    runnables: str = ""
    planner: str = ""
    only_child: str = ""
    whole: bool = False


class Slice(msgspec.Struct, kw_only=True):
    """Rows of one run, read in one snapshot, with the database's clock of that moment."""

    now: int
    run: dict[str, Any] | None = None
    first_digest: str | None = None
    work: list[dict[str, Any]] = []
    signals: list[dict[str, Any]] = []
    ticks: list[dict[str, Any]] = []
    children: list[dict[str, Any]] = []
    runnables: list[dict[str, Any]] = []
    keys: list[dict[str, Any]] = []
    anomalies: list[dict[str, Any]] = []
    handoffs: list[dict[str, Any]] = []
    tickets: list[dict[str, Any]] = []
    lane: list[dict[str, Any]] = []
    storage: list[dict[str, Any]] = []
    shared: list[dict[str, Any]] = []
    steps: list[dict[str, Any]] = []
    awaited: list[dict[str, Any]] = []
    tools: list[dict[str, Any]] = []


_PARTS = (
    *("work", "signals", "ticks", "children", "runnables", "keys", "anomalies", "handoffs"),
    *("tickets", "lane", "storage", "shared", "steps", "awaited", "tools"),
)


def merged(parts: Sequence[Slice]) -> Slice:
    """Slices of one run from one snapshot, as one."""
    first = parts[0]
    if len(parts) == 1:
        return first
    rows = {name: _distinct([row for part in parts for row in getattr(part, name)]) for name in _PARTS}
    return Slice(now=first.now, run=first.run, first_digest=first.first_digest, **rows)


def _distinct(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return list({tuple(row.values()): row for row in rows}.values())


class Plan(msgspec.Struct, Generic[S], kw_only=True, gc=False):
    """What an intention does to the state it saw. No entries: nothing to write."""

    after: S
    entries: list[NewEntry] = []
    fences: list[Fence] = []
    changes: Changes = msgspec.field(default_factory=Changes)
    statements: list[Statement] = []
    guard: Statement | None = None
    answer: Any = None


class Planner(Protocol[S]):
    """How the committer turns rows into states and back; supplied by the floor above."""

    def open(self, run_id: str, seen: Slice) -> S: ...

    def head(self, state: S) -> int: ...

    def member(self, before: S, after: S, plans: Sequence[Plan[S]]) -> Member: ...

    def resolved(self, state: S, at: int) -> S: ...


class Intention(msgspec.Struct, Generic[S], kw_only=True, gc=False):
    """One caller's complete wish. `plan(state, now, at)` is pure and may be asked again on a fresher state.

    `known` spares the read when the caller holds a state that the revision check will confirm. `exact` asks for the
    locks first, for wishes that depend on the very instant.
    """

    request: SliceRequest
    plan: Callable[[S, int, int], Plan[S]]
    known: S | None = None
    exact: bool = False


class Committed(NamedTuple, Generic[S]):
    """The answer to an intention: its plan and, if it wrote, its instant and the first revision it wrote."""

    plan: Plan[S]
    at: int | None
    first_rev: int


class Append(NamedTuple):
    """Entries for a thread that is no run's."""

    thread: str
    entries: list[NewEntry]
    expected_rev: int


class FactKey(NamedTuple):
    """The key of facts with validity: the table, and the values of its key before validity and flag."""

    table: str
    values: tuple[str, ...]

    @property
    def name(self) -> str:
        """What is locked while a fact of this key is judged. Lengths, so that no two keys share a name."""
        return ":".join([self.table, *(f"{len(value)}:{value}" for value in self.values)])


class Addition(NamedTuple):
    """Facts to add, by table, and keys to forget with every fact of theirs."""

    rows: tuple[tuple[str, Row], ...] = ()
    drops: tuple[FactKey, ...] = ()


class ClaimRequest(NamedTuple):
    """Take up to as many due items as there are claim ids.

    `due_by` leaves out what became due later, `passed` what belongs to these runs. With `sticky` the sessions that keep
    to another worker are left out, and those that keep to this owner come first at their priority.
    """

    queues: tuple[str, ...] | None
    clogs: tuple[str, ...] | None
    claim_ids: tuple[str, ...]
    claim_token_hashes: tuple[str, ...]
    owner_id: str
    lease_us: int
    due_by: int | None = None
    passed: tuple[str, ...] = ()
    sticky: bool = False

    def entry(self, key: str, attempt: int, claim_id: str, claim_token_hash: str) -> NewEntry:
        """The line a claim leaves. Both databases write the same text; Postgres composes it in its function."""
        data = (
            (f'{{"attempt":{attempt},' if attempt else "{")
            + f'"claim_id":"{claim_id}","claim_token_hash":"{claim_token_hash}"'
            + f',"lease_us":{self.lease_us},"owner_id":"{self.owner_id}"'
            + (f',"runnable_key":"{key}"' if key else "")
            + ',"v":1}'
        )
        return NewEntry("attempt_claimed", data, line_digest("attempt_claimed", data))


class Claimed(NamedTuple):
    """An item taken; or, with `claim_id` None, one whose lease ran out and must be taken over with care."""

    run_id: str
    key: str
    claim_id: str | None
    at: int
    first: Entry | None = None
    """The run's only entry before this claim, if it had no other: what it takes to know all of the run."""


class Beat(NamedTuple):
    """A claim that is still held."""

    run_id: str
    key: str
    claim_id: str
    claim_token_hash: str

    def entry(self, lease_us: int) -> NewEntry:
        """The line a heartbeat leaves."""
        key = f',"runnable_key":"{self.key}"' if self.key else ""
        fence = f'"claim_id":"{self.claim_id}","claim_token_hash":"{self.claim_token_hash}"'
        data = f'{{{fence},"lease_us":{lease_us}{key},"v":1}}'
        return NewEntry("attempt_heartbeat", data, line_digest("attempt_heartbeat", data))


class Beaten(NamedTuple):
    """The new end of a lease, and whether someone wants the run to stop."""

    claim_id: str
    lease_until: int
    rev: int
    cancel_requested_at: int | None


class Mark(NamedTuple):
    """Where a commit of unknown fate would stand."""

    thread: str
    rev: int


class Busy(Exception):
    """The database was too busy (deadlock, lock or statement timeout). Nothing was written; try again."""

    def __init__(self, message: str, *, timed_out: bool = False) -> None:
        super().__init__(message)
        self.timed_out = timed_out


class Rejected(Exception):
    """The database refused a row (constraint or data error). Nothing of the batch was written."""


class OutcomeUnknown(Exception):
    """The connection died; the commit may or may not have happened. Look it up before trying again."""
