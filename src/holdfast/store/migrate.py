"""Numbered migrations, read from the package. Each runs once, in order, under the database's own lock."""

from __future__ import annotations

from collections.abc import Iterator
from importlib import resources
from typing import NamedTuple

from holdfast.errors import DatabaseError


class Migration(NamedTuple):
    version: int
    name: str
    sql: str


def all_migrations(dialect: str) -> list[Migration]:
    """Every migration of a dialect, lowest number first."""
    folder = resources.files("holdfast.store") / "migrations" / dialect
    found = [
        Migration(int(file.name[:4]), file.name.removesuffix(".sql"), file.read_text())
        for file in folder.iterdir()
        if file.name.endswith(".sql")
    ]
    return sorted(found)


def pending(dialect: str, applied: set[int]) -> Iterator[Migration]:
    """The migrations still to run. A database that is ahead of this code is refused before anything is touched."""
    known = all_migrations(dialect)
    newer = applied - {migration.version for migration in known}
    if newer:
        raise DatabaseError(
            f"the database has migration {max(newer)}, this holdfast knows up to {known[-1].version}; upgrade holdfast",
            code="schema_too_new",
        )
    return (migration for migration in known if migration.version not in applied)
