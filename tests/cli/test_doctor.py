"""`doctor`: what is wrong with the database and its place, in words, and what to do."""

from __future__ import annotations

import os
import sqlite3
from collections import namedtuple
from pathlib import Path
from typing import Any

import pytest

from holdfast.store import sqlite_doctor, sqlite_files
from tests.cli.conftest import Answer, Office, furnish


def findings(answer: Answer) -> dict[str, dict[str, Any]]:
    return {found["name"]: found for found in answer.json["findings"]}


def test_a_healthy_file_is_fit(office: Office) -> None:
    people, programs = office.ask("doctor"), office.ask("doctor", "--json")

    assert people.code == 0
    assert people.out.endswith(f"{office.url} is fit for use\n")
    assert programs.json["ok"] is True
    assert {name: found["state"] for name, found in findings(programs).items()} == dict.fromkeys(
        ("version", "place", "free disk", "WAL size", "journal mode", "synchronous", "schema"), "ok"
    )


@pytest.mark.clause("XB-12")
@pytest.mark.parametrize(("said", "state"), [("250", "ok"), ("soon", "warning")])
def test_the_limit_of_the_environment_is_looked_at(
    office: Office, monkeypatch: pytest.MonkeyPatch, said: str, state: str
) -> None:
    monkeypatch.setenv("HOLDFAST_STATEMENT_TIMEOUT_MS", said)

    answer = office.ask("doctor", "--json")

    assert answer.code == 0
    found = findings(answer)["statement timeout"]
    assert (found["state"], said in found["found"]) == (state, True)


def test_nothing_is_made_by_looking(bare: Office) -> None:
    folder = Path(bare.url).parent

    answer = bare.ask("doctor", "--json")
    found = os.listdir(folder)
    bare.do(furnish)
    before = sorted(os.listdir(folder))
    bare.ask("doctor")

    assert answer.code == 0
    assert "does not exist yet" in findings(answer)["file"]["found"]
    assert found == []
    assert sorted(os.listdir(folder)) == before


def test_a_file_in_use_is_fit_too(office: Office) -> None:
    reader = sqlite3.connect(office.url)
    reader.execute("SELECT count(*) FROM runs").fetchall()

    assert office.ask("doctor").code == 0
    assert office.ask("signal", "idle").code == 0
    reader.close()


def test_a_schema_that_is_behind_needs_migrate(bare: Office) -> None:
    sqlite3.connect(bare.url).execute("CREATE TABLE other (x)").connection.close()

    answer = bare.ask("doctor", "--json")

    found = findings(answer)
    assert answer.code == 1
    assert (found["schema"]["state"], found["schema"]["advice"]) == ("problem", "run `holdfast migrate`")
    assert (found["journal mode"]["state"], found["journal mode"]["found"]) == (
        "warning",
        "a rollback journal, not wal",
    )
    assert "is not fit for use yet" in bare.ask("doctor").out


def test_a_file_that_is_no_database_is_a_problem(bare: Office) -> None:
    Path(bare.url).write_bytes(b"something else altogether" * 100)

    answer = bare.ask("doctor", "--json")

    assert answer.code == 1
    assert "file is not a database" in findings(answer)["file"]["found"]


def test_a_network_filesystem_is_a_problem(office: Office, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sqlite_files, "filesystem", lambda folder, mounts: "nfs4")

    answer = office.ask("doctor", "--json")

    assert answer.code == 1
    assert "network filesystem (nfs4)" in findings(answer)["place"]["found"]


@pytest.mark.parametrize(("free", "state", "code"), [(500 << 20, "warning", 0), (50 << 20, "problem", 1)])
def test_a_full_disk_is_seen_coming(
    office: Office, monkeypatch: pytest.MonkeyPatch, free: int, state: str, code: int
) -> None:
    usage = namedtuple("usage", "total used free")
    monkeypatch.setattr("shutil.disk_usage", lambda path: usage(1 << 40, 0, free))

    answer = office.ask("doctor", "--json")

    assert (answer.code, findings(answer)["free disk"]["state"]) == (code, state)


def test_a_log_that_cannot_be_emptied_is_a_warning(office: Office, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sqlite_doctor, "WAL_BYTES_MAX", -1)

    answer = office.ask("doctor", "--json")

    assert (answer.code, findings(answer)["WAL size"]["state"]) == (0, "warning")


def test_an_old_library_is_a_problem(office: Office, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sqlite_doctor, "OLDEST", (99, 0, 0))

    answer = office.ask("doctor", "--json")

    assert (answer.code, findings(answer)["version"]["state"]) == (1, "problem")


@pytest.mark.parametrize(
    ("url", "words"),
    [
        ("postgresql://u:secret@127.0.0.1:1/db", "the database cannot be reached"),
        ("mysql://host/db", "no database Holdfast knows"),
    ],
)
def test_what_cannot_be_reached_cannot_be_examined(bare: Office, url: str, words: str) -> None:
    answer = bare.ask("doctor", "--db", url)

    assert (answer.code, answer.out) == (2, "")
    assert words in answer.err


def test_a_place_that_does_not_exist_is_a_problem(bare: Office) -> None:
    answer = bare.ask("doctor", "--db", "/nowhere/holdfast.db", "--json")

    assert answer.code == 1
    assert "does not exist" in findings(answer)["place"]["found"]
