"""What the fault suites share."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from tests.schemas import drop, new_name


@pytest.fixture
async def schema(postgres_url: str) -> AsyncIterator[str]:
    """A schema on Postgres that nobody else uses, gone after the test."""
    name = new_name()
    yield name
    await drop(postgres_url, name)
