"""The audit on a runtime in this process: memory, a file, a real Postgres. After every test all laws hold."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from holdfast import Holdfast
from tests.conftest import IN_PROCESS, FakeClock, Opener, opening
from tests.contract.builders import assert_sound, quiet
from tests.contract.faulty import FaultyDatabase, with_faults


@pytest.fixture(params=IN_PROCESS)
def configuration(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
async def hf(hf: Holdfast) -> AsyncIterator[Holdfast]:
    """The runtime under test. Whatever a test does to it, nothing may be left that `fsck` complains about."""
    yield hf
    await quiet(hf)
    await assert_sound(hf)


@pytest.fixture
async def another(database_url: str, schema: str, clock: FakeClock) -> AsyncIterator[Opener]:
    """Open one more instance on the database of this test; one in memory is a database of its own."""
    async with opening(database_url, schema=schema, clock=clock) as opener:
        yield opener


@pytest.fixture
async def faults(hf: Holdfast) -> AsyncIterator[FaultyDatabase]:
    faulty = with_faults(hf)
    yield faulty
    assert faulty.is_quiet


@pytest.fixture
async def another_hf(another: Opener) -> Holdfast:
    """A runtime that a test may damage."""
    return await another()
