"""Small builders for the contract suite: runs in a given state, entries by hand, and questions about both.

The names of fields that carry a claim's hash stand here and nowhere else in the suite.
"""

from __future__ import annotations

from typing import Any

from msgspec.structs import replace

from holdfast import Claim, Holdfast, JournalEntry, RunInfo, Wait
from holdfast.identity import hash_token
from holdfast.protocol import commands
from holdfast.protocol.outcomes import Outcome
from holdfast.protocol.storage import ClogWrites, StagedWrite, shared_name
from holdfast.store import Beat, ClaimRequest, RunRows

CLEARED = object()
LEASE_US = 30_000_000
LEASE_S = 30.0
INSTANT = 1e-6
"""The smallest step of time: what lies between a lease that holds and one that does not."""


async def assert_sound(hf: Holdfast) -> None:
    """Every law holds for every run and thread."""
    report = await hf.fsck()
    assert report.ok, "\n".join(str(problem) for problem in report.problems)


async def create(hf: Holdfast, **options: Any) -> RunInfo:
    """A run with an input, unless told otherwise."""
    return await hf.create_run(**{"session_id": "s1", "clog_id": "chat", "input": "hello", **options})


async def idle(hf: Holdfast, **options: Any) -> RunInfo:
    """A run without an input."""
    return await hf.create_run(**{"session_id": "s1", "clog_id": "chat", **options})


async def claim_one(hf: Holdfast, queue: str | None = None, **options: Any) -> Claim:
    """The one claim that is to be had."""
    (claim,) = await hf.claim_next(queue, **options)
    return claim


async def active(hf: Holdfast, **options: Any) -> Claim:
    """A run that someone works on, by its claim."""
    run = await create(hf, **options)
    claim = await claim_one(hf, options.get("queue"))
    assert claim.run_id == run.run_id
    return claim


async def in_status(hf: Holdfast, status: str) -> str:
    """The id of a run that nobody works on, in this status."""
    if status == "idle":
        return (await idle(hf)).run_id
    if status == "pending":
        return (await create(hf)).run_id
    if status == "paused":
        return (await hf.pause((await create(hf)).run_id, "review")).run_id
    claim = await active(hf)
    if status == "waiting":
        return (await hf.complete(claim, Wait(seconds=3_600))).run_id
    if status == "backing off":
        return (await hf.fail(claim, "try later")).run_id
    if status == "failed":
        return (await hf.fail(claim, "broken", retry=False)).run_id
    if status == "cancelled":
        return (await hf.cancel(claim.run_id, force=True)).run_id
    assert status == "done"
    return (await hf.complete(claim)).run_id


async def look(hf: Holdfast, run_id: str) -> RunInfo:
    """The run as it is now; it must exist."""
    found = await hf.get_run(run_id)
    assert found is not None
    return found


async def entries(hf: Holdfast, run_id: str, after: int = 0) -> list[JournalEntry]:
    return await hf.journal.read(f"run:{run_id}", after)


async def kinds(hf: Holdfast, run_id: str, after: int = 0) -> list[str]:
    """The kinds of a run's entries, in order."""
    return [entry.kind for entry in await entries(hf, run_id, after)]


async def anomalies(hf: Holdfast, run_id: str) -> list[tuple[str, str]]:
    """The refusals that a run remembers: reason and the kind of what was refused."""
    sql = "SELECT reason, entry_kind FROM {s}anomalies WHERE run_id = $1 ORDER BY rev"
    return [(reason, kind) for reason, kind in await hf.journal.store.fetch(sql, run_id)]


async def rows(hf: Holdfast, run_id: str) -> RunRows:
    return await hf.journal.store.run_rows(run_id)


async def event_types(hf: Holdfast, run_id: str, after: int = 0) -> list[str]:
    return [event.type async for event in hf.events(run_id, after)]


async def quiet(hf: Holdfast) -> None:
    """Deliver handoffs until none is open."""
    while await hf.journal.sweep():
        pass


def entry(kind: str, /, **data: Any) -> dict[str, Any]:
    """An entry as a caller of the low-level journal writes it."""
    return {"kind": kind, "data": data}


def note(text: object) -> dict[str, Any]:
    """An entry for a thread that is no run's."""
    return entry("note", text=text)


def texts(found: list[JournalEntry]) -> list[Any]:
    return [each.data["text"] for each in found]


def collect(state: list[Any], noted: JournalEntry) -> list[Any]:
    """A projection: every text, in order."""
    return [*state, noted.data["text"]]


