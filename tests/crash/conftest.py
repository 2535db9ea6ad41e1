"""What the fault suites share."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator

import asyncpg
import pytest


@pytest.fixture
async def schema(postgres_url: str) -> AsyncIterator[str]:
    """A schema on Postgres that nobody else uses, gone after the test."""
    name = f"t{os.getpid()}_{os.urandom(4).hex()}"
    yield name
    await drop(postgres_url, name)


async def drop(postgres_url: str, schema: str) -> None:
    connection = await asyncpg.connect(postgres_url)
    await connection.execute(f'DROP SCHEMA IF EXISTS "{schema}" CASCADE')
    await connection.close()
