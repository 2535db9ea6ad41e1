"""A busy database: runs in every status and situation, for tests that break one or look at all of it."""

from __future__ import annotations

from datetime import timedelta
from typing import Any, NamedTuple

import pytest

from holdfast import Claim, Conflict, Continue, Done, Holdfast, LeaseLost, Ok, RunInfo, Wait
from holdfast.store import INDEXES, RUNS
from holdfast.store.postgres import Postgres
from tests.conftest import FakeClock
from tests.contract.builders import settle_storing
from tests.contract.photograph import Photograph

MADE_FROM_THE_JOURNAL = ("runs", *INDEXES, "threads", "sessions")
NOTES = "notes:1"
LOG = "log"


class Scene:
    """What stands in the database. Every run has the queue of its name, so that each can be claimed alone."""

    def __init__(self, hf: Holdfast, clock: FakeClock) -> None:
        self.hf = hf
        self.clock = clock
        self.runs: dict[str, str] = {}
        self.deleted: dict[str, str] = {}
        self.used_token_hash = ""

    def on(self, hf: Holdfast, clock: FakeClock) -> Scene:
        """The same scene in another database."""
        other = Scene(hf, clock)
        other.runs, other.deleted = dict(self.runs), dict(self.deleted)
        other.used_token_hash = self.used_token_hash
        return other

    async def create(self, name: str, **options: Any) -> str:
        run = await self.hf.create_run(session_id="s", clog_id="busy", queue=name, **options)
        self.runs[name] = run.run_id
        return run.run_id

    async def claim(self, name: str, lease_ms: int = 600_000) -> Claim:
        (claim,) = await self.hf.claim_next(name, owner="worker", lease_ms=lease_ms)
        return claim

    async def claimed(self, name: str, **options: Any) -> Claim:
        await self.create(name, input={"of": name}, **options)
        return await self.claim(name)

    async def infos(self) -> dict[str, RunInfo | None]:
        return {name: await self.hf.get_run(run_id) for name, run_id in self.runs.items()}

    async def digests(self) -> list[tuple[Any, ...]]:
        """Every line of the journal."""
        sql = "SELECT position, thread, rev, kind, data, at, digest, commit_id FROM {s}journal ORDER BY position"
        return [(*row[:6], bytes(row[6]), row[7]) for row in await self.hf.journal.store.fetch(sql)]

    async def rows(self, *tables: str) -> dict[str, list[tuple[Any, ...]]]:
        """Every row of these tables, or of all that are made from the journal."""
        found: dict[str, list[tuple[Any, ...]]] = {}
        for name in tables or MADE_FROM_THE_JOURNAL:
            table = RUNS if name == "runs" else INDEXES.get(name)
            columns = ", ".join(table.names) if table else "*"
            found[name] = sorted(await self.hf.journal.store.fetch(f"SELECT {columns} FROM {{s}}{name}"), key=repr)
        return found

    async def value(self, sql: str, *params: Any) -> Any:
        return (await self.hf.journal.store.fetch(sql, *params))[0][0]

    async def execute(self, sql: str, *params: Any) -> None:
        await self.hf.journal.store.execute((sql, params))

    def run_id(self, name: str) -> str | None:
        return self.runs.get(name) or self.deleted.get(name)

    def thread(self, name: str) -> str:
        run_id = self.run_id(name)
        return name if run_id is None else f"run:{run_id}"


class _Taken(NamedTuple):
    """A scene as it was when it was built, and how long that had taken."""

    scene: Scene
    photograph: Photograph
    after: timedelta


_taken: list[_Taken] = []
"""The first scene of this process on Postgres, where to play it takes ten times as long as to put its rows back."""


async def build(hf: Holdfast, clock: FakeClock) -> Scene:
    """Runs in all eight statuses, waiting signals, retries, questions, a child, a lost worker, keys, storage, a lane,
    a deleted run, free threads."""
    if not isinstance(hf.journal.store._database, Postgres):
        return await _played(hf, clock)
    began = clock.now()
    if not _taken:
        scene = await _played(hf, clock)
        _taken.append(_Taken(scene, await Photograph.of(hf), clock.now() - began))
        return scene
    (taken,) = _taken
    await taken.photograph.put_into(hf)
    clock.advance(taken.after.total_seconds())
    return taken.scene.on(hf, clock)


async def _played(hf: Holdfast, clock: FakeClock) -> Scene:
    scene = Scene(hf, clock)
    await _build_resting(scene)
    await _build_working(scene)
    await _build_ended(scene)
    await _build_family(scene)
    await _build_storing(scene)
    await _build_lane(scene)
    await hf.journal.append(NOTES, [{"kind": "note", "data": {"n": n}} for n in range(4)])
    await hf.journal.append(LOG, [{"kind": "line", "data": "one"}])
    await hf.journal.append(LOG, [{"kind": "line", "data": "two"}])
    clock.advance(1)
    await hf.journal.sweep()
    return scene