def fenced(kind: str, claim_id: str, token: str = "token", **data: Any) -> dict[str, Any]:
    """An entry that the holder of a claim writes by hand."""
    return entry(kind, claim_id=claim_id, claim_token_hash=hash_token(token), **data)


def fence(claim: Claim) -> dict[str, Any]:
    """What a command of this claim's holder carries."""
    return {"runnable_key": claim.runnable_key, "claim_id": claim.claim_id, "claim_token_hash": hash_token(claim.token)}


def released(claim: Claim, **data: Any) -> dict[str, Any]:
    """The entry of a claim that was given back."""
    hashed = {"claim_token_hash": hash_token(claim.token)}
    return entry("tick_abandoned", tick_id=claim.claim_id, from_seq=1, reason="released", **hashed, **data)


def start_child(claim: Claim, child_run_id: str = "child", child_key: str = "k", **options: Any) -> commands.StartChild:
    """The order to start a child, by the holder of its parent's claim."""
    told = {"clog_id": "helper", "start": {"session_id": "s1", "has_input": True, "input": "go"}, **options}
    return commands.StartChild(**fence(claim), child_run_id=child_run_id, child_key=child_key, **told)


async def settle_storing(hf: Holdfast, claim: Claim, outcome: Outcome, **values: Any) -> None:
    """End a tick with an outcome and rows of storage: `run`, `session` and `global` by scope, others of tick scope.

    `CLEARED` clears a row. Rows are written as if their writer had just read them.
    """
    run = await look(hf, claim.run_id)
    writes = tuple([await _staged(hf, run, name, value) for name, value in values.items()])
    staged = commands.Staged(storage=(ClogWrites(clog_id=run.clog_id, writes=writes),))
    executed = await hf.journal.execute(run.run_id, commands.Settle(**fence(claim), outcome=outcome, staged=staged))
    assert executed.decision.refusal is None


async def _staged(hf: Holdfast, run: RunInfo, scope: str, value: Any) -> StagedWrite:
    told: dict[str, Any] = {"cleared": True} if value is CLEARED else {"value": value}
    if scope in ("session", "global"):
        name = shared_name(scope, run.clog_id, user_id="local", session_id=run.session_id)
        sql = "SELECT run_id, rev FROM {s}shared_storage WHERE name = $1"
        versions = [f"{writer}:{rev}" for writer, rev in await hf.journal.store.fetch(sql, name)]
        return StagedWrite(scope=scope, name=name, seen="".join(versions), **told)
    if scope == "run":
        sql = "SELECT rev FROM {s}run_storage WHERE run_id = $1 AND clog_id = $2 AND tick_id = ''"
        versions = [str(rev) for (rev,) in await hf.journal.store.fetch(sql, run.run_id, run.clog_id)]
        return StagedWrite(scope=scope, seen="".join(versions), **told)
    return StagedWrite(scope="tick", row_id=scope, **told)


async def stored(hf: Holdfast, run_id: str) -> dict[tuple[str, str], str]:
    """The run's own storage: JSON texts by (tick, row); run scope has neither."""
    sql = "SELECT tick_id, row_id, value FROM {s}run_storage WHERE run_id = $1"
    return {(tick_id, row_id): value for tick_id, row_id, value in await hf.journal.store.fetch(sql, run_id)}


async def shared(hf: Holdfast) -> dict[str, str]:
    """What runs share: JSON texts by name."""
    return dict(await hf.journal.store.fetch("SELECT name, value FROM {s}shared_storage"))


async def count(hf: Holdfast, table: str, where: str = "", *params: Any) -> int:
    """How many rows a table has."""
    ((number,),) = await hf.journal.store.fetch(f"SELECT count(*) FROM {{s}}{table} {where}", *params)
    return int(number)


def beat_of(run_id: str, claim_id: str) -> Beat:
    """The heartbeat of a claim that was made with `claim_request`."""
    return Beat(run_id, "", claim_id, hash_token(claim_id))


def claim_request(*claim_ids: str, queue: str = "default") -> ClaimRequest:
    """A request for as many items as there are ids."""
    hashes = tuple(hash_token(claim_id) for claim_id in claim_ids)
    return ClaimRequest((queue,), None, claim_ids, hashes, "w1", LEASE_US)


def stolen(claim: Claim) -> Claim:
    """The claim as someone holds it who never got its token."""
    return replace(claim, token="guessed")


def hash_of(claim: Claim) -> str:
    return hash_token(claim.token)


def step_of(run_id: str, key: str) -> dict[str, Any]:
    """The entry that makes a workflow step claimable."""
    return entry("attempt_scheduled", runnable_key=key, step=key, idempotency_key=f"{run_id}/{key}")
