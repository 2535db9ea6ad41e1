"""Commands on proposed edits: `edits` lists them, `edits show`, `approve`, `deny` and `auto-confirm` work on them."""

from __future__ import annotations

from typing import Annotated

import typer
from rich.text import Text

from holdfast.audit import EditProposal, FilePreview, edited_paths, preview
from holdfast.cli.app import Actor, Desk, group, on_runs
from holdfast.cli.orders import who
from holdfast.cli.output import pairs, printable, table
from holdfast.errors import Conflict, NotFound
from holdfast.facade import Holdfast

edits = group("edits", "Edits that someone proposed: what they would change, and what became of them.")
Edit = Annotated[str, typer.Argument(metavar="ID", help="The proposal's request id.", show_default=False)]
User = Annotated[str | None, typer.Option(help="Only edits of this user.", show_default=False)]
STAYS = frozenset({"applied", "denied", "reverted"})
_COLOURS = {"+": "green", "-": "red", "@": "cyan"}


@on_runs(at=edits, bare=True)
async def list_edits(
    desk: Desk,
    hf: Holdfast,
    *,
    filter: Annotated[
        str, typer.Option(help="pending+errored, pending, approved (and applied), errored, stale or all.")
    ] = "pending+errored",
    user: User = None,
    limit: Annotated[int, typer.Option(min=1, max=1_000, help="How many.")] = 20,
) -> None:
    """List proposed edits, newest first: those that need people, unless told otherwise."""
    asker = hf if user is None else hf.as_user(user)
    found = await asker.audit.list_edit_proposals(filter=filter, limit=limit)
    if desk.out.json:
        desk.out.tell({"edits": found})
        return
    columns = ("edit", "status", "confidence", "files", "proposed", "by", "why")
    desk.out.show(table(columns, [_line(each) for each in found]))


@on_runs("show", at=edits)
async def show_edit(
    desk: Desk,
    hf: Holdfast,
    *,
    edit: Edit,
    mode: Annotated[str, typer.Option(help="minimal, expanded (three lines around) or full.")] = "expanded",
    lines: Annotated[int, typer.Option(help="The most lines of each file, 10 to 200; 0 for all.")] = 0,
) -> None:
    """Show an edit: what it would change, and what became of it."""
    found = await _edit(hf, edit)
    files = preview(found.diffs_json, mode, lines)
    if desk.out.json:
        desk.out.tell({"edit": found, "preview": files})
        return
    facts = {
        "edit": found.request_id,
        "status": found.status,
        "confidence": found.confidence,
        "proposed": found.created_at,
        "decided": found.decided_at,
        "by": found.actor,
        "applied": found.applied_at,
        "commit": found.commit_hash,
        "why": found.error_msg,
    }
    desk.out.show(pairs(facts))
    for file in files:
        _show(desk, file)


@on_runs("approve", at=edits)
async def approve_edit(desk: Desk, hf: Holdfast, *, edit: Edit, actor: Actor = None) -> None:
    """Approve an edit; a run that asks about it goes on. One that failed or is stale is tried again."""
    await _decide(desk, hf, edit, "approved", who(actor))


@on_runs("deny", at=edits)
async def deny_edit(desk: Desk, hf: Holdfast, *, edit: Edit, actor: Actor = None) -> None:
    """Deny an edit; a run that asks about it hears of it."""
    await _decide(desk, hf, edit, "denied", who(actor))


@on_runs("auto-confirm", at=edits)
async def auto_confirm(
    desk: Desk,
    hf: Holdfast,
    *,
    min_confidence: Annotated[float, typer.Option(help="How sure an edit must be of itself.", show_default=False)],
    user: User = None,
    limit: Annotated[int, typer.Option(min=1, max=1_000, help="How many at most.")] = 100,
) -> None:
    """Approve pending edits that are sure enough, once, now. Nothing else ever does this by itself."""
    asker = hf if user is None else hf.as_user(user)
    confirmed = await asker.audit.auto_confirm(min_confidence, limit=limit)
    if desk.out.json:
        desk.out.tell({"approved": confirmed})
        return
    for request_id in confirmed:
        desk.out.show(f"{request_id} is approved")
    desk.out.show(f"{len(confirmed)} approved")


async def _decide(desk: Desk, hf: Holdfast, edit: str, decision: str, actor: str) -> None:
    """Decide and say how it stands. What was settled before is told, and no problem."""
    before = await _edit(hf, edit)
    try:
        await hf.audit.record_edit_decision(edit, decision, actor)
    except Conflict as error:
        if error.code != "invalid_transition" or (await _edit(hf, edit)).status not in STAYS:
            raise
    after = await _edit(hf, edit)
    is_new = after.validity != before.validity and after.actor == actor
    if desk.out.json:
        desk.out.tell({"edit": after, "decided": is_new})
    elif is_new:
        desk.out.show(f"{edit} is {after.status}")
    else:
        desk.out.show(f"{edit} was {after.status} before and stays so")


async def _edit(hf: Holdfast, request_id: str) -> EditProposal:
    found = await hf.audit.get_edit_proposal(request_id)
    if found is None:
        raise NotFound(f"there is no proposed edit {request_id}")
    return found


def _line(edit: EditProposal) -> tuple[object, ...]:
    files = ", ".join(edited_paths(edit.diffs_json))
    return (edit.request_id, edit.status, edit.confidence, files, edit.created_at, edit.actor, edit.error_msg)


def _show(desk: Desk, file: FilePreview) -> None:
    desk.out.show("", Text(printable(file.path or "(no path)"), style="bold"))
    for line in file.lines:
        desk.out.show_line(Text(printable(line), style=_COLOURS.get(line[:1], "")))
    if file.left_out:
        desk.out.show(f"… {file.left_out} more lines")
