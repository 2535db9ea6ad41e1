"""Commands that read a run's journal: `journal` shows every fact, `tail` follows what watchers see."""

from __future__ import annotations

from typing import Annotated, Any

import typer
from rich.text import Text

from holdfast.cli.app import Desk, Run, on_runs
from holdfast.cli.output import cell, json_text, table
from holdfast.cli.words import words
from holdfast.errors import NotFound
from holdfast.facade import Holdfast
from holdfast.identity import check_id
from holdfast.journal import JournalEntry
from holdfast.runtime import Event, without_hashes

PAGE = 500

After = Annotated[int, typer.Option(min=0, help="Only what comes after this revision.")]
Limit = Annotated[int | None, typer.Option(min=0, help="At most this many.", show_default=False)]


@on_runs()
async def journal(desk: Desk, hf: Holdfast, *, run: Run, after: After = 0, limit: Limit = None) -> None:
    """Show every fact of a run, in order; also of one that was deleted."""
    thread = f"run:{check_id(run, 'run_id')}"
    if not await hf.journal.read(thread, limit=1):
        raise NotFound(f"there is no run {run}")
    left = limit
    while left is None or left > 0:
        page = await hf.journal.read(thread, after, PAGE if left is None else min(left, PAGE))
        if not page:
            return
        _show_entries(desk, page)
        after = page[-1].rev
        left = None if left is None else left - len(page)


@on_runs()
async def tail(
    desk: Desk,
    hf: Holdfast,
    *,
    run: Run,
    after: After = 0,
    limit: Limit = None,
    follow: Annotated[bool, typer.Option(help="Stay until the run is over.")] = True,
) -> None:
    """Follow the events of a run in words, as they happen, until it is over."""
    if await hf.get_run(run) is None:
        raise NotFound(f"there is no run {run}")
    async for event in hf.events(run, after, follow=follow, limit=limit):
        if desk.out.json:
            desk.out.tell_line(event)
        else:
            desk.out.show_line(_line(event))


def _show_entries(desk: Desk, page: list[JournalEntry]) -> None:
    if desk.out.json:
        for entry in page:
            desk.out.tell_line({**_plain(entry), "data": without_hashes(entry.data)})
        return
    rows = ((entry.rev, entry.at, entry.kind, json_text(without_hashes(entry.data))) for entry in page)
    desk.out.show(table(("rev", "at", "kind", "data"), rows))


def _plain(entry: JournalEntry) -> dict[str, Any]:
    return {name: getattr(entry, name) for name in entry.__struct_fields__}


def _line(event: Event) -> Text:
    said = cell(words(event.type, event.data) or (event.data if isinstance(event.data, str) else json_text(event.data)))
    return Text.assemble((f"{event.at:%H:%M:%S} {event.seq:>5}  ", "dim"), (f"{event.type:<18} ", "bold"), said)
