"""Values come back as they were sent; what no database keeps is repaired and says so; both databases hold one text."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from holdfast import Conflict, Continue, Done, Fail, Holdfast, JournalEntry, LeaseLost, Ok, Retry
from holdfast.invariants.histories import journals_agree
from holdfast.store import Entry
from tests.conftest import IN_PROCESS, FakeClock
from tests.contract.builders import active, claim_one, create, entries, entry, idle, look, stolen

in_process = pytest.mark.parametrize("configuration", IN_PROCESS)


def nested(depth: int) -> Any:
    value: Any = []
    for _ in range(depth - 1):
        value = [value]
    return value


VALUES: dict[str, Any] = {
    "0": 0,
    "False": False,
    "empty text": "",
    "None": None,
    "negative zero": -0.0,
    "0.0": 0.0,
    "1e22": 1e22,
    "smallest and largest": [5e-324, -1.7976931348623157e308, 0.1],
    "beyond 64 bits": [1 << 63, 1 << 64, -(1 << 64)],
    "64 digits": [10**64 - 1, -(10**64 - 1)],
    "emoji": "a😀b👩‍👩‍👧",
    "line separators": "a\u2028b\u2029c\r\n\t",
    "control characters": "\x01\x1b[31m\x7f\x85",
    "not normalised": ["e\u0301", "\u00e9", "\ufeff", "\u202e"],
    "odd keys": {"": 1, "__proto__": 2, "a b": 3, "é": 4, "z": 5, "A": 6},
    "quotes and backslashes": "\"'\\u0000 \\ {s} $1 %s ?",
    "empty containers": [[], {}, [[]], {"a": {}}],
    "64 levels": nested(64),
    "large and nested": {f"k{n}": [{"n": n, "text": "x" * 50}] for n in range(2_000)},
    "a megabyte of text": "\u00e9" * (1 << 20),
}


def exact(value: Any) -> str:
    """Types, signs and digits and all, but not the order of keys."""
    if isinstance(value, dict):
        return "{" + ", ".join(f"{key!r}: {exact(value[key])}" for key in sorted(value)) + "}"
    return "[" + ", ".join(map(exact, value)) + "]" if isinstance(value, list) else repr(value)


@in_process
@pytest.mark.parametrize("name", VALUES)
async def test_a_value_comes_back_as_it_was_sent_through_every_door(hf: Holdfast, name: str) -> None:
    value = VALUES[name]
    run = await create(hf, input=value)
    seen = {"create_run": run.pending_input, "get_run": (await look(hf, run.run_id)).pending_input}

    claim = await claim_one(hf)
    await hf.emit(claim, "shown", value)
    await hf.complete(claim, Continue(value))
    again = await claim_one(hf)
    await hf.signal(run.run_id, value)
    await hf.complete(again, Ok())
    last = await claim_one(hf)
    await hf.complete(last, Done(value))
    await hf.journal.append("notes", [{"kind": "note", "data": value}])
    await hf.journal.save_checkpoint("notes", 1, value)

    seen |= {"claim": claim.input, "continue": again.input, "signal": last.input}
    seen |= {f"event {event.type}": event.data async for event in hf.events(run.run_id) if event.type == "shown"}
    seen |= {"output": (await look(hf, run.run_id)).output, "thread": (await hf.journal.read("notes"))[0].data}
    seen |= {"checkpoint": (await hf.journal.load_checkpoint("notes") or (0, "nothing"))[1]}
    assert {door: exact(found) for door, found in seen.items()} == dict.fromkeys(seen, exact(value))
    assert not any("repaired" in line.data for line in await entries(hf, run.run_id))


@in_process
async def test_an_edited_value_may_be_as_deep_as_any_other(hf: Holdfast) -> None:
    run = await idle(hf)
    await hf.pause(run.run_id, "go-live", kind="approval")

    await hf.approve(run.run_id, actor="ada", edited=nested(64))

    assert (await entries(hf, run.run_id))[-1].data["edited"] == nested(64)


@in_process
async def test_tuples_come_back_as_lists(hf: Holdfast) -> None:
    run = await create(hf, input=(1, ("a", {"b": (2.5, None)})))

    assert exact((await look(hf, run.run_id)).pending_input) == exact([1, ["a", {"b": [2.5, None]}]])


CARRIERS = frozenset(
    {"run_created", "manual_step_paused", "manual_step_resolved", "event", "tick_settled", "signal_received"}
    | {"cancel_requested"}
)
DIRTY = {"a\0b": ["x\ud800y", "\udfff\0"]}
CLEAN = {"a\ufffdb": ["x\ufffdy", "\ufffd\ufffd"]}


async def dirty_run(hf: Holdfast) -> list[JournalEntry]:
    """Everything that carries a value, sent with what no database keeps; the entries that hold it."""
    run = await create(hf, input=DIRTY, metadata=DIRTY, run_id="dirty")
    await hf.pause("dirty", "look", metadata=DIRTY, kind="approval")
    await hf.approve("dirty", actor="a\0", comment="b\ud800", edited=DIRTY)
    claim = await claim_one(hf)
    await hf.emit(claim, "shown", DIRTY)
    await hf.complete(claim, Continue(DIRTY))
    await hf.signal("dirty", DIRTY)
    await hf.complete(await claim_one(hf), Ok())
    await hf.fail(await claim_one(hf), "broken\0")
    await hf.journal.append("run:dirty", [entry("event", type="by hand", data=DIRTY)])
    await hf.cancel("dirty", "c\0", actor="d\ud800")
    return [
        line for line in await entries(hf, run.run_id) if line.kind in CARRIERS and line.data.get("outcome") != "ok"
    ]


@in_process
async def test_what_no_database_keeps_is_replaced_and_the_entry_says_so(hf: Holdfast) -> None:
    lines = await dirty_run(hf)

    assert [(line.kind, line.data["repaired"]) for line in lines] == [
        ("run_created", True),
        ("manual_step_paused", True),
        ("manual_step_resolved", True),
        ("event", True),
        ("tick_settled", True),
        ("signal_received", True),
        ("tick_settled", True),
        ("event", True),
        ("cancel_requested", True),
    ]
    created, paused, resolved, shown, continued, signalled, retried, by_hand, cancelled = (line.data for line in lines)
    values = [created["input"], created["metadata"], paused["metadata"], resolved["edited"], shown["data"]]
    values += [continued["input"], signalled["input"], by_hand["data"]]
    assert values == [CLEAN] * 8
    assert (resolved["actor"], resolved["comment"], retried["error"]) == ("a\ufffd", "b\ufffd", "broken\ufffd")
    assert (cancelled["reason"], cancelled["actor"]) == ("c\ufffd", "d\ufffd")


@in_process
async def test_errors_and_outputs_are_repaired_as_well(hf: Holdfast) -> None:
    done = await hf.complete(await active(hf), Done(DIRTY))
    failed = await hf.complete(await active(hf), Fail("broken\0"))

    assert (done.output, failed.last_error) == (CLEAN, "broken\ufffd")
    for run in (done, failed):
        assert (await entries(hf, run.run_id))[-1].data["repaired"] is True


@in_process
async def test_a_free_entry_that_was_repaired_says_so(hf: Holdfast) -> None:
    await hf.journal.append("notes", [{"kind": "note", "data": DIRTY}, {"kind": "note", "data": {"fine": 1}}])

    assert [line.data for line in await hf.journal.read("notes")] == [{**CLEAN, "repaired": True}, {"fine": 1}]


@in_process
async def test_an_error_is_kept_but_not_without_end(hf: Holdfast) -> None:
    failed = await hf.fail(await active(hf), "x" * (20 << 20))

    assert failed.last_error is not None
    assert len(failed.last_error) == 2_000
    assert failed.last_error.endswith("x…")


@pytest.fixture
async def twins(clock: FakeClock, postgres_url: str, schema: str) -> AsyncIterator[tuple[Holdfast, Holdfast]]:
    """The same runtime on both databases."""
    async with (
        Holdfast(":memory:", clock=clock) as one,
        Holdfast(postgres_url, clock=clock, schema=schema) as other,
    ):
        yield one, other


@pytest.mark.parametrize("configuration", ["postgres"])
async def test_the_same_calls_leave_the_same_lines_on_both_databases(twins: tuple[Holdfast, Holdfast]) -> None:
    async def act(hf: Holdfast) -> list[Entry]:
        for number, value in enumerate([*VALUES.values(), DIRTY]):
            run_id = f"r{number}"
            await create(hf, run_id=run_id, input=value, metadata={"x": DIRTY}, key=f"k{number}")
            await hf.pause(run_id, "look 😀", metadata={"x": DIRTY, "y": number}, kind="approval")
            await hf.approve(run_id, actor="\0", comment="\ud800", edited=[DIRTY, number])
            await hf.journal.append(f"run:{run_id}", [entry("event", type="text", data=DIRTY)])
            await hf.cancel(run_id, "\0", actor="é")
            await hf.journal.append("notes", [{"kind": "note", "data": value}, {"kind": "note", "data": DIRTY}])
        return [line for thread in await threads(hf) for line in await hf.journal.store.read(thread)]

    one, other = [await act(hf) for hf in twins]

    assert len(one) == 8 * (len(VALUES) + 1)
    assert list(journals_agree(one, other, "all")) == []
    assert [(line.thread, line.data, line.at) for line in one] == [(line.thread, line.data, line.at) for line in other]


@pytest.mark.parametrize("configuration", ["postgres"])
async def test_lines_that_databases_compose_themselves_agree_too(twins: tuple[Holdfast, Holdfast]) -> None:
    """Claims and heartbeats are put together by each database; only the random parts may differ."""

    async def act(hf: Holdfast) -> list[tuple[int, str, str]]:
        await dirty_run(hf)
        claim = await active(hf, run_id="beaten", queue="q")
        await hf.heartbeat(claim, lease_ms=1_234)
        await hf.complete(claim, Retry("again"))
        lines = [*await hf.journal.store.read("run:dirty"), *await hf.journal.store.read("run:beaten")]
        return [(line.rev, line.kind, masked(line.data)) for line in lines]

    one, other = [await act(hf) for hf in twins]

    assert one == other
    assert any('"lease_us":1234000' in data for _, kind, data in one if kind == "attempt_heartbeat")


async def threads(hf: Holdfast) -> list[str]:
    return sorted({row[0] for row in await hf.journal.store.fetch("SELECT thread FROM {s}journal")})


def bytes_of(folder: Path) -> list[str]:
    """The database's files themselves, where it has some."""
    return [file.read_bytes().decode("latin-1") for file in folder.glob("holdfast.db*")]


