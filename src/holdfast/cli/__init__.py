"""The command line: `holdfast …`. Exit codes: 0 all is well, 1 problems were found, 2 usage or environment."""

from __future__ import annotations

# Each module adds its commands to the app as it is imported.
from holdfast.cli import (
    copies,
    deliveries,
    doctor,
    edits,
    keys,
    looking,
    orders,
    schedules,
    serving,
    streams,
    travel,
    upkeep,
    working,
)
from holdfast.cli.app import app


def main() -> None:
    """What the installed script `holdfast` calls."""
    app()


__all__ = [
    "app",
    "copies",
    "deliveries",
    "doctor",
    "edits",
    "keys",
    "looking",
    "main",
    "orders",
    "schedules",
    "serving",
    "streams",
    "travel",
    "upkeep",
    "working",
]
