"""What a look at a database finds, one thing at a time."""

from __future__ import annotations

from typing import Literal

import msgspec

from holdfast.errors import DatabaseError
from holdfast.store.migrate import all_migrations, pending

State = Literal["ok", "warning", "problem"]


class Finding(msgspec.Struct, frozen=True, kw_only=True):
    """One thing that was looked at: what was found and, unless it is well, what to do about it."""

    name: str
    state: State
    found: str
    advice: str = ""


def schema_finding(dialect: str, applied: set[int]) -> Finding:
    """How the schema stands to this version of Holdfast."""
    known = all_migrations(dialect)[-1]
    try:
        missing = [migration.name for migration in pending(dialect, applied)]
    except DatabaseError as error:
        return Finding(name="schema", state="problem", found=str(error), advice="upgrade holdfast here")
    if not missing:
        return Finding(name="schema", state="ok", found=f"up to date at {known.name}")
    return Finding(
        name="schema",
        state="problem",
        found=f"not up to date ({', '.join(missing)} is to be run)",
        advice="run `holdfast migrate`",
    )