def masked(data: str) -> str:
    """The line without its random ids."""
    return re.sub(r"[0-9a-f]{8}-[0-9a-f-]{27}|[0-9a-f]{64}", "*", data)


class TestTokens:
    """Only a hash of a claim's token is ever kept."""

    async def tables(self, hf: Holdfast, configuration: str, schema: str) -> list[str]:
        sql = "SELECT name FROM sqlite_master WHERE type = 'table'"
        if configuration == "postgres":
            sql = f"SELECT table_name FROM information_schema.tables WHERE table_schema = '{schema}'"
        return [row[0] for row in await hf.journal.store.fetch(sql)]

    @pytest.mark.clause("S-29")
    async def test_no_table_log_or_error_shows_a_token(
        self,
        hf: Holdfast,
        configuration: str,
        schema: str,
        tmp_path: Path,
        clock: FakeClock,
        caplog: pytest.LogCaptureFixture,
    ) -> None:
        claim, retried, lost = await active(hf), await active(hf), await active(hf)
        said = [repr(claim), str(claim)]
        await hf.heartbeat(claim)
        await hf.emit(claim, "text", "hello")
        await hf.complete(claim, "done")
        await hf.fail(retried, "again")
        clock.advance(60)
        for late in (hf.complete(claim, "other"), hf.heartbeat(lost), hf.emit(stolen(lost), "x"), hf.release(retried)):
            with pytest.raises((Conflict, LeaseLost)) as caught:
                await late
            said.append(f"{caught.value!r} {caught.value}")
        taken = await hf.claim_next(limit=5)
        tokens = [one.token for one in (claim, retried, lost, *taken)]

        for table in await self.tables(hf, configuration, schema):
            said += [repr(row) for row in await hf.journal.store.fetch(f"SELECT * FROM {{s}}{table}")]
        said += [caplog.text, *bytes_of(tmp_path)]

        assert len(set(tokens)) == len(tokens) == 5
        assert [token for token in tokens if any(token in text for text in said)] == []
        assert all(len(token) >= 43 for token in tokens)

    async def test_a_hash_is_there_so_that_a_claim_can_be_proved(self, hf: Holdfast) -> None:
        claim = await active(hf)

        ((stored,),) = await hf.journal.store.fetch("SELECT claim_token_hash FROM {s}work")

        assert re.fullmatch("[0-9a-f]{64}", stored)
        assert stored != claim.token


