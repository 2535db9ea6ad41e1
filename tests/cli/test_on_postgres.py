"""The same commands on Postgres, and what only a server can have wrong."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterator
from typing import Any

import asyncpg
import pytest

from tests.cli.conftest import Office, furnish


def execute(url: str, *statements: str) -> None:
    async def run() -> None:
        connection = await asyncpg.connect(url)
        for statement in statements:
            await connection.execute(statement)
        await connection.close()

    asyncio.run(run())


@pytest.fixture
def office(postgres_url: str) -> Iterator[Office]:
    """An office with a schema of its own, not made yet."""
    schema = f"cli_{os.getpid()}_{os.urandom(4).hex()}"
    yield Office(postgres_url, schema)
    execute(postgres_url, f'DROP SCHEMA IF EXISTS "{schema}" CASCADE')


def findings(office: Office, *words: str) -> dict[str, dict[str, Any]]:
    return {found["name"]: found for found in office.ask("doctor", "--json", *words).json["findings"]}


def test_from_nothing_to_a_proof(office: Office) -> None:
    early = office.ask("runs")
    migrated = office.ask("migrate")
    office.do(furnish)

    assert early.code == 2
    assert "run `holdfast migrate`" in early.err
    assert (migrated.code, migrated.out.endswith("is up to date at 0001_core\n")) == (0, True)
    assert [run["run_id"] for run in office.ask("runs", "--json").json["runs"]] == ["idle", "asked", "held", "done"]
    assert "worker-2" in office.ask("explain", "held").out
    assert office.ask("approve", "asked", "--actor", "ada").out == "asked is pending\n"
    assert [event["type"] for event in office.ask("tail", "done", "--json").lines][-1] == "done"
    assert len(office.ask("journal", "done", "--json").lines) == 4
    assert office.ask("fsck").code == 0


def test_a_healthy_server_is_fit_once_it_is_migrated(office: Office) -> None:
    before = office.ask("doctor")
    office.ask("migrate")
    after = office.ask("doctor")

    assert (before.code, after.code) == (1, 0)
    assert "run `holdfast migrate`" in before.out
    states = {name: found["state"] for name, found in findings(office).items()}
    assert set(states.values()) == {"ok"}
    assert states.keys() >= {"version", "role", "fsync", "synchronous_commit", "pooler", "timeouts", "schema"}


@pytest.mark.parametrize(
    ("setting", "name", "words"),
    [
        ("synchronous_commit = off", "synchronous_commit", "loses commits that were confirmed"),
        ("default_transaction_read_only = on", "role", "every transaction only reads"),
    ],
)
def test_a_setting_that_is_not_fit_is_named_with_its_cure(
    office: Office, postgres_url: str, setting: str, name: str, words: str
) -> None:
    role = office.schema
    execute(postgres_url, f"CREATE ROLE {role} LOGIN SUPERUSER", f"ALTER ROLE {role} SET {setting}")
    try:
        answer = office.ask("doctor", "--json", "--db", with_role(postgres_url, role))
        found = {each["name"]: each for each in answer.json["findings"]}[name]
    finally:
        execute(postgres_url, f"DROP ROLE {role}")

    assert answer.code == 1
    assert found["state"] == "problem"
    assert words in found["found"]
    assert found["advice"]


def test_a_role_that_may_not_create_is_told_what_it_needs(office: Office, postgres_url: str) -> None:
    role = office.schema
    execute(postgres_url, f"CREATE ROLE {role} LOGIN")
    try:
        answer = office.ask("doctor", "--json", "--db", with_role(postgres_url, role))
        found = {each["name"]: each for each in answer.json["findings"]}["schema"]
    finally:
        execute(postgres_url, f"DROP ROLE {role}")

    assert answer.code == 1
    assert f"CREATE SCHEMA {office.schema} AUTHORIZATION {role}" in found["advice"]


def test_behind_a_transaction_pooler_the_role_must_set_the_timeouts(office: Office) -> None:
    office.ask("migrate")
    joint = "&" if "?" in office.url else "?"

    found = findings(office, "--db", f"{office.url}{joint}pooler=transaction")["timeouts"]

    assert found["state"] == "warning"
    assert "SET statement_timeout = '15s'" in found["advice"]


def with_role(url: str, role: str) -> str:
    """The same server, as someone else."""
    head, _, tail = url.partition("://")
    return f"{head}://{role}:@{tail.partition('@')[2]}"
