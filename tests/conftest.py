"""Databases for every test: SQLite in memory, in a file, in a file shared by two processes, and a real Postgres."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import AsyncExitStack, asynccontextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from holdfast import Holdfast
from tests.remote import TwoProcesses
from tests.schemas import Schemas, drop, new_name
from tests.servers import postgres

CONFIGURATIONS = ("memory", "file", "two-processes", "postgres")
IN_PROCESS = ("memory", "file", "postgres")
EACH_VALUE = ("memory", pytest.param("file", marks=pytest.mark.slow), "postgres")
"""For tests with many values: a file goes the same way as memory but for its threads, which other tests are about."""

Opener = Callable[..., Awaitable[Holdfast]]


WAITING = (
    "tests/worker/",
    "tests/outbox/test_worker.py",
    "tests/outbox/test_processes.py",
    "tests/http/test_processes.py",
)
"""Tests that mostly wait, for leases to end and for processes of their own."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Deal those that wait out among those that compute, so that the cores have something to do meanwhile."""
    waiting = [item for item in items if item.nodeid.startswith(WAITING)]
    others = [item for item in items if not item.nodeid.startswith(WAITING)]
    places = [(number / len(each), item) for each in (waiting, others) for number, item in enumerate(each)]
    items[:] = [item for _, item in sorted(places, key=lambda place: place[0])]


class FakeClock:
    """A clock that only tests move."""

    def __init__(self) -> None:
        self._now = datetime(2030, 1, 1, tzinfo=UTC)

    def now(self) -> datetime:
        return self._now

    def advance(self, seconds: float) -> None:
        self._now += timedelta(seconds=seconds)


@asynccontextmanager
async def opening(url: str, **options: Any) -> AsyncIterator[Opener]:
    """Opens runtimes on one database, as several processes would; closes them all. One in memory cannot be shared."""
    async with AsyncExitStack() as opened:

        async def open_one(**others: Any) -> Holdfast:
            return await opened.enter_async_context(Holdfast(url, **{**options, **others}))

        yield open_one


@pytest.fixture(scope="session")
def postgres_url() -> Iterator[str]:
    """A real server of our own, gone when the tests are."""
    # Not below pytest's own folder: another session closes that to every user but itself, the server's included.
    with tempfile.TemporaryDirectory(prefix="holdfast-pg-") as folder, postgres(Path(folder)) as url:
        yield url


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture(params=CONFIGURATIONS)
def configuration(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def database_url(configuration: str, tmp_path: Path, request: pytest.FixtureRequest) -> str:
    """Where this test's database lives. Postgres tests share a server, never a schema."""
    if configuration == "memory":
        return ":memory:"
    if configuration == "postgres":
        return str(request.getfixturevalue("postgres_url"))
    return str(shutil.copy(request.getfixturevalue("migrated_file"), tmp_path / "holdfast.db"))


@pytest.fixture(scope="session")
def migrated_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A database without a row, to copy: that one is migrated from nothing is not what most tests are about."""
    path = tmp_path_factory.mktemp("migrated") / "holdfast.db"
    Holdfast(str(path)).sync.open().close()
    return path


@pytest.fixture(scope="session")
def schemas(postgres_url: str) -> Iterator[Schemas]:
    kept = Schemas(postgres_url)
    yield kept
    kept.close()


@pytest.fixture
def schema(configuration: str, request: pytest.FixtureRequest) -> Iterator[str]:
    """A schema without a row; on Postgres it is there already. For tests whose every process ends with them."""
    if configuration != "postgres":
        yield new_name()
        return
    schemas: Schemas = request.getfixturevalue("schemas")
    name = schemas.take()
    yield name
    schemas.give_back(name)


@pytest.fixture
async def own_schema(configuration: str, database_url: str) -> AsyncIterator[str]:
    """The name of a schema that is not there yet and nobody gets afterwards: who was killed may write late."""
    name = new_name()
    yield name
    if configuration == "postgres":
        await drop(database_url, name)


@pytest.fixture
async def hf(configuration: str, database_url: str, schema: str, clock: FakeClock) -> AsyncIterator[Holdfast]:
    """An open runtime on a fresh database whose time only the test moves."""
    if configuration == "two-processes":
        pair = TwoProcesses(database_url, clock)
        async with pair:
            yield pair  # type: ignore[misc]
        return
    async with Holdfast(database_url, clock=clock, schema=schema) as holdfast:
        yield holdfast
