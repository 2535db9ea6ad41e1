"""SQLite's own promises: how a file is opened, who may share it, and what happens when it is taken away."""

from __future__ import annotations

import asyncio
import fcntl
import os
import shutil
import sqlite3
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from holdfast import DatabaseError, Holdfast
from holdfast.store.committer import patiently
from holdfast.store.sqlite import SQLite
from holdfast.store.sqlite_writer import WriterHere
from holdfast.store.types import Busy, Rejected
from tests.conftest import FakeClock
from tests.contract.builders import claim_one, create
from tests.contract.others import (
    answer,
    create_without_end,
    fork_while_open,
    open_and_create,
    process,
)
from tests.contract.scene import build


@pytest.fixture
def path(tmp_path: Path) -> str:
    return str(tmp_path / "holdfast.db")


@pytest.fixture
async def file(path: str, clock: FakeClock) -> AsyncIterator[Holdfast]:
    async with Holdfast(path, clock=clock) as hf:
        yield hf


def raw(path: str) -> sqlite3.Connection:
    """A connection of someone who does not know Holdfast."""
    return sqlite3.connect(path, isolation_level=None)


class TestOpening:
    @pytest.mark.clause("S-11b")
    async def test_every_connection_syncs_fully_in_wal_with_foreign_keys(self, path: str) -> None:
        def pragmas(connection: sqlite3.Connection, now: int) -> dict[str, object]:
            names = ("synchronous", "journal_mode", "foreign_keys", "trusted_schema", "busy_timeout")
            return {name: connection.execute(f"PRAGMA {name}").fetchone()[0] for name in names}

        database = SQLite(path, None)
        await database.open()
        found = [await database._write(pragmas), await database._read(pragmas)]
        await database.close()

        wanted = {
            "synchronous": 2,
            "journal_mode": "wal",
            "foreign_keys": 1,
            "trusted_schema": 0,
            "busy_timeout": 5_000,
        }
        assert found == [wanted, wanted]

    async def test_a_path_and_its_urls_mean_one_file(self, path: str, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.chdir(os.path.dirname(path))
        names = (path, f"sqlite:///{path}", "holdfast.db", "sqlite:///holdfast.db", "./holdfast.db")

        for name in names:
            async with Holdfast(name) as hf:
                await create(hf)
                count = (await hf.journal.store.fetch("SELECT count(*) FROM runs"))[0][0]

        assert count == len(names)
        assert sorted(os.listdir()) == ["holdfast.db", "holdfast.db-turn", "holdfast.db-write"]

    @pytest.mark.clause("S-11")
    @pytest.mark.parametrize("url", ["mysql://host/db", "mongodb://x", "http://x", "sqlite://x.db", "file://x.db"])
    def test_a_database_nobody_knows_is_refused_at_once(self, url: str) -> None:
        with pytest.raises(DatabaseError, match="use a path, sqlite:///path or postgresql://") as caught:
            Holdfast(url)

        assert caught.value.code == "unknown_database"

    @pytest.mark.parametrize("url", ["", "sqlite:///"])
    def test_an_empty_address_is_not_taken_for_memory(self, url: str) -> None:
        with pytest.raises(DatabaseError):
            Holdfast(url)

    async def test_databases_in_memory_are_strangers(self) -> None:
        async with Holdfast(":memory:") as one, Holdfast(":memory:") as other:
            run = await create(one)

            assert await other.get_run(run.run_id) is None

    async def test_closing_twice_is_closing_once_and_a_closed_one_says_so(self, path: str) -> None:
        hf = Holdfast(path)
        for call in (hf.open, hf.close, hf.close):
            await call()

        with pytest.raises(DatabaseError) as caught:
            await asyncio.wait_for(create(hf), 10)

        assert caught.value.code == "not_open"
        async with hf:
            assert (await create(hf)).status == "pending"


COUNT = "INSERT INTO numbers (number) SELECT count(*) FROM numbers RETURNING number"


class TestInMemory:
    @pytest.fixture
    async def database(self) -> AsyncIterator[SQLite]:
        database = SQLite(":memory:", None)
        await database.open()
        await database.execute([("CREATE TABLE numbers (number integer PRIMARY KEY)", ())])
        yield database
        await database.close()

    async def test_jobs_run_where_they_are_asked_for(self, database: SQLite) -> None:
        asked = [database._write(lambda *_: threading.get_ident()), database._read(lambda *_: threading.get_ident())]

        assert await asyncio.gather(*asked) == [threading.get_ident()] * 2

    async def test_what_is_asked_in_one_turn_is_one_commit_and_a_failure_takes_nobody_along(
        self, database: SQLite
    ) -> None:
        begun: list[str] = []
        database._opened()._connection.set_trace_callback(begun.append)  # type: ignore[union-attr]
        good = [database.execute([(COUNT, ())]) for _ in range(3)]

        await asyncio.gather(*good)
        assert begun.count("BEGIN IMMEDIATE") == 1
        bad = database.execute([("INSERT INTO numbers (number) VALUES (0)", ())])
        *_, refused = await asyncio.gather(database.execute([(COUNT, ())]), bad, return_exceptions=True)

        assert isinstance(refused, Rejected)
        assert await database.fetch("SELECT count(*) FROM numbers") == [(4,)]

    async def test_loops_of_other_threads_share_it(self, database: SQLite) -> None:
        async def count() -> None:
            for _ in range(100):
                await database.execute([(COUNT, ())])

        await asyncio.gather(count(), *(asyncio.to_thread(lambda: asyncio.run(count())) for _ in range(3)))

        assert await database.fetch("SELECT count(*) FROM numbers") == [(400,)]

    async def test_what_was_accepted_is_answered_before_it_is_closed(self, database: SQLite) -> None:
        asking = asyncio.create_task(database.execute([(COUNT, ())]))
        reading = asyncio.create_task(database.fetch("SELECT count(*) FROM numbers"))
        await asyncio.sleep(0)
        writer = database._opened()
        assert isinstance(writer, WriterHere)
        assert [len(batch) for batch in writer._gathered.values()] == [2]

        await writer.stop()

        await asking
        assert await reading == [(1,)]


class TestTakenAway:
    @pytest.mark.parametrize("how", ["removed", "replaced", "moved"])
    async def test_a_file_that_is_taken_away_is_neither_written_nor_read(
        self, file: Holdfast, path: str, how: str
    ) -> None:
        run = await create(file)
        await file.get_run(run.run_id)
        if how == "replaced":
            shutil.copy(path, f"{path}.copy")
            os.rename(f"{path}.copy", path)
        elif how == "moved":
            os.rename(path, f"{path}.away")
        else:
            os.remove(path)

        for call in (create(file), file.get_run(run.run_id), file.journal.append("notes", [{"kind": "n", "data": 1}])):
            with pytest.raises(DatabaseError, match="reopen") as caught:
                await call
            assert caught.value.code == "database_replaced"

        assert ("holdfast.db" in os.listdir(os.path.dirname(path))) == (how == "replaced")

    async def test_nobody_puts_an_empty_file_in_its_place(self, path: str) -> None:
        database = SQLite(path, None)
        await database.open()
        os.rename(path, f"{path}.away")

        with pytest.raises(sqlite3.OperationalError, match="unable to open"):
            await database.listen(lambda topics: None)

        assert "holdfast.db" not in os.listdir(os.path.dirname(path))
        await database.close()

    async def test_a_file_that_comes_back_is_used_again(self, file: Holdfast, path: str) -> None:
        run = await create(file)
        os.rename(path, f"{path}.away")
        with pytest.raises(DatabaseError):
            await file.signal(run.run_id, 1)
        os.rename(f"{path}.away", path)

        assert (await file.signal(run.run_id, 1)).accepted
        assert (await file.fsck()).ok


@contextmanager
def transaction(path: str) -> Iterator[None]:
    """Someone else's write transaction."""
    connection = raw(path)
    connection.execute("BEGIN IMMEDIATE")
    yield
    connection.execute("ROLLBACK")
    connection.close()


@contextmanager
def turn(path: str) -> Iterator[None]:
    """Another process of ours whose turn it is to write."""
    descriptor = os.open(f"{path}-write", os.O_RDWR)
    fcntl.flock(descriptor, fcntl.LOCK_EX)
    yield
    os.close(descriptor)


class TestSharing:
    @pytest.mark.parametrize("hold", [transaction, turn], ids=["transaction", "turn"])
    async def test_a_writer_waits_for_another_and_readers_do_not(self, file: Holdfast, path: str, hold: type) -> None:
        run = await create(file)

        with hold(path):
            waiting = asyncio.create_task(create(file))
            done, _ = await asyncio.wait({waiting}, timeout=0.3)
            seen = await file.get_run(run.run_id)

        assert (done, seen) == (set(), run)
        assert (await asyncio.wait_for(waiting, 20)).status == "pending"

    @pytest.mark.parametrize("hold", [transaction, turn], ids=["transaction", "turn"])
    async def test_a_writer_that_waits_too_long_is_told_to_come_back(self, path: str, hold: type) -> None:
        database = SQLite(path, None, busy_timeout_s=0.05)
        await database.open()
        await database.migrate()
        note = [("INSERT INTO threads (thread, rev, at) VALUES ($1, 1, 1)", ("notes",))]

        with hold(path):
            with pytest.raises(Busy):
                await database.execute(note)
            with pytest.raises(DatabaseError, match="was not ready") as caught:
                await patiently(lambda: database.execute(note), patience_s=0.1)
        await database.execute(note)

        assert caught.value.code == "database_timeout"
        assert await database.fetch("SELECT thread, rev FROM threads") == [("notes", 1)]
        await database.close()

    async def test_a_busy_process_does_not_starve_another(self, path: str) -> None:
        with process(create_without_end, path) as (_, pipe):
            answer(pipe)
            async with Holdfast(path) as hf:
                loop = asyncio.get_running_loop()
                slowest = 0.0
                for _ in range(30):
                    begun = loop.time()
                    await create(hf)
                    slowest = max(slowest, loop.time() - begun)
            progress = 0
            while pipe.poll():
                pipe.recv()
                progress += 1

        assert slowest < 4
        assert progress > 30

    @pytest.mark.clause("S-11b")
    def test_a_fork_does_not_share_the_connection(self, path: str) -> None:
        with process(fork_while_open, path) as (_, pipe):
            in_the_child = [answer(pipe) for _ in range(3)]
            parent_is_sound = answer(pipe)

        assert in_the_child == ["forked_process"] * 3
        assert parent_is_sound

    async def test_a_writer_that_is_killed_leaves_everything_it_acknowledged(self, path: str) -> None:
        with process(create_without_end, path) as (writer, pipe):
            acknowledged = [answer(pipe) for _ in range(40)]
            writer.kill()
            writer.join()
            while pipe.poll():
                try:
                    acknowledged.append(pipe.recv())
                except EOFError:
                    break

        async with Holdfast(path) as hf:
            report = await hf.fsck()
            found = {row[0] for row in await hf.journal.store.fetch("SELECT run_id FROM runs")}
            claim = await claim_one(hf)
            ended = await hf.complete(claim, "carried on")

        assert report.problems == ()
        assert found >= set(acknowledged)
        assert ended.output == "carried on"


class TestMigrations:
    async def test_opening_again_changes_nothing(self, path: str) -> None:
        async def schema(hf: Holdfast) -> list[tuple[object, ...]]:
            migrations = await hf.journal.store.fetch("SELECT * FROM holdfast_migrations")
            return migrations + await hf.journal.store.fetch("SELECT name, sql FROM sqlite_master ORDER BY name")

        async with Holdfast(path) as hf:
            first = await schema(hf)
        async with Holdfast(path) as hf, Holdfast(path) as other:
            assert await schema(hf) == await schema(other) == first

    def test_many_processes_may_open_a_new_file_at_once(self, path: str) -> None:
        with (
            process(open_and_create, path) as (_, one),
            process(open_and_create, path) as (_, two),
            process(open_and_create, path) as (_, three),
        ):
            pipes = (one, two, three)
            assert [answer(pipe) for pipe in pipes] == ["ready"] * 3
            for pipe in pipes:
                pipe.send("go")
            run_ids = {answer(pipe) for pipe in pipes}

        connection = raw(path)
        stored = {row[0] for row in connection.execute("SELECT run_id FROM runs")}
        versions = sorted(row[0] for row in connection.execute("SELECT version FROM holdfast_migrations"))
        connection.close()
        assert stored == run_ids
        assert versions == list(range(1, len(versions) + 1))

    @pytest.mark.clause("S-11b")
    async def test_a_schema_of_the_future_is_refused_untouched(self, path: str) -> None:
        async with Holdfast(path) as hf:
            await create(hf)
        connection = raw(path)
        connection.execute("INSERT INTO holdfast_migrations VALUES (9999, '9999_future', 0)")
        before = list(connection.iterdump())
        hf = Holdfast(path)

        with pytest.raises(DatabaseError, match=r"has migration 9999.*upgrade holdfast") as caught:
            await hf.open()
        await hf.close()

        assert caught.value.code == "schema_too_new"
        assert list(connection.iterdump()) == before
        connection.close()


async def test_a_backup_of_a_living_database_is_whole(file: Holdfast, path: str, clock: FakeClock) -> None:
    scene = await build(file, clock)
    lines, infos = await scene.digests(), await scene.infos()

    connection = raw(path)
    connection.execute("VACUUM INTO ?", (f"{path}.backup",))
    connection.close()
    await create(file)

    async with Holdfast(f"{path}.backup", clock=clock) as copy:
        scene.hf = copy
        assert (await copy.fsck()).problems == ()
        assert (await scene.digests(), await scene.infos()) == (lines, infos)
        new = await create(copy)
        assert (await copy.journal.read(f"run:{new.run_id}"))[0].position > lines[-1][0]
