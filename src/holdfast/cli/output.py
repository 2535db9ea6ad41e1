"""Answers on paper: tables for people, JSON for programs, complaints in one sentence."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterable, Sequence
from datetime import datetime
from typing import Any

import msgspec
from rich.console import Console, RenderableType
from rich.table import Table
from rich.text import Text

PIPE_WIDTH = 200
_UNPRINTABLE = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f]")
_COLOURS = {
    "done": "green",
    "ok": "green",
    "failed": "red",
    "problem": "red",
    "cancelled": "magenta",
    "active": "cyan",
    "pending": "blue",
    "waiting": "blue",
    "paused": "yellow",
    "warning": "yellow",
}


class _Paper(Console):
    """Output that says when its reader went away, instead of ending the program with the code for problems."""

    def on_broken_pipe(self) -> None:
        raise BrokenPipeError


class Output:
    """Where an answer goes: `show` for people or `tell` for programs, never both."""

    def __init__(self, *, json: bool) -> None:
        self.json = json
        # Into a pipe nothing is cut to the width of a screen that is not there.
        is_free = sys.stdout.isatty() or "COLUMNS" in os.environ
        self.console = _Paper(width=None if is_free else PIPE_WIDTH, highlight=False, markup=False, emoji=False)

    def show(self, *parts: RenderableType) -> None:
        for part in parts:
            self.console.print(part)

    def show_line(self, line: Text) -> None:
        """One line of a stream, whatever its length: the terminal wraps it, a pipe gets it whole."""
        self.console.print(line, soft_wrap=True)

    def tell(self, value: Any) -> None:
        """One JSON document."""
        _write(msgspec.json.format(msgspec.json.encode(value), indent=2))

    def tell_line(self, value: Any) -> None:
        """One JSON value in one line, at once: for streams."""
        _write(msgspec.json.encode(value))


def complain(sentence: str) -> None:
    """One plain sentence on stderr."""
    print(f"holdfast: {printable(' '.join(sentence.split()))}", file=sys.stderr)


def table(columns: Sequence[str], rows: Iterable[Sequence[Any]], *, title: str | None = None) -> Table:
    """A table that never cuts a first column, which is what people copy."""
    made = Table(title=title, title_justify="left", box=None, pad_edge=False, header_style="bold")
    for place, column in enumerate(columns):
        made.add_column(column, overflow="fold", no_wrap=place == 0)
    for row in rows:
        made.add_row(*(cell(value) for value in row))
    return made


def pairs(values: dict[str, Any]) -> Table:
    """Names and values, those without a value left out."""
    made = Table.grid(padding=(0, 2))
    made.add_column(style="bold", no_wrap=True)
    made.add_column(overflow="fold")
    for name, value in values.items():
        if value is not None and value != "":
            made.add_row(name, cell(value))
    return made


def cell(value: Any) -> Text:
    """Any value as harmless text: nothing that a run was told can steer the terminal."""
    if value is None:
        return Text("")
    if isinstance(value, datetime):
        return Text(f"{value:%Y-%m-%d %H:%M:%S}.{value.microsecond // 1_000:03}")
    if isinstance(value, str):
        return Text(printable(value), style=_COLOURS.get(value, ""))
    return Text(json_text(value))


def json_text(value: Any) -> str:
    return printable(msgspec.json.encode(value).decode())


def printable(text: str) -> str:
    return _UNPRINTABLE.sub(lambda found: f"\\x{ord(found[0]):02x}", text)


def _write(line: bytes) -> None:
    sys.stdout.write(f"{line.decode()}\n")
    sys.stdout.flush()
