"""Commands for a whole database: `migrate`, `fsck`, `rebuild`."""

from __future__ import annotations

from typing import Annotated

import typer

from holdfast.cli.app import OK, PROBLEMS, Desk, command, on_runs, open_and_migrate
from holdfast.cli.output import table
from holdfast.facade import Holdfast
from holdfast.fsck import FsckReport
from holdfast.store.doctor import examine

OneRun = Annotated[str | None, typer.Argument(metavar="[RUN]", help="One run; otherwise all of them.")]


@command()
async def migrate(desk: Desk) -> None:
    """Bring the database's schema up to date, or make the database. Safe to repeat."""
    hf = await open_and_migrate(desk)
    await hf.close()
    (schema,) = [each for each in await examine(desk.url, schema=desk.schema) if each.name == "schema"]
    if desk.out.json:
        desk.out.tell({"database": desk.place, "schema": schema.found})
    else:
        desk.out.show(f"{desk.place} is {schema.found}")


@on_runs()
async def fsck(desk: Desk, hf: Holdfast, *, run: OneRun = None) -> int:
    """Prove that rows and journal agree. Changes nothing."""
    return _show(desk, await hf.fsck(run))


@on_runs()
async def rebuild(desk: Desk, hf: Holdfast, *, run: OneRun = None) -> int:
    """Write the rows anew from the journal, then prove it. The journal is never changed."""
    return _show(desk, await hf.rebuild(run))


def _show(desk: Desk, report: FsckReport) -> int:
    if desk.out.json:
        desk.out.tell(report)
    elif report.ok:
        desk.out.show(f"{report.runs_checked} runs checked: rows and journal agree")
    else:
        rows = [tuple(getattr(each, name) for name in each.__struct_fields__) for each in report.problems]
        desk.out.show(table(report.problems[0].__struct_fields__, rows))
        desk.out.show(f"\n{report.runs_checked} runs checked: {len(rows)} problems found")
    return OK if report.ok else PROBLEMS
