"""Ids and names: what is not one is refused everywhere before anything is written; what merely looks evil is data."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from holdfast import Conflict, Holdfast, InvalidValue, Ok
from tests.conftest import EACH_VALUE
from tests.contract.builders import claim_one, create, entry, fenced, look, step_of
from tests.contract.stage import Stage, assert_healthy, note, refused, runs, set_stage

Call = Callable[[Stage, Any], Awaitable[Any]]
in_process = pytest.mark.parametrize("configuration", EACH_VALUE)


@pytest.fixture
async def stage(hf: Holdfast) -> Stage:
    return await set_stage(hf)


async def read_all(hf: Holdfast, run_id: str) -> list[Any]:
    return [event async for event in hf.events(run_id)]


BAD_IDS: dict[str, Any] = {
    "empty": "",
    "129 characters": "x" * 129,
    "10 kB": "x" * 10_240,
    "a path": "../../etc/passwd",
    "a space": "two words",
    "a trailing newline": "run\n",
    "emoji": "run😀",
    "an accent": "r\u00fcn",
    "a control character": "run\x1b[31m",
    "NUL": "run\0",
    "a lone surrogate": "run\ud800",
    "a quote": "run'",
    "double quotes": 'run","claim_id":"mine',
    "SQL": "x'; DROP TABLE runs; --",
    "percent": "%2e%2e",
    "a dash first": "-run",
    "a number": 5,
    "True": True,
    "bytes": b"run",
    "a list": ["run"],
}

ID_DOORS: dict[str, Call] = {
    "create_run run_id": lambda s, v: create(s.hf, run_id=v),
    "create_run session_id": lambda s, v: create(s.hf, session_id=v),
    "create_run clog_id": lambda s, v: create(s.hf, clog_id=v),
    "create_run user_id": lambda s, v: create(s.hf, user_id=v),
    "create_run queue": lambda s, v: create(s.hf, queue=v),
    "create_run lane": lambda s, v: create(s.hf, lane=v),
    "create_runs run_id": lambda s, v: s.hf.create_runs(runs(run_id=v)),
    "create_runs session_id": lambda s, v: s.hf.create_runs(runs(session_id=v)),
    "signal": lambda s, v: s.hf.signal(v, 1),
    "cancel": lambda s, v: s.hf.cancel(v),
    "pause": lambda s, v: s.hf.pause(v, "look"),
    "resume": lambda s, v: s.hf.resume(v),
    "approve": lambda s, v: s.hf.approve(v, actor="ada"),
    "reject": lambda s, v: s.hf.reject(v, actor="ada"),
    "get_run": lambda s, v: s.hf.get_run(v),
    "get_run as_of": lambda s, v: s.hf.get_run(v, as_of=1),
    "events": lambda s, v: read_all(s.hf, v),
    "fsck": lambda s, v: s.hf.fsck(v),
    "rebuild": lambda s, v: s.hf.rebuild(v),
    "claim_next queue": lambda s, v: s.hf.claim_next(v),
    "claim_next owner": lambda s, v: s.hf.claim_next(owner=v),
    "claim_next clogs": lambda s, v: s.hf.claim_next(clogs=[v]),
}


@in_process
@pytest.mark.parametrize("bad", BAD_IDS)
async def test_what_is_no_id_is_refused_at_every_door(stage: Stage, bad: str) -> None:
    said = {door: await refused(stage, call(stage, BAD_IDS[bad]), "invalid_id") for door, call in ID_DOORS.items()}

    assert [door for door, words in said.items() if "must be 1 to 128 letters, digits or _ . : @ -" not in words] == []
    assert max(map(len, said.values())) < 250
    await assert_healthy(stage)


NONE_MEANS_SOMETHING = frozenset(
    {"create_run run_id", "create_runs run_id", "create_run lane", "fsck", "rebuild", "claim_next queue"}
    | {"claim_next owner"}
)


@in_process
async def test_none_is_no_id_where_one_is_needed(stage: Stage) -> None:
    for door in ID_DOORS.keys() - NONE_MEANS_SOMETHING:
        await refused(stage, ID_DOORS[door](stage, None), "invalid_id")


@in_process
@pytest.mark.parametrize("good", ["x", "x" * 128, "A", "7", "a.b:c@d-e_f", "0...", "user:local", "x--"])
async def test_every_character_that_is_allowed_works(hf: Holdfast, good: str) -> None:
    await create(hf, run_id=good, session_id=good, clog_id=good, user_id=good, queue=good, lane=good)
    await hf.complete(await claim_one(hf, good, owner=good, clogs=[good]), "fine")

    ended = await look(hf, good)

    assert (ended.run_id, ended.session_id, ended.clog_id, ended.queue, ended.lane) == (good,) * 5
    assert ended.output == "fine"


@in_process
@pytest.mark.parametrize("bad", [name for name, value in BAD_IDS.items() if isinstance(value, str)])
async def test_hand_made_facts_name_things_by_ids_too(stage: Stage, bad: str) -> None:
    created: dict[str, Any] = {"session_id": "s", "clog_id": "c"}
    append = stage.hf.journal.append

    await refused(stage, append(f"run:{BAD_IDS[bad]}", [entry("run_created", **created)]), "invalid_id")
    for field in ("session_id", "clog_id", "queue", "lane", "user_id"):
        fact = entry("run_created", **{**created, field: BAD_IDS[bad]})
        await refused(stage, append("run:new", [fact]), "invalid_id")


@in_process
async def test_hand_made_keys_cannot_reach_into_the_line_of_a_claim(stage: Stage) -> None:
    append = stage.hf.journal.append

    for key in ("a'b", 'a","claim_id":"mine', "a\\", "a\nb", "a b", "\ufffd", "x" * 256):
        await refused(stage, append(f"run:{stage.idle}", [step_of("x", key)]), "invalid_id")
    for field in ("claim_id", "owner_id"):
        fact = entry("attempt_claimed", **{**fenced("", "mine")["data"], "owner_id": "w", "lease_us": 1, field: 'a"b'})
        await refused(stage, append(f"run:{stage.idle}", [fact]), "invalid_id")
    await assert_healthy(stage)


@in_process
@pytest.mark.parametrize("bad", ["", "x" * 10_240, "a\0b", "a\ud800b", 5, b"x", ["x"]], ids=lambda v: ascii(v)[:12])
async def test_what_is_no_name_is_refused_at_every_door(stage: Stage, bad: Any) -> None:
    hf = stage.hf
    calls = (
        hf.signal(stage.idle, 1, name=bad),
        hf.signal(stage.idle, 1, key=bad),
        create(hf, key=bad),
        hf.create_runs(runs(key=bad)),
        hf.pause(stage.idle, bad),
        hf.approve(stage.asked, actor="ada", key=bad),
        hf.emit(stage.claim, bad),
        hf.journal.append(bad, note(1)),
        hf.journal.read(bad),
        hf.journal.save_checkpoint(bad, 0, {}),
        hf.journal.load_checkpoint(bad),
        hf.journal.tail({bad: 0} if not isinstance(bad, list) else {"": 0}),
    )

    for call in calls:
        assert "without NUL or lone surrogates" in await refused(stage, call, "invalid_id")
    await assert_healthy(stage)


@in_process
@pytest.mark.parametrize("bad", ["", "x" * 10_240, "a\0b", "a\ud800b", 5], ids=lambda v: ascii(v)[:12])
async def test_a_run_is_looked_for_by_a_key_that_could_be_one(stage: Stage, bad: Any) -> None:
    await refused(stage, stage.hf.find_run(key=bad), "invalid_id")
    await refused(stage, stage.hf.find_run(key="k", user_id=bad), "invalid_id")


EVIL = [
    "x'; DROP TABLE runs; --",
    '"}{"',
    "../../etc/passwd",
    "two words",
    "😀\u2028",
    "%s %(x)s {s} $1 ?",
    "run",
    "Run:x",
]


@pytest.mark.parametrize("name", EVIL)
async def test_a_name_that_looks_evil_is_only_data(hf: Holdfast, name: str) -> None:
    run = await create(hf, key=name)
    claim = await claim_one(hf)
    await hf.signal(run.run_id, 1, name=name, key=name)
    await hf.emit(claim, name, name)
    await hf.journal.append(name, note(name))
    await hf.journal.save_checkpoint(name, 1, {name: name})
    await hf.complete(claim, Ok())
    await hf.pause(run.run_id, name)
    await hf.resume(run.run_id, step=name, actor=name, key=name + "2")
    await hf.cancel(run.run_id, name, actor=name)

    found = await hf.find_run(key=name)
    events = {event.type: event.data async for event in hf.events(run.run_id)}
    (noted,) = await hf.journal.read(name)

    assert found is not None
    assert found.run_id == run.run_id
    assert events[name] == name
    assert events["signal_received"]["name"] == name
    assert events["approval_resolved"] == {"step": name, "action": "resume", "actor": name, "comment": None}
    assert events["cancel_requested"] == {"reason": name, "actor": name}
    assert (noted.thread, noted.data) == (name, name)
    assert await hf.journal.load_checkpoint(name) == (1, {name: name})


@pytest.mark.parametrize("thread", ["catalog", "dispatch:default", "run_index:chat", "dispatch:", "run_index:"])
async def test_views_are_not_written(hf: Holdfast, thread: str) -> None:
    with pytest.raises(Conflict) as caught:
        await hf.journal.append(thread, note(1))

    assert caught.value.code == "reserved_thread"
    assert "append to run:<run_id>" in str(caught.value)


def test_a_runtime_is_not_made_with_a_bad_queue() -> None:
    with pytest.raises(InvalidValue, match="queue must be"):
        Holdfast(":memory:", queue="../x")
