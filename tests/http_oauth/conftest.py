"""Our routes on every database, real providers, and a browser that goes back and forth."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack
from typing import Any

import pytest

from holdfast import Holdfast
from tests.conftest import IN_PROCESS, FakeClock, Opener
from tests.credentials.keys import K1
from tests.http_oauth.browser import LOCAL, Browser, app_of
from tests.http_oauth.providers import CLIENT_ID, CLIENT_SECRET, TestProvider, running

PUBLIC = "https://agents.example.org"
NAMES = ("openai", "other")
REDIRECTS = [f"{site}/api/oauth/{name}/callback" for site in (LOCAL, PUBLIC) for name in NAMES]
LOGINS = [f"{site}/api/login/callback" for site in (LOCAL, PUBLIC)]


@pytest.fixture(params=IN_PROCESS)
def configuration(request: pytest.FixtureRequest) -> str:
    """The environment is this process's, so no configuration spreads over two."""
    return str(request.param)


@pytest.fixture(scope="session")
def provider() -> Iterator[TestProvider]:
    with running(*REDIRECTS, *LOGINS) as found:
        yield found


@pytest.fixture
def host(monkeypatch: pytest.MonkeyPatch, provider: TestProvider) -> pytest.MonkeyPatch:
    """A host with a key, on which two providers are configured; both are the same one."""
    for name in ("HOLDFAST_PROFILE", "HOLDFAST_PUBLIC_URL", "HOLDFAST_OUTBOUND_ALLOW", "HOLDFAST_ENCRYPTION_KEYS_FILE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOLDFAST_ENCRYPTION_KEYS", K1)
    for name in (*NAMES, "oidc"):
        configure(monkeypatch, name, provider.url)
    return monkeypatch


def configure(host: pytest.MonkeyPatch, name: str, issuer: str, **told: str) -> None:
    words = {
        "ISSUER": issuer,
        "CLIENT_ID": CLIENT_ID,
        "CLIENT_SECRET": CLIENT_SECRET,
        "SCOPES": "openid offline_access",
        "PARAMS": "prompt=consent",
        **told,
    }
    for word, value in words.items():
        host.setenv(f"HOLDFAST_OAUTH_{name.upper()}_{word}", value)


@pytest.fixture
async def another(
    host: pytest.MonkeyPatch, hf: Holdfast, database_url: str, schema: str, clock: FakeClock
) -> AsyncIterator[Opener]:
    """Opens one more instance on the database of `hf`, as another process would; one in memory cannot be shared."""
    async with AsyncExitStack() as opened:

        async def open_one(**options: Any) -> Holdfast:
            told = {"clock": clock, "schema": schema, **options}
            return await opened.enter_async_context(Holdfast(database_url, **told))

        yield open_one


@pytest.fixture
async def browser(host: pytest.MonkeyPatch, hf: Holdfast) -> AsyncIterator[Browser]:
    async with Browser(app_of(hf)) as found:
        yield found
