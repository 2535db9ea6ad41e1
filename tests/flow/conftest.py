"""Flows on a runtime in this process: memory, a file, a real Postgres. After every test journal and rows agree."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from holdfast import Holdfast
from tests.conftest import IN_PROCESS
from tests.contract.builders import assert_sound, quiet


@pytest.fixture(params=IN_PROCESS)
def configuration(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
async def hf(hf: Holdfast) -> AsyncIterator[Holdfast]:
    """The runtime under test. Whatever a test does to it, nothing may be left that `fsck` complains about."""
    yield hf
    await quiet(hf)
    await assert_sound(hf)
