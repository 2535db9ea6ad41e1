"""Workers run on real time: short leases, a database file or a real Postgres, processes that can be killed."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from holdfast import Holdfast
from tests.conftest import Opener, opening
from tests.worker.nursery import Nursery
from tests.worker.places import LEASE_MS, Place


@pytest.fixture(params=["file", "postgres"])
def configuration(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def schema(own_schema: str) -> str:
    return own_schema


@pytest.fixture
async def open_hf(database_url: str, schema: str) -> AsyncIterator[Opener]:
    """Opens runtimes on this test's database, as several processes would; closes them all."""
    async with opening(database_url, schema=schema, lease_ms=LEASE_MS) as opener:
        yield opener


@pytest.fixture
async def hf(open_hf: Opener) -> Holdfast:
    """An open runtime on a fresh database, on real time."""
    return await open_hf()


@pytest.fixture
def place(database_url: str, schema: str, tmp_path: Path) -> Place:
    return Place(database_url, schema, str(tmp_path / "diary.txt"))


@pytest.fixture(scope="session")
def _mother() -> Iterator[Nursery]:
    with Nursery() as mother:
        yield mother


@pytest.fixture
def nursery(_mother: Nursery) -> Iterator[Nursery]:
    """Starts workers as processes; none of them outlives the test."""
    yield _mother
    _mother.end_all()
