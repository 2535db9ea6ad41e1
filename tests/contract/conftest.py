"""The contract suite: one behaviour on four configurations, and after every test journal and rows must agree."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from holdfast import Holdfast
from tests.contract.builders import assert_sound

BREAKS_ON_PURPOSE = frozenset({"test_fsck", "test_invalid_entries", "test_rebuild"})
"""Modules whose tests leave damage behind, because damage is what they are about."""


@pytest.fixture
async def hf(hf: Holdfast, request: pytest.FixtureRequest) -> AsyncIterator[Holdfast]:
    """The runtime under test. Whatever a test does to it, nothing may be left that `fsck` complains about."""
    yield hf
    expected = request.module.__name__.rpartition(".")[2] in BREAKS_ON_PURPOSE
    if not expected and request.node.get_closest_marker("xfail") is None:
        await assert_sound(hf)
