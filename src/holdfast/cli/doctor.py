"""The command `doctor`: is this database fit, and if not, what is to be done?"""

from __future__ import annotations

from holdfast.cli.app import OK, PROBLEMS, Desk, command
from holdfast.cli.output import table
from holdfast.store.doctor import examine


@command()
async def doctor(desk: Desk) -> int:
    """Check the database and its settings, and say in words what is wrong and what to do. Changes nothing."""
    findings = await examine(desk.url, schema=desk.schema)
    is_fit = all(each.state != "problem" for each in findings)
    if desk.out.json:
        desk.out.tell({"ok": is_fit, "database": desk.place, "findings": findings})
        return OK if is_fit else PROBLEMS
    desk.out.show(table(("check", "state", "found"), ((each.name, each.state, each.found) for each in findings)))
    for each in findings:
        if each.advice:
            desk.out.show(f"\n{each.name}: {each.advice}")
    desk.out.show(f"\n{desk.place} is fit for use" if is_fit else f"\n{desk.place} is not fit for use yet")
    return OK if is_fit else PROBLEMS
