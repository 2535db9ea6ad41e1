"""Keys of a host that exists in tests only, tokens that a provider may have given, and a look at all that is stored."""

from __future__ import annotations

import base64
from typing import Any

import pytest

from holdfast import Holdfast
from holdfast.credentials import Tokens

K1 = f"k1:{base64.b64encode(bytes(range(32))).decode()}"
K2 = f"k2:{base64.b64encode(bytes(range(32, 64))).decode()}"
ACCESS, REFRESH = "canary-access-token-0123456789", "canary-refresh-token-0123456789"

shared = pytest.mark.parametrize("configuration", ["file", "postgres"], indirect=True)
"""For tests with more than one process or instance: a database in memory cannot be shared."""
anywhere = pytest.mark.parametrize("configuration", ["memory"], indirect=True)
"""For tests in which no database decides anything."""


def tokens(**told: Any) -> Tokens:
    given = {
        "access_token": ACCESS,
        "refresh_token": REFRESH,
        "lifetime_s": 3_600,
        "scope": "openid",
        "account_id": None,
    }
    return Tokens(**{**given, **told})


async def dump(hf: Holdfast, configuration: str) -> str:
    """Every value of every table, as text."""
    store = hf._store
    if configuration == "postgres":
        schema = store.qualified("{s}").strip('".')
        sql = "SELECT table_name FROM information_schema.tables WHERE table_schema = $1"
        names = [row[0] for row in await store.fetch(sql, schema)]
    else:
        names = [row[0] for row in await store.fetch("SELECT name FROM sqlite_master WHERE type = 'table'")]
    assert {"credentials", "settings", "oauth_states", "api_keys", "browser_sessions", "journal"} <= set(names)
    return "\n".join([repr(row) for name in names for row in await store.fetch(f"SELECT * FROM {{s}}{name}")])
