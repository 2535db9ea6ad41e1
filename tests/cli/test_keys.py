"""`keys`: made, rotated, created, listed and revoked, in words and in JSON."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from holdfast import Holdfast
from holdfast.credentials import ApiKey, KeyRing
from tests.cli.conftest import Office
from tests.cli.test_on_postgres import execute
from tests.credentials.keys import K1, K2

SECRET = "sk-canary-0123456789"


@pytest.fixture(params=["file", "postgres"])
def office(request: pytest.FixtureRequest, bare: Office, monkeypatch: pytest.MonkeyPatch) -> Iterator[Office]:
    """A migrated database on a host with a key."""
    monkeypatch.setenv("HOLDFAST_ENCRYPTION_KEYS", K1)
    if request.param == "file":
        bare.ask("migrate")
        yield bare
        return
    url, schema = request.getfixturevalue("postgres_url"), f"cli_{os.getpid()}_{os.urandom(4).hex()}"
    found = Office(url, schema)
    found.ask("migrate")
    yield found
    execute(url, f'DROP SCHEMA IF EXISTS "{schema}" CASCADE')


async def fill(hf: Holdfast) -> None:
    await hf.settings.change({"openai_api_key": SECRET}, "alice")


def verified(office: Office, text: str) -> ApiKey | None:
    async def verify(hf: Holdfast) -> ApiKey | None:
        return await hf.api_keys.verify(text)

    return office.do(verify)


@pytest.mark.clause("H-W9")
def test_a_generated_key_goes_into_the_ring(bare: Office) -> None:
    plain, named = bare.ask("keys", "generate"), bare.ask("keys", "generate", "--kid", "k9", "--json")

    ring = KeyRing.parse(f"{plain.out.strip()},{named.json['key']}")

    assert (plain.code, named.code, named.json["kid"], ring.kids[1]) == (0, 0, "k9", "k9")
    assert bare.ask("keys", "generate", "--kid", "k.9").code == 2


def test_an_api_key_is_shown_once(office: Office) -> None:
    made = office.ask("keys", "create", "--user", "alice", "--scope", "runs:write", "--scope", "admin", "--json")
    plain = office.ask("keys", "create", "--user", "bob", "--days", "30")
    listed = office.ask("keys", "list", "--json")
    shown = office.ask("keys", "list", "--user", "bob")

    found = verified(office, made.json["key"])
    assert (made.code, made.json["user_id"], made.json["scopes"]) == (0, "alice", ["admin", "runs:write"])
    assert found is not None
    assert found.user_id == "alice"
    assert verified(office, plain.out.strip()) is not None
    assert [key["user_id"] for key in listed.json["keys"]] == ["alice", "bob"]
    assert listed.json["keys"][1]["expires_at"] is not None
    assert made.json["key"] not in listed.out
    assert ("bob" in shown.out, "alice" in shown.out) == (True, False)


def test_a_revoked_key_opens_nothing(office: Office) -> None:
    made = office.ask("keys", "create", "--user", "alice", "--json")

    revoked = office.ask("keys", "revoke", made.json["key_id"])
    again = office.ask("keys", "revoke", made.json["key"], "--json")
    unknown = office.ask("keys", "revoke", "nobody")

    assert revoked.out == f"key {made.json['key_id']} of alice opens nothing any more\n"
    assert (again.code, again.json["revoked_at"] is not None, unknown.code) == (0, True, 2)
    assert verified(office, made.json["key"]) is None


@pytest.mark.clause("H-W9")
def test_rotation_says_what_it_did_and_what_remains(office: Office, monkeypatch: pytest.MonkeyPatch) -> None:
    office.do(fill)
    monkeypatch.setenv("HOLDFAST_ENCRYPTION_KEYS", K2)
    without = office.ask("keys", "rotate", "--json")
    words = office.ask("keys", "rotate")
    monkeypatch.setenv("HOLDFAST_ENCRYPTION_KEYS", f"{K2},{K1}")
    moved = office.ask("keys", "rotate")
    again = office.ask("keys", "rotate", "--json")

    assert (without.code, without.json["remaining"], without.json["unreadable"]) == (1, {"k1": 1}, 1)
    assert "1 remain under key k1" in words.out
    assert (moved.code, moved.out) == (0, "1 secrets are sealed anew with key k2\n")
    assert again.json == {"kid": "k2", "resealed": 0, "remaining": {}, "unreadable": 0}


def test_without_a_ring_it_says_what_to_do(office: Office, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("HOLDFAST_ENCRYPTION_KEYS")

    answer = office.ask("keys", "rotate")

    assert (answer.code, "holdfast keys generate" in answer.err) == (2, True)
