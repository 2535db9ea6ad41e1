"""A runtime on every database, on a host that has keys."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from typing import Any

import pytest

from holdfast import Holdfast
from tests.conftest import IN_PROCESS, FakeClock, Opener
from tests.credentials.keys import K1


@pytest.fixture(params=IN_PROCESS)
def configuration(request: pytest.FixtureRequest) -> str:
    """The environment is this process's, so no configuration spreads over two."""
    return str(request.param)


@pytest.fixture(autouse=True)
def host(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """The environment of this host: one key, and nothing else of ours."""
    for name in ("HOLDFAST_PROFILE", "HOLDFAST_PUBLIC_URL", "HOLDFAST_OUTBOUND_ALLOW", "HOLDFAST_ENCRYPTION_KEYS_FILE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOLDFAST_ENCRYPTION_KEYS", K1)
    return monkeypatch


@pytest.fixture
async def another(hf: Holdfast, database_url: str, schema: str, clock: FakeClock) -> AsyncIterator[Opener]:
    """Opens one more instance on the database of `hf`, as another process would; one in memory cannot be shared."""
    async with AsyncExitStack() as opened:

        async def open_one(**options: Any) -> Holdfast:
            told = {"clock": clock, "schema": schema, **options}
            return await opened.enter_async_context(Holdfast(database_url, **told))

        yield open_one
