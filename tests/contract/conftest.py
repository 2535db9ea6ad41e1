"""The contract suite: one behaviour on four configurations, and after every test journal and rows must agree."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import asyncpg
import pytest

from holdfast import Holdfast
from tests.contract.builders import assert_sound
from tests.contract.faulty import FaultyDatabase, with_faults

BREAKS_ON_PURPOSE = frozenset({"test_fsck", "test_invalid_entries", "test_rebuild"})
"""Modules whose tests leave damage behind, because damage is what they are about."""


@pytest.fixture
async def hf(hf: Holdfast, request: pytest.FixtureRequest) -> AsyncIterator[Holdfast]:
    """The runtime under test. Whatever a test does to it, nothing may be left that `fsck` complains about."""
    yield hf
    expected = request.module.__name__.rpartition(".")[2] in BREAKS_ON_PURPOSE
    if not expected and request.node.get_closest_marker("xfail") is None:
        await assert_sound(hf)


@pytest.fixture
async def stranger(postgres_url: str) -> AsyncIterator[Any]:
    """Somebody else's connection, to look, to lock and to kill."""
    connection = await asyncpg.connect(postgres_url, statement_cache_size=0)
    yield connection
    await connection.close()


@pytest.fixture
async def faults(hf: Holdfast) -> AsyncIterator[FaultyDatabase]:
    """The database under `hf`, ready to be struck. What was to go wrong must have gone wrong by the end."""
    faulty = with_faults(hf)
    yield faulty
    assert faulty.is_quiet
