"""`migrate`, `fsck`, `rebuild`, and what every command does with a database that is not fit."""

from __future__ import annotations

import os
import sqlite3
from pathlib import Path

import pytest

from holdfast import Holdfast
from holdfast.cli.app import Choice, Desk
from tests.cli.conftest import Office
from tests.http.households import start


def damage(office: Office, sql: str) -> None:
    connection = sqlite3.connect(office.url)
    with connection:
        connection.execute(sql)
    connection.close()


def test_migrate_makes_a_database_and_is_safe_to_repeat(bare: Office) -> None:
    first, again = bare.ask("migrate"), bare.ask("migrate", "--json")

    assert (first.code, first.out) == (0, f"{bare.url} is up to date at 0001_core\n")
    assert again.json == {"database": bare.url, "schema": "up to date at 0001_core"}
    assert bare.ask("runs").out == "no runs\n"


@pytest.mark.clause("WB-16")
@pytest.mark.parametrize("kind", ["file", "postgres"])
async def test_processes_that_migrate_at_once_make_one_schema(
    kind: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    url = str(request.getfixturevalue("postgres_url")) if kind == "postgres" else str(tmp_path / "raced.db")
    schema = f"m{os.getpid()}_{os.urandom(4).hex()}"
    given = {"HOLDFAST_DATABASE_URL": url, "HOLDFAST_SCHEMA": schema}

    rivals = [await start("migrate", **given) for _ in range(4)]
    codes = [await rival.ended() for rival in rivals]

    assert codes == [0] * 4, b"".join(line for rival in rivals for line in rival.log).decode()
    async with Holdfast(url, schema=schema) as hf:
        table = "{s}migrations" if kind == "postgres" else "holdfast_migrations"
        versions = [row[0] for row in await hf.journal.store.fetch(f"SELECT version FROM {table} ORDER BY version")]
        assert versions == list(range(1, len(versions) + 1))
        assert (await hf.fsck()).ok
        if kind == "postgres":
            await hf.journal.store.execute((f'DROP SCHEMA "{schema}" CASCADE', ()))


def test_only_migrate_makes_a_database(bare: Office) -> None:
    for command in ("runs", "fsck", "rebuild"):
        answer = bare.ask(command)
        assert (answer.code, answer.out) == (2, "")
        assert answer.err == (
            f"holdfast: there is no database {bare.url}; `holdfast migrate` makes one, --db names another\n"
        )
    assert not Path(bare.url).exists()


def test_an_old_schema_is_named(bare: Office) -> None:
    damage(bare, "CREATE TABLE other (x)")

    answer = bare.ask("runs")

    assert answer.code == 2
    assert "not up to date (0001_core is to be run); run `holdfast migrate`" in answer.err


def test_a_schema_from_the_future_is_refused(office: Office) -> None:
    damage(office, "INSERT INTO holdfast_migrations VALUES (9999, '9999_later', 0)")

    for command in ("runs", "migrate"):
        answer = office.ask(command)
        assert answer.code == 2
        assert "upgrade holdfast" in answer.err


@pytest.mark.parametrize("command", ["runs", "migrate", "fsck"])
@pytest.mark.parametrize(
    ("url", "words"),
    [
        ("/nowhere/holdfast.db", "the folder /nowhere does not exist"),
        ("/tmp", "is a folder"),
        ("mysql://host/db", "mysql:// is no database Holdfast knows"),
        ("postgresql://u:secret@127.0.0.1:1/db", "the database cannot be reached"),
        ("postgresql://[bad", "cannot be read"),
        ("postgresql://h/db?pooler=statement", "pooler=transaction"),
    ],
)
def test_a_database_that_cannot_be_opened_costs_one_sentence(bare: Office, command: str, url: str, words: str) -> None:
    answer = bare.ask(command, "--db", url)

    assert (answer.code, answer.out) == (2, "")
    assert words in answer.err
    assert answer.err.startswith("holdfast: ")
    assert answer.err.count("\n") == 1
    assert "secret" not in answer.err


def test_a_file_that_is_no_database_is_named(bare: Office) -> None:
    Path(bare.url).write_bytes(b"not a database, whatever its name says" * 100)

    for command in ("runs", "migrate"):
        answer = bare.ask(command)
        assert (answer.code, answer.err.count("\n")) == (2, 1)
        assert "file is not a database" in answer.err


def test_a_database_in_memory_is_refused(bare: Office) -> None:
    assert "ends with this command" in bare.ask("runs", "--db", ":memory:").err


def test_options_may_stand_before_or_after_the_command(office: Office, tmp_path: Path) -> None:
    other = str(tmp_path / "other.db")
    office.ask("migrate", "--db", other)

    assert office.ask("--db", other, "--json", "runs").json == {"runs": [], "next": None}
    assert office.ask("runs", "--db", other, "--json").json == {"runs": [], "next": None}
    assert office.ask("--db", "/nowhere/x.db", "runs", "--db", f"sqlite:///{other}").code == 0


def test_fsck_proves_and_rebuild_repairs(office: Office) -> None:
    sound = office.ask("fsck")
    damage(office, "UPDATE runs SET status = 'failed' WHERE run_id = 'idle'")
    broken = office.ask("fsck", "--json")
    shown = office.ask("fsck", "idle")
    elsewhere = office.ask("fsck", "done")
    rebuilt = office.ask("rebuild", "--json")

    assert (sound.code, sound.out) == (0, "4 runs checked: rows and journal agree\n")
    assert (broken.code, broken.json["ok"]) == (1, False)
    assert (shown.code, elsewhere.code) == (1, 0)
    assert "problems found" in shown.out
    assert (rebuilt.code, rebuilt.json["ok"]) == (0, True)


def test_a_damaged_journal_is_a_problem_not_an_accident(office: Office) -> None:
    damage(office, """UPDATE journal SET data = '{"v":1}' WHERE thread = 'run:idle'""")

    for words in (["journal", "idle"], ["inspect", "idle"], ["fsck"], ["rebuild"]):
        answer = office.ask(*words)
        assert answer.code == 1, words
        assert "Traceback" not in answer.err


@pytest.mark.parametrize(
    ("url", "place"),
    [
        ("holdfast.db", "holdfast.db"),
        ("sqlite:///x/holdfast.db", "sqlite:///x/holdfast.db"),
        ("postgresql://ada:secret@host:5432/db?application_name=x", "postgresql://host/db"),
        ("postgresql://ada:secret@/db?host=/run", "postgresql:///db"),
    ],
)
def test_a_password_is_never_shown(url: str, place: str) -> None:
    assert Desk(Choice(url)).place == place
