"""Handlers on a runtime in this process: memory, a file, a real Postgres. After every test journal and rows agree."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from holdfast import Holdfast
from tests.conftest import IN_PROCESS, FakeClock, Opener, opening
from tests.contract.builders import assert_sound, quiet


@pytest.fixture(params=IN_PROCESS)
def configuration(request: pytest.FixtureRequest) -> str:
    """A handler is a function of this process, so no configuration spreads over two."""
    return str(request.param)


@pytest.fixture
async def hf(hf: Holdfast) -> AsyncIterator[Holdfast]:
    """The runtime under test. Whatever a test does to it, nothing may be left that `fsck` complains about."""
    yield hf
    await quiet(hf)
    await assert_sound(hf)


@pytest.fixture
async def another(hf: Holdfast, database_url: str, schema: str, clock: FakeClock) -> AsyncIterator[Opener]:
    """Open one more instance on the database of `hf`; one in memory cannot be shared."""
    async with opening(database_url, schema=schema, clock=clock) as opener:
        yield opener


@pytest.fixture
async def real(database_url: str, schema: str) -> AsyncIterator[Holdfast]:
    """A runtime whose time passes by itself, for what is about real time."""
    async with Holdfast(database_url, schema=schema) as holdfast:
        yield holdfast
        await quiet(holdfast)
        await assert_sound(holdfast)
