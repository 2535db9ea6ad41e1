"""What cannot be read is never skipped: reading stops with an error that names the place, and writing never starts."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from datetime import timedelta
from typing import Any, NamedTuple

import pytest

from holdfast import Holdfast, InvalidEntry, NotFound
from holdfast.protocol.facts import KINDS, required_fields
from holdfast.protocol.values import digest
from tests.conftest import EACH_VALUE, FakeClock
from tests.contract.builders import claim_one, create, entry, idle, note

BROKEN = 3
"""The revision at which these tests break a run of five entries."""


class Fault(NamedTuple):
    """What is put in place of the entry, and what the error must say of it. A fault keeps its digest right or not."""

    name: str
    says: str
    kind: str = "event"
    body: str = '{"type":"text","v":1}'
    sealed: bool = True


FAULTS = (
    Fault("half a body", "cannot be read", body='{"type":"text"'),
    Fault("no JSON", "cannot be read", body="hello"),
    Fault("another JSON", "cannot be read", body="[]"),
    Fault("an unknown kind", "unknown kind 'from_tomorrow'", kind="from_tomorrow"),
    Fault("a missing field", "missing required field `type`", body='{"data":1,"v":1}'),
    Fault("a null field", "got `null`", body='{"type":null,"v":1}'),
    Fault("a wrong type", "Expected `str`, got `int`", body='{"type":5,"v":1}'),
    Fault("a number out of range", "Expected `int` >= 0", body='{"attempt":-1,"type":"text","v":1}'),
    Fault("a later version", "version 2, known is 1; upgrade", body='{"type":"text","v":2}'),
    Fault("a changed body", "digest does not match", sealed=False),
    Fault("a changed kind", "digest does not match", kind="anomaly", sealed=False),
)
faults = pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.name)
in_process = pytest.mark.parametrize("configuration", EACH_VALUE)


async def five_entries(hf: Holdfast) -> str:
    """A finished run: created, claimed, two events, the end."""
    run = await create(hf, input={"n": 1})
    claim = await claim_one(hf)
    await hf.emit(claim, "text", "one")
    await hf.emit(claim, "text", "two")
    await hf.complete(claim, "finished")
    return run.run_id


async def plant(hf: Holdfast, thread: str, fault: Fault, rev: int = BROKEN) -> int:
    """Put the fault in place of an entry; answer its position."""
    store = hf.journal.store
    where = "WHERE thread = $1 AND rev = $2"
    ((position, proof),) = await store.fetch(f"SELECT position, digest FROM {{s}}journal {where}", thread, rev)
    if fault.sealed:
        proof = digest(fault.kind, fault.body)
    sql = f"UPDATE {{s}}journal SET kind = $3, data = $4, digest = $5 {where}"
    await store.execute((sql, (thread, rev, fault.kind, fault.body, bytes(proof))))
    return int(position)


async def read_events(hf: Holdfast, run_id: str) -> list[Any]:
    return [event async for event in hf.events(run_id)]


def ways_to_read(hf: Holdfast, run_id: str, clock: FakeClock) -> dict[str, Callable[[], Awaitable[Any]]]:
    return {
        "read": lambda: hf.journal.read(f"run:{run_id}"),
        "read after": lambda: hf.journal.read(f"run:{run_id}", after=BROKEN - 1),
        "as of a revision": lambda: hf.get_run(run_id, as_of=5),
        "as of an instant": lambda: hf.get_run(run_id, as_of=clock.now() + timedelta(hours=1)),
        "events": lambda: read_events(hf, run_id),
        "tail": lambda: hf.journal.tail({f"run:{run_id}": 0}),
    }


@in_process
@faults
@pytest.mark.clause("S-10", "SB-18")
async def test_reading_stops_at_an_entry_that_cannot_be_read_and_names_its_place(
    hf: Holdfast, clock: FakeClock, fault: Fault
) -> None:
    run_id = await five_entries(hf)
    position = await plant(hf, f"run:{run_id}", fault)

    for way, read in ways_to_read(hf, run_id, clock).items():
        with pytest.raises(InvalidEntry) as caught:
            await read()

        error = caught.value
        assert (error.code, error.thread, error.rev, error.position) == (
            "invalid_entry",
            f"run:{run_id}",
            BROKEN,
            position,
        ), way
        assert f"invalid journal entry {BROKEN} of run:{run_id} (position {position}): " in str(error)
        assert fault.says in str(error)


@in_process
@pytest.mark.clause("S-10", "SB-18")
@pytest.mark.parametrize(
    "change", ["DELETE FROM {s}journal", "UPDATE {s}journal SET rev = 90"], ids=["lost", "shifted"]
)
async def test_reading_stops_at_a_gap(hf: Holdfast, clock: FakeClock, change: str) -> None:
    run_id = await five_entries(hf)
    thread = f"run:{run_id}"
    await hf.journal.store.execute((f"{change} WHERE thread = $1 AND rev = $2", (thread, BROKEN)))

    for way, read in ways_to_read(hf, run_id, clock).items():
        with pytest.raises(InvalidEntry) as caught:
            await read()

        assert (caught.value.code, caught.value.thread) == ("invalid_entry", thread), way
        assert f"revision {BROKEN} is missing; found {caught.value.rev} instead" in str(caught.value)


@pytest.mark.clause("S-10", "SB-18")
async def test_the_last_entry_is_missed_too(hf: Holdfast, clock: FakeClock) -> None:
    run_id = await five_entries(hf)
    thread = f"run:{run_id}"
    await hf.journal.store.execute(("DELETE FROM {s}journal WHERE thread = $1 AND rev = 5", (thread,)))
    ways = ways_to_read(hf, run_id, clock)
    ways["now"] = lambda: hf.get_run(run_id)
    del ways["tail"]

    for way, read in ways.items():
        with pytest.raises(InvalidEntry, match=f"entry 5 of {thread}: it is missing") as caught:
            await read()

        assert (caught.value.thread, caught.value.rev) == (thread, 5), way


@faults
@in_process
async def test_what_stands_before_the_fault_and_beside_it_can_still_be_read(
    hf: Holdfast, clock: FakeClock, fault: Fault
) -> None:
    run_id, healthy = await five_entries(hf), await five_entries(hf)
    before = await hf.get_run(run_id, as_of=BROKEN - 1)
    await hf.journal.append("notes", [note("kept")])
    await plant(hf, f"run:{run_id}", fault)

    assert await hf.get_run(run_id, as_of=BROKEN - 1) == before
    assert len(await hf.journal.read(f"run:{run_id}", limit=BROKEN - 1)) == BROKEN - 1
    assert len(await hf.journal.read(f"run:{healthy}")) == 5
    assert len(await read_events(hf, healthy)) == 5
    assert len(await hf.journal.read("notes")) == 1
    new = await create(hf)
    assert (await claim_one(hf)).run_id == new.run_id


@pytest.mark.clause("S-10")
async def test_an_input_that_cannot_be_read_is_not_replaced_by_nothing(hf: Holdfast) -> None:
    run = await create(hf, input={"n": 1})
    await plant(hf, f"run:{run.run_id}", Fault("", "", kind="run_created", body='{"input":2}', sealed=False), rev=1)

    with pytest.raises(InvalidEntry, match=f"invalid journal entry 1 of run:{run.run_id}"):
        await hf.get_run(run.run_id)


async def test_a_fault_in_one_run_does_not_cost_its_neighbours_their_claims(hf: Holdfast) -> None:
    broken, healthy = await create(hf, input=1), await create(hf, input=2)
    await plant(hf, f"run:{broken.run_id}", Fault("", "", kind="run_created", body='{"input":2}', sealed=False), rev=1)

    claims = await hf.claim_next(limit=2)

    assert [(claim.run_id, claim.input) for claim in claims] == [(healthy.run_id, 2)]


@pytest.mark.clause("S-10")
async def test_free_threads_are_proved_as_well(hf: Holdfast) -> None:
    await hf.journal.append("notes", [note(number) for number in range(4)])
    await hf.journal.append("others", [note("kept")])
    position = await plant(hf, "notes", Fault("", "", kind="note", body='{"text":7}', sealed=False), rev=2)

    with pytest.raises(InvalidEntry) as caught:
        await hf.journal.read("notes")

    assert (caught.value.thread, caught.value.rev, caught.value.position) == ("notes", 2, position)
    assert len(await hf.journal.read("others")) == 1
    assert len(await hf.journal.read("notes", limit=1)) == 1


async def test_a_free_thread_misses_its_last_entry(hf: Holdfast) -> None:
    await hf.journal.append("notes", [note(number) for number in range(4)])
    await hf.journal.store.execute(("DELETE FROM {s}journal WHERE thread = 'notes' AND rev = 4", ()))

    with pytest.raises(InvalidEntry, match="entry 4 of notes: it is missing"):
        await hf.journal.read("notes", after=2)


@pytest.mark.clause("S-10")
async def test_views_are_proved_entry_by_entry(hf: Holdfast) -> None:
    run_id = await five_entries(hf)
    await plant(
        hf, f"run:{run_id}", Fault("", "", kind="run_terminal", body='{"status":"failed"}', sealed=False), rev=5
    )

    for view in ("catalog", "run_index:chat", "dispatch:default"):
        with pytest.raises(InvalidEntry, match=f"invalid journal entry 5 of run:{run_id}"):
            await hf.journal.read(view)


@pytest.mark.parametrize("configuration", ["memory", "file"])
@pytest.mark.clause("S-10")
async def test_bytes_that_are_no_text_are_named_like_any_other_fault(hf: Holdfast, clock: FakeClock) -> None:
    run_id, healthy = await five_entries(hf), await five_entries(hf)
    sql = "UPDATE {s}journal SET data = CAST(x'7b22ff227d' AS text) WHERE thread = $1 AND rev = $2"
    await hf.journal.store.execute((sql, (f"run:{run_id}", BROKEN)))

    report = await hf.fsck()

    assert {problem.where for problem in report.problems} == {f"run:{run_id}"}
    assert (await hf.fsck(healthy)).ok
    for way, read in ways_to_read(hf, run_id, clock).items():
        with pytest.raises(InvalidEntry, match=f"invalid journal entry {BROKEN} of run:{run_id}") as caught:
            await read()

        assert caught.value.rev == BROKEN, way


CHILD = {"child_run_id": "c", "clog_id": "c", "child_key": "k"}


class TestMalformedFacts:
    """The low-level journal takes no entry that could not be read back."""

    async def total(self, hf: Holdfast) -> Any:
        return (await hf.journal.store.fetch("SELECT count(*) FROM {s}journal"))[0][0]

    @in_process
    @pytest.mark.clause("SB-2", "S-10")
    @pytest.mark.parametrize("kind", sorted(KINDS))
    async def test_every_missing_field_is_listed_and_null_counts_as_missing(self, hf: Holdfast, kind: str) -> None:
        run = await idle(hf)
        for data in ({}, dict.fromkeys(required_fields(kind))):
            if not required_fields(kind):
                continue
            with pytest.raises(InvalidEntry) as caught:
                await hf.journal.append(f"run:{run.run_id}", [entry("live_wakeup_emitted"), entry(kind, **data)])

            assert caught.value.code == "invalid_entry"
            assert f"this {kind} lacks {', '.join(required_fields(kind))}" in str(caught.value)
        assert await self.total(hf) == 1

    @pytest.mark.clause("SB-2", "S-10")
    @pytest.mark.parametrize(
        ("malformed", "says"),
        [
            (entry("from_tomorrow"), "unknown kind 'from_tomorrow'; a run's thread takes anomaly, "),
            (entry("event", type=5), "Expected `str`, got `int`"),
            (entry("event", type="text", attempt=-1), "Expected `int` >= 0"),
            (entry("event", type="text", attempt=True), "Expected `int`, got `bool`"),
            (entry("event", type="text", v=2), "version 2, known is 1"),
            (entry("child_run_started", **CHILD, metadata=[1]), "Expected `object`, got `array`"),
            ({"kind": "event"}, "must be an object, got NoneType"),
            ({"kind": "event", "data": [1]}, "must be an object, got list"),
            ({"data": {}}, 'an object with "kind" (text) and "data"'),
            ({"kind": "", "data": {}}, 'an object with "kind" (text) and "data"'),
            ({"kind": 5, "data": {}}, 'an object with "kind" (text) and "data"'),
            ({"kind": "k" * 129, "data": {}}, "at most 128 characters"),
            ({"kind": "a\0b", "data": {}}, "without NUL"),
            ("event", 'an object with "kind" (text) and "data"'),
            (None, 'an object with "kind" (text) and "data"'),
        ],
        ids=lambda value: str(value)[:40],
    )
    async def test_a_malformed_fact_is_refused_and_nothing_of_its_append_is_written(
        self, hf: Holdfast, malformed: Any, says: str
    ) -> None:
        run = await idle(hf)

        with pytest.raises(InvalidEntry) as caught:
            await hf.journal.append(f"run:{run.run_id}", [entry("event", type="text"), malformed])

        assert caught.value.code == "invalid_entry"
        assert says in str(caught.value)
        assert await self.total(hf) == 1

    @pytest.mark.clause("SB-2")
    @pytest.mark.parametrize("entries", [[], (), None, {}, 5], ids=repr)
    async def test_an_append_of_nothing_is_refused(self, hf: Holdfast, entries: Any) -> None:
        for thread in ("notes", "run:nobody"):
            with pytest.raises(InvalidEntry, match="give a list of at least one entry"):
                await hf.journal.append(thread, entries)

        assert await self.total(hf) == 0

    async def test_a_run_begins_with_its_creation(self, hf: Holdfast) -> None:
        with pytest.raises(InvalidEntry, match="its first entry must be a run_created"):
            await hf.journal.append("run:unborn", [entry("event", type="text")])

        assert await self.total(hf) == 0
        with pytest.raises(NotFound):
            await hf.fsck("unborn")
