"""export and import: a run in a file of its own, carried from any database to any other, word for word."""

from __future__ import annotations

import contextlib
import sqlite3
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest

from holdfast import Conflict, DatabaseError, Done, Holdfast, InvalidEntry, InvalidValue, NotFound, Ok
from tests.conftest import FakeClock
from tests.contract.builders import (
    LEASE_S,
    active,
    assert_sound,
    claim_one,
    count,
    create,
    entries,
    idle,
    in_status,
    look,
    settle_storing,
    shared,
    stored,
)
from tests.schemas import Schemas

STATUSES = ("idle", "pending", "waiting", "backing off", "paused", "done", "failed", "cancelled")


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "run.db"


@pytest.fixture(params=["file", "postgres"])
def another_place(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[tuple[str, str]]:
    """The address and the schema of a database that is not the one under test."""
    if request.param == "file":
        yield str(tmp_path / "elsewhere.db"), "holdfast"
        return
    schemas: Schemas = request.getfixturevalue("schemas")
    name = schemas.take()
    yield request.getfixturevalue("postgres_url"), name
    schemas.give_back(name)


@pytest.fixture
async def elsewhere(another_place: tuple[str, str], clock: FakeClock) -> AsyncIterator[Holdfast]:
    """Another database than the one under test."""
    url, schema = another_place
    async with Holdfast(url, schema=schema, clock=clock) as other:
        yield other
        await assert_sound(other)


def write(path: Path, text: str) -> None:
    path.write_text(text)


def read(path: Path) -> str:
    return path.read_text()


def is_there(path: Path) -> bool:
    return path.exists()


def harm(path: Path, statement: str) -> None:
    """What somebody else does to a file."""
    with contextlib.closing(sqlite3.connect(path)) as file:
        file.execute(statement)
        file.commit()


async def lines(hf: Holdfast, run_id: str) -> list[tuple[Any, ...]]:
    """A run's entries without their place in the database."""
    return [(each.rev, each.kind, each.data, each.at) for each in await entries(hf, run_id)]


@pytest.mark.parametrize("status", STATUSES)
async def test_the_file_is_a_sound_database_that_holds_the_run(hf: Holdfast, path: Path, status: str) -> None:
    run_id = await in_status(hf, status)
    await create(hf, run_id="other")

    await hf.export_run(run_id, path)

    assert [each.name for each in path.parent.iterdir() if each.name.startswith(("run.db", ".holdfast"))] == ["run.db"]
    async with Holdfast(str(path)) as file:
        assert await lines(file, run_id) == await lines(hf, run_id)
        assert await file.get_run(run_id) == await hf.get_run(run_id)
        assert (await file.fsck()).runs_checked == 1
        await assert_sound(file)


async def test_work_goes_on_in_the_file(hf: Holdfast, path: Path, clock: FakeClock) -> None:
    claim = await active(hf, run_id="r1", input={"n": 1})
    await settle_storing(hf, claim, Ok(), run="mine", row="x", session="ours", **{"global": "all"})
    await hf.signal("r1", "more")
    await claim_one(hf)
    await hf.export_run("r1", path)
    clock.advance(LEASE_S)

    async with Holdfast(str(path), clock=clock) as file:
        assert await stored(file, "r1") == await stored(hf, "r1")
        assert await shared(file) == await shared(hf)
        again = await claim_one(file)
        assert again.input == "more"
        await file.complete(again, Done("there"))
        await assert_sound(file)

    assert (await look(hf, "r1")).status == "active"


async def test_a_run_goes_to_another_database_and_on_with_it(
    hf: Holdfast, elsewhere: Holdfast, path: Path, clock: FakeClock
) -> None:
    claim = await active(hf, run_id="r1", input={"n": 1}, key="order-1")
    await settle_storing(hf, claim, Ok(), run="mine", row="x", session="ours")
    await hf.signal("r1", "more", key="once")
    await hf.export_run("r1", path)
    clock.advance(60)

    imported = await elsewhere.import_run(path)

    assert imported == await look(hf, "r1")
    assert await lines(elsewhere, "r1") == await lines(hf, "r1")
    assert await stored(elsewhere, "r1") == await stored(hf, "r1")
    assert await shared(elsewhere) == await shared(hf)
    found = await elsewhere.find_run(key="order-1")
    assert found == imported
    assert (await elsewhere.signal("r1", "more", key="once")).rev == imported.rev
    assert (await elsewhere.complete(await claim_one(elsewhere), Done("there"))).output == "there"


async def test_a_run_comes_from_another_database(hf: Holdfast, elsewhere: Holdfast, path: Path) -> None:
    await elsewhere.complete(
        await active(elsewhere, run_id="r1", input="\u2028 'quoted' \U0001f600"), Done({"a": [1.5]})
    )
    await elsewhere.export_run("r1", path)

    imported = await hf.import_run(path)

    assert imported == await look(elsewhere, "r1")
    assert await lines(hf, "r1") == await lines(elsewhere, "r1")


async def test_the_same_run_again_is_left_as_it_is(hf: Holdfast, path: Path) -> None:
    claim = await active(hf, run_id="r1")
    await hf.export_run("r1", path)
    await hf.complete(claim, Done("since then"))
    before = await lines(hf, "r1")

    assert (await hf.import_run(path)).output == "since then"
    assert (await hf.import_run(path)).output == "since then"

    assert await lines(hf, "r1") == before


async def test_another_run_under_its_id_is_a_conflict(hf: Holdfast, elsewhere: Holdfast, path: Path) -> None:
    await create(hf, run_id="r1", input="ours")
    await create(elsewhere, run_id="r1", input="theirs")
    await elsewhere.export_run("r1", path)
    before = await lines(hf, "r1")

    with pytest.raises(Conflict) as caught:
        await hf.import_run(path)

    assert caught.value.code == "id_reused"
    assert await lines(hf, "r1") == before


async def test_a_run_that_went_on_elsewhere_does_not_replace_its_beginning(
    hf: Holdfast, path: Path, clock: FakeClock
) -> None:
    await create(hf, run_id="r1")
    await hf.export_run("r1", path)
    async with Holdfast(str(path), clock=clock) as file:
        await file.complete(await claim_one(file))

    with pytest.raises(Conflict):
        await hf.import_run(path)

    assert (await look(hf, "r1")).status == "pending"


@pytest.mark.parametrize("removed", ["deleted", "purged"])
async def test_what_was_deleted_does_not_come_back(hf: Holdfast, path: Path, removed: str) -> None:
    await create(hf, run_id="r1")
    await hf.export_run("r1", path)
    await (hf.delete_run("r1") if removed == "deleted" else hf.purge("r1"))

    with pytest.raises(Conflict) as caught:
        await hf.import_run(path)

    assert caught.value.code == "id_reused"
    assert await hf.get_run("r1") is None


async def test_a_key_or_a_session_of_another_stands_in_the_way(hf: Holdfast, elsewhere: Holdfast, path: Path) -> None:
    await create(elsewhere, run_id="keyed", key="order-1", input="theirs")
    await create(hf, key="order-1", input="ours")
    await elsewhere.export_run("keyed", path)
    with pytest.raises(Conflict) as caught:
        await hf.import_run(path)
    assert caught.value.code == "key_reused"

    await create(elsewhere, run_id="adas", session_id="s2", user_id="ada")
    await create(hf, session_id="s2", user_id="bob")
    await elsewhere.export_run("adas", path.with_name("adas.db"))
    with pytest.raises(NotFound):
        await hf.import_run(path.with_name("adas.db"))
    assert await count(hf, "runs") == 2


async def test_lanes_keep_one_head_and_their_order(hf: Holdfast, elsewhere: Holdfast, path: Path) -> None:
    for name in ("theirs", "waiting"):
        await create(elsewhere, run_id=name, lane="main")
        await elsewhere.export_run(name, path.with_name(f"{name}.db"))
    await create(hf, run_id="ours", lane="main")

    assert (await hf.import_run(path.with_name("waiting.db"))).status == "pending"
    with pytest.raises(Conflict) as caught:
        await hf.import_run(path.with_name("theirs.db"))

    assert caught.value.code == "lane_held"
    assert (await hf.complete(await claim_one(hf))).run_id == "ours"
    assert (await hf.complete(await claim_one(hf))).run_id == "waiting"
    assert (await hf.import_run(path.with_name("theirs.db"))).run_id == "theirs"
    assert (await hf.complete(await claim_one(hf))).run_id == "theirs"


async def test_what_is_shared_here_is_not_overwritten(hf: Holdfast, elsewhere: Holdfast, path: Path) -> None:
    await settle_storing(elsewhere, await active(elsewhere, run_id="theirs"), Ok(), session="theirs")
    await settle_storing(hf, await active(hf, run_id="ours"), Ok(), session="ours")
    await elsewhere.export_run("theirs", path)

    await hf.import_run(path)

    assert await shared(hf) == {"session/s1/chat": '"ours"'}


async def test_a_fork_is_exported_with_its_beginning(hf: Holdfast, elsewhere: Holdfast, path: Path) -> None:
    await settle_storing(hf, await active(hf, run_id="r1"), Ok(), run=1, session=2)
    forked = await hf.fork("r1")
    await hf.export_run(forked.run_id, path)

    assert await elsewhere.import_run(path) == forked

    assert await stored(elsewhere, forked.run_id) == await stored(hf, forked.run_id)
    assert await shared(elsewhere) == {}


async def test_nothing_is_overwritten(hf: Holdfast, path: Path) -> None:
    await idle(hf, run_id="r1")
    write(path, "precious")

    with pytest.raises(Conflict) as caught:
        await hf.export_run("r1", path)

    assert caught.value.code == "file_exists"
    assert read(path) == "precious"
    assert list(path.parent.glob(".holdfast*")) == []


async def test_what_is_not_there_cannot_be_exported(hf: Holdfast, path: Path) -> None:
    await idle(hf, run_id="r1")
    await idle(hf, run_id="gone")
    await hf.delete_run("gone")

    for call in (
        hf.export_run("never", path),
        hf.export_run("gone", path),
        hf.export_run("r1", path / "no" / "folder.db"),
        hf.import_run(path),
    ):
        with pytest.raises(NotFound):
            await call
    assert not is_there(path)


async def test_a_file_that_is_no_export_is_refused(hf: Holdfast, path: Path) -> None:
    write(path, "not a database at all" * 100)
    with pytest.raises(DatabaseError):
        await hf.import_run(path)
    for number, statement in enumerate(("CREATE TABLE runs (id int)", "CREATE TABLE things (id int)")):
        foreign = path.with_name(f"foreign{number}.db")
        harm(foreign, statement)
        with pytest.raises((DatabaseError, InvalidValue)):
            await hf.import_run(foreign)
    async with Holdfast(str(path.with_name("two.db"))) as file:
        await create(file, run_id="a")
        await create(file, run_id="b")
    with pytest.raises(InvalidValue, match="more than one run"):
        await hf.import_run(path.with_name("two.db"))
    assert await count(hf, "runs") == 0


@pytest.mark.clause("S-10")
@pytest.mark.parametrize(
    "statement",
    [
        "UPDATE journal SET data = replace(data, 'hello', 'jello') WHERE rev = 1",
        "DELETE FROM journal WHERE rev = 2",
    ],
    ids=["changed", "lost"],
)
async def test_a_damaged_file_is_not_believed(hf: Holdfast, path: Path, statement: str) -> None:
    await hf.cancel((await create(hf, run_id="r1")).run_id)
    await hf.export_run("r1", path)
    await hf.purge("r1")
    harm(path, statement)

    with pytest.raises(InvalidEntry):
        await hf.import_run(path)


async def test_a_damaged_run_is_not_exported(hf: Holdfast, path: Path) -> None:
    await idle(hf, run_id="r1")
    good = await hf.journal.store.fetch("SELECT data FROM {s}journal WHERE thread = 'run:r1'")
    await hf.journal.store.execute(("UPDATE {s}journal SET data = '{}' WHERE thread = 'run:r1'", ()))

    with pytest.raises(InvalidEntry):
        await hf.export_run("r1", path)

    assert not is_there(path)
    await hf.journal.store.execute(("UPDATE {s}journal SET data = $1 WHERE thread = 'run:r1'", good[0]))


async def test_a_live_database_with_one_run_can_be_imported(hf: Holdfast, path: Path, clock: FakeClock) -> None:
    async with Holdfast(str(path), clock=clock) as file:
        await create(file, run_id="r1")

        assert (await hf.import_run(path)).run_id == "r1"