async def _build_resting(scene: Scene) -> None:
    hf = scene.hf
    await scene.create("idle")
    await scene.create("pending", input={"n": 1})
    await scene.create("keyed", input=1, key="order-1")
    await scene.create("paused", input=1)
    await hf.pause(scene.runs["paused"], "look", metadata={"why": "odd"})
    await hf.signal(scene.runs["paused"], "while paused")
    await scene.create("asked", input=1)
    await hf.pause(scene.runs["asked"], "go-live", kind="approval")
    await scene.create("approved", input=1)
    await hf.pause(scene.runs["approved"], "go-live", kind="approval")
    await hf.approve(scene.runs["approved"], actor="ada", key="yes-1")
    await hf.complete(await scene.claimed("rested"), Ok())
    await hf.complete(await scene.claimed("sleeping"), Wait(seconds=3_600))
    scene.clock.advance(1)


async def _build_working(scene: Scene) -> None:
    hf = scene.hf
    await scene.claimed("mailbox")
    for n in range(3):
        await hf.signal(scene.runs["mailbox"], n, key=f"signal-{n}")
    claim = await scene.claimed("retried")
    scene.used_token_hash = await scene.value(
        "SELECT claim_token_hash FROM {s}work WHERE run_id = $1", scene.runs["retried"]
    )
    await hf.fail(claim, "not yet")
    scene.clock.advance(2)
    await scene.claim("retried")
    claim = await scene.claimed("talking")
    await hf.emit(claim, "text", "hello")
    await hf.heartbeat(claim)
    await hf.complete(claim, Continue({"page": 2}))
    await _build_steps(scene)


async def _build_steps(scene: Scene) -> None:
    run_id = await scene.create("stepping")
    step = {"runnable_key": "load#0", "step": "load"}
    planned = {"kind": "runnable_planned", "data": step}
    scheduled = {"kind": "attempt_scheduled", "data": {**step, "idempotency_key": "load#0"}}
    await scene.hf.journal.append(f"run:{run_id}", [planned, scheduled])


async def _build_storing(scene: Scene) -> None:
    claim = await scene.claimed("storing")
    await settle_storing(scene.hf, claim, Ok(), run={"n": 1}, session="ours", row="a row", **{"global": [1, 2]})


async def _build_lane(scene: Scene) -> None:
    for name in ("head", "queued"):
        await scene.create(name, input=name, lane="main")
    await scene.create("deleted", input=1, lane="main")
    scene.deleted["deleted"] = scene.runs.pop("deleted")
    await scene.hf.delete_run(scene.deleted["deleted"])


async def _build_ended(scene: Scene) -> None:
    hf = scene.hf
    claim = await scene.claimed("done")
    await hf.signal(scene.runs["done"], "on the way")
    await hf.complete(claim, Done({"answer": 42}))
    await hf.signal(scene.runs["done"], "too late")
    with pytest.raises(Conflict):
        await hf.complete(claim, Done({"answer": 43}))
    await hf.fail(await scene.claimed("failed"), "broken", retry=False)
    await scene.create("cancelled", input=1)
    await hf.cancel(scene.runs["cancelled"], "not wanted", actor="ada")
    await scene.create("lost", input=1)
    ghost = await scene.claim("lost", lease_ms=1_000)
    scene.clock.advance(1)
    claim = await scene.claim("lost")
    with pytest.raises(LeaseLost):
        await hf.complete(ghost, "late")
    await hf.complete(claim, Done("in time"))


async def _build_family(scene: Scene) -> None:
    hf = scene.hf
    await scene.claimed("parent")
    parent_id = scene.runs["parent"]
    for name in ("child", "sibling"):
        child_id = scene.runs[name] = f"{parent_id}.{name}"
        link = {"child_key": name, "step": "split"}
        started = {"kind": "child_run_started", "data": {**link, "child_run_id": child_id, "clog_id": "busy"}}
        await hf.journal.append(f"run:{parent_id}", [started])
        created = {"session_id": "s", "clog_id": "busy", "queue": name, "has_input": True, "input": name}
        body = {**created, "parent": {**link, "run_id": parent_id}}
        await hf.journal.append(f"run:{child_id}", [{"kind": "run_created", "data": body}], expected_rev=0)
    await hf.complete(await scene.claim("child"), Done("grown"))
    await hf.journal.sweep()
