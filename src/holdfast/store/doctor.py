"""Is this database fit for Holdfast? Looks at what opening would refuse and at what only hurts later.

Nothing is changed and nothing is created, so a database that cannot be opened can be looked at too.
"""

from __future__ import annotations

import asyncio
from typing import Any

from holdfast.errors import DatabaseError
from holdfast.store import sqlite_doctor
from holdfast.store.findings import Finding
from holdfast.store.sqlite import MEMORY
from holdfast.store.timeouts import environment_findings


async def examine(url: str, *, schema: str = "holdfast") -> list[Finding]:
    """Everything worth knowing about this database. Raises `DatabaseError` if it cannot be reached at all."""
    if is_postgres(url):
        findings: list[Finding] = await _postgres().examine(url, schema)
    else:
        findings = await sqlite_doctor.examine(sqlite_path(url))
    return [*findings, *environment_findings()]


async def check_ready(url: str, *, schema: str = "holdfast") -> None:
    """Raise `DatabaseError` in words unless the database is there and its schema up to date.

    Opening would wait for a server that is away, create a file that is not there, and change an old schema.
    """
    if is_postgres(url):
        finding: Finding = await _postgres().look_at_schema(url, schema)
    else:
        finding = await asyncio.to_thread(sqlite_doctor.look_at_schema, sqlite_path(url))
    if finding.state == "problem":
        raise DatabaseError(f"the database is {finding.found}; {finding.advice}", code="not_migrated")


async def check_reachable(url: str) -> None:
    """Raise `DatabaseError` at once where opening would wait for a server that is away."""
    if is_postgres(url):
        await _postgres().check_reachable(url)


def is_postgres(url: str) -> bool:
    return url.startswith(("postgresql://", "postgres://"))


def sqlite_path(url: str) -> str:
    """The file that a SQLite URL means, or `:memory:`."""
    if "://" in url and not url.startswith("sqlite:///"):
        raise DatabaseError(
            f"{url.split('://')[0]}:// is no database Holdfast knows; use a path, sqlite:///path or postgresql://",
            code="unknown_database",
        )
    return url.removeprefix("sqlite:///") or MEMORY


def _postgres() -> Any:
    try:
        from holdfast.store import postgres_doctor  # noqa: PLC0415  # the driver is an extra
    except ModuleNotFoundError as error:
        text = "Postgres needs a driver: pip install 'holdfast[postgres]'"
        raise DatabaseError(text, code="driver_missing") from error
    return postgres_doctor
