"""The outbox on a runtime in this process, on every database; after each test journal and rows agree."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from holdfast import Holdfast
from tests.conftest import IN_PROCESS, FakeClock, Opener, opening
from tests.contract.builders import assert_sound


@pytest.fixture(params=IN_PROCESS)
def configuration(request: pytest.FixtureRequest) -> str:
    """A sink is a function of this process, so no configuration spreads over two."""
    return str(request.param)


@pytest.fixture
async def hf(hf: Holdfast) -> AsyncIterator[Holdfast]:
    yield hf
    await assert_sound(hf)


@pytest.fixture
async def another(hf: Holdfast, database_url: str, schema: str, clock: FakeClock) -> AsyncIterator[Opener]:
    """Opens one more instance on the database of `hf`, as another process would; one in memory cannot be shared."""
    async with opening(database_url, schema=schema, clock=clock) as opener:
        yield opener
