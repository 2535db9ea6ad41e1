"""Commands that give a run an order: `signal`, `cancel`, `approve`, `reject`, `resume`."""

from __future__ import annotations

import getpass
from typing import Annotated, Any

import msgspec
import typer

from holdfast.cli.app import OK, PROBLEMS, Actor, Desk, Run, on_runs
from holdfast.cli.output import complain
from holdfast.errors import InvalidValue, NotFound
from holdfast.facade import Holdfast
from holdfast.protocol.outcomes import UNSET
from holdfast.runtime import RunInfo

Key = Annotated[str | None, typer.Option(help="The same key again does nothing again.", show_default=False)]
Step = Annotated[str | None, typer.Option(help="Only if this is the step that asks.", show_default=False)]
SeenRev = Annotated[
    int | None, typer.Option(help="Only if nothing was asked after this entry; see `approvals`.", show_default=False)
]
Edited = Annotated[
    str | None, typer.Option(metavar="JSON", help="Other arguments than were shown.", show_default=False)
]
Comment = Annotated[str | None, typer.Option(help="Why, for the record.", show_default=False)]


@on_runs()
async def signal(
    desk: Desk,
    hf: Holdfast,
    *,
    run: Run,
    value: Annotated[
        str | None, typer.Argument(metavar="[INPUT]", help="The input, as JSON; none wakes the run with nothing.")
    ] = None,
    text: Annotated[str | None, typer.Option(help="The input, as plain text.", show_default=False)] = None,
    name: Annotated[str | None, typer.Option(help="The signal's name.", show_default=False)] = None,
    key: Key = None,
    interrupt: Annotated[bool, typer.Option("--interrupt", help="Run now, also while it backs off.")] = False,
) -> int:
    """Put an input into a run's mailbox."""
    receipt = await hf.signal(run, given_input(value, text), name=name, key=key, interrupt=interrupt)
    if receipt.reason == "not_found":
        raise NotFound(f"there is no run {run}")
    if desk.out.json:
        desk.out.tell(receipt)
    elif receipt.accepted:
        desk.out.show(f"{run} got the signal as entry {receipt.rev}")
    if not receipt.accepted:
        complain(f"{run} is over and will not see the signal; entry {receipt.rev} keeps it")
    return OK if receipt.accepted else PROBLEMS


@on_runs()
async def cancel(
    desk: Desk,
    hf: Holdfast,
    *,
    run: Run,
    reason: Annotated[str | None, typer.Option(help="Why, for the record.", show_default=False)] = None,
    force: Annotated[bool, typer.Option("--force", help="End it now, even if a worker is at it.")] = False,
    actor: Actor = None,
) -> None:
    """Ask a run to stop."""
    show_run(desk, await hf.cancel(run, reason, force=force, actor=who(actor)))


@on_runs()
async def approve(
    desk: Desk,
    hf: Holdfast,
    *,
    run: Run,
    actor: Actor = None,
    step: Step = None,
    comment: Comment = None,
    edited: Edited = None,
    seen_rev: SeenRev = None,
    key: Key = None,
) -> None:
    """Say yes to what a run asks."""
    told: dict[str, Any] = {"step": step, "comment": comment, "seen_rev": seen_rev, "key": key}
    show_run(desk, await hf.approve(run, actor=who(actor), edited=_edited(edited), **told))


@on_runs()
async def reject(
    desk: Desk,
    hf: Holdfast,
    *,
    run: Run,
    actor: Actor = None,
    step: Step = None,
    comment: Comment = None,
    edited: Edited = None,
    seen_rev: SeenRev = None,
    key: Key = None,
) -> None:
    """Say no to what a run asks."""
    told: dict[str, Any] = {"step": step, "comment": comment, "seen_rev": seen_rev, "key": key}
    show_run(desk, await hf.reject(run, actor=who(actor), edited=_edited(edited), **told))


@on_runs()
async def resume(
    desk: Desk,
    hf: Holdfast,
    *,
    run: Run,
    actor: Actor = None,
    step: Step = None,
    comment: Comment = None,
    seen_rev: SeenRev = None,
    key: Key = None,
) -> None:
    """Let a paused run go on."""
    told: dict[str, Any] = {"step": step, "comment": comment, "seen_rev": seen_rev, "key": key}
    show_run(desk, await hf.resume(run, actor=who(actor), **told))


def given_input(value: str | None, text: str | None, none: Any = UNSET) -> Any:
    """The input in a command's words, or what stands for no words."""
    if value is not None and text is not None:
        raise InvalidValue("give the input as JSON or as --text, not both")
    if text is not None:
        return text
    return none if value is None else _json(value, "the input is not JSON; for plain words use --text")


def _edited(text: str | None) -> Any:
    return None if text is None else _json(text, "what --edited says is not JSON")


def _json(text: str, complaint: str) -> Any:
    try:
        return msgspec.json.decode(text)
    except msgspec.DecodeError as error:
        raise InvalidValue(f"{complaint} ({error})") from error


def who(actor: str | None) -> str:
    """Who gives the order: whoever is named, else the one at the keyboard."""
    return getpass.getuser() if actor is None else actor


def show_run(desk: Desk, info: RunInfo) -> None:
    """The run as it is now, in one line."""
    if desk.out.json:
        desk.out.tell(info)
    else:
        wanted = " (cancel requested)" if info.cancel_requested_at and not info.finished_at else ""
        desk.out.show(f"{info.run_id} is {info.status}{wanted}")