async def test_an_idle_run_has_no_input_and_none_is_one(hf: Holdfast) -> None:
    resting, given = await idle(hf), await create(hf, input=None)

    assert (resting.status, given.status) == ("idle", "pending")
    assert (resting.pending_input, given.pending_input) == (None, None)


@in_process
async def test_names_and_errors_of_any_shape_are_kept_by_commits_of_many(hf: Holdfast) -> None:
    shapes = [
        "NULL",
        "null",
        'a "b"',
        "back\\slash",
        '\\"',
        "{x,y}",
        ",",
        " spaced ",
        "line\nbreak",
        "ü 🦑",
        "''",
        "$1",
    ]
    runs = await asyncio.gather(*(create(hf) for _ in shapes))
    claims = {claim.run_id: claim for claim in await hf.claim_next(limit=len(runs))}

    named = dict(zip((run.run_id for run in runs), shapes, strict=True))
    await asyncio.gather(*(hf.signal(run_id, 1, name=shape, key=shape) for run_id, shape in named.items()))
    await asyncio.gather(*(hf.fail(claims[run_id], shape, retry=False) for run_id, shape in named.items()))

    assert {run_id: (await look(hf, run_id)).last_error for run_id in named} == named
    names = await hf.journal.store.fetch("SELECT run_id, name FROM {s}signals")
    assert dict(names) == named
    assert (await hf.fsck()).ok
