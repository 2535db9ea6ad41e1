"""Commands for whole runs: `fork`, `replay`, `recover`, `export`, `import`, `delete`, `purge`, `gc`."""

from __future__ import annotations

import re
from datetime import timedelta
from pathlib import Path
from typing import Annotated

import typer

from holdfast.cli.app import Actor, Desk, Run, command, on_runs, open_and_migrate
from holdfast.cli.orders import show_run
from holdfast.errors import InvalidValue
from holdfast.facade import Holdfast

File = Annotated[Path, typer.Argument(help="A SQLite file.", show_default=False)]
Irreversible = Annotated[
    bool, typer.Option("--allow-irreversible", help="Also if something is done again that cannot be taken back.")
]
Force = Annotated[bool, typer.Option("--force", help="Even while a worker is at it.")]
_UNITS = {"s": "seconds", "m": "minutes", "h": "hours", "d": "days"}


@on_runs()
async def fork(
    desk: Desk,
    hf: Holdfast,
    *,
    run: Run,
    at_rev: Annotated[int | None, typer.Option("--at-rev", help="The last entry to copy; otherwise all.")] = None,
    allow_irreversible: Irreversible = False,
) -> None:
    """Make another run that begins as this one did, up to an entry."""
    show_run(desk, await hf.fork(run, at_rev, allow_irreversible=allow_irreversible))


@on_runs()
async def replay(desk: Desk, hf: Holdfast, *, run: Run, allow_irreversible: Irreversible = False) -> None:
    """Begin a run anew, with the same clog and input."""
    show_run(desk, await hf.replay(run, allow_irreversible=allow_irreversible))


@on_runs()
async def recover(desk: Desk, hf: Holdfast, *, run: Run) -> None:
    """Do what a crash left undone for a run. Where nothing was, nothing is written."""
    show_run(desk, await hf.recover(run))


@on_runs()
async def export(desk: Desk, hf: Holdfast, *, run: Run, path: File) -> None:
    """Copy a run into a file that any Holdfast can open, prove and continue."""
    await hf.export_run(run, path)
    desk.out.tell({"run_id": run, "path": str(path)}) if desk.out.json else desk.out.show(f"{run} is in {path}")


@command("import")
async def import_(desk: Desk, *, path: File) -> None:
    """Take a run from a file. The same one again changes nothing."""
    hf = await open_and_migrate(desk)
    try:
        show_run(desk, await hf.import_run(path))
    finally:
        await hf.close()


@on_runs()
async def delete(desk: Desk, hf: Holdfast, *, run: Run, force: Force = False, actor: Actor = None) -> None:
    """Hide a run from everyone but the readers of its journal."""
    await hf.delete_run(run, force=force, actor=actor)
    _told(desk, run, "deleted")


@on_runs()
async def purge(desk: Desk, hf: Holdfast, *, run: Run) -> None:
    """Remove a run and its journal at once. Only its id is remembered, so that it is never used again."""
    await hf.purge(run)
    _told(desk, run, "purged")


@on_runs()
async def gc(
    desk: Desk,
    hf: Holdfast,
    *,
    ttl: Annotated[str, typer.Option(help="Remove what ended longer ago: 90s, 30m, 12h or 7d.", show_default=False)],
    limit: Annotated[int | None, typer.Option(help="At most so many runs.")] = None,
) -> None:
    """Remove runs that ended long ago, whole, with their journals."""
    removed = await hf.gc(_duration(ttl), limit=limit)
    desk.out.tell({"removed": removed}) if desk.out.json else desk.out.show(f"{removed} runs removed")


def _told(desk: Desk, run: str, what: str) -> None:
    desk.out.tell({"run_id": run, "state": what}) if desk.out.json else desk.out.show(f"{run} is {what}")


def _duration(text: str) -> timedelta:
    found = re.fullmatch(r"(\d+(?:\.\d+)?)([smhd])", text.strip())
    if not found:
        raise InvalidValue(f"{text!r} is no duration; write 90s, 30m, 12h or 7d")
    return timedelta(**{_UNITS[found[2]]: float(found[1])})
