"""SQLite's statements for many rows at once.

`sqlite3` lets go of the interpreter's lock for every step of a statement, and has it back only when the thread that
took it lets go: a writer that steps once for each row waits for the event loop at each. One statement for many rows is
one step, so that rows are written beside the event loop. What is read comes back as one row, for the same reason.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain
from typing import Any

import msgspec

from holdfast.store.types import Row

SIZES = (64, 32, 16, 8, 4, 2, 1)
"""How many rows a text is made for. Few, so that each is prepared once and kept."""


class Many:
    """A statement around a list of rows: what stands before it, how wide a row is, what stands after it."""

    def __init__(self, before: str, width: int, after: str = "") -> None:
        row = f"({', '.join('?' * width)})"
        self._texts = {size: f"{before}{', '.join([row] * size)}{after}" for size in SIZES}

    def run(self, connection: sqlite3.Connection, rows: Sequence[Row], *more: Any) -> None:
        """Do it for these rows, in their order; `more` is what the text after the list asks for."""
        for part in _parts(rows):
            connection.execute(self._texts[len(part)], [*chain.from_iterable(part), *more])

    def read(self, connection: sqlite3.Connection, rows: Sequence[Row]) -> list[Any]:
        """What it finds for these rows. The statement answers a JSON list."""
        found: list[Any] = []
        for part in _parts(rows):
            found += answer(connection, self._texts[len(part)], [*chain.from_iterable(part)])
        return found


def listed(names: Iterable[str]) -> str:
    """The beginning of a statement that knows its rows as `n`, with these columns; `Many` closes the list with `)`."""
    return f"WITH n ({', '.join(names)}) AS (VALUES "


def answer(connection: sqlite3.Connection, sql: str, values: Any) -> list[Any]:
    """The rows of a statement that answers them as one JSON list."""
    found: list[Any] = msgspec.json.decode(connection.execute(sql, values).fetchone()[0])
    return found


def _parts(rows: Sequence[Row]) -> Iterator[Sequence[Row]]:
    begin, left = 0, len(rows)
    for size in SIZES:
        while size <= left:
            yield rows[begin : begin + size]
            begin, left = begin + size, left - size
