"""Commands on schedules: `schedules list`, `put`, `pause`, `resume`, `delete`, `trigger`."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any

import typer

from holdfast.cli.app import OK, PROBLEMS, Desk, group, on_runs
from holdfast.cli.orders import Key, given_input, show_run
from holdfast.cli.output import table
from holdfast.errors import InvalidValue
from holdfast.facade import Holdfast
from holdfast.runtime import Schedule

schedules = group("schedules", "What is started by itself, by a cron text or once at an instant.")
Name = Annotated[str, typer.Argument(metavar="NAME", help="The schedule's name.", show_default=False)]
User = Annotated[str | None, typer.Option("--user", help="Whose schedule; `local` unless told.", show_default=False)]


@on_runs("list", at=schedules)
async def show_schedules(
    desk: Desk,
    hf: Holdfast,
    *,
    user: Annotated[str | None, typer.Option("--user", help="Only those of this user.", show_default=False)] = None,
    limit: Annotated[int, typer.Option("--limit", "-n", help="How many, at most 100.")] = 20,
    cursor: Annotated[str | None, typer.Option(help="Where to go on: the `next` of the last page.")] = None,
) -> None:
    """List schedules by user and name."""
    page = await hf.schedules.list(user_id=user, limit=limit, cursor=cursor)
    if desk.out.json:
        desk.out.tell({"schedules": page.items, "next": page.next})
        return
    columns = ("name", "user", "clog", "when", "next", "last", "state")
    desk.out.show(table(columns, [_line(each) for each in page.items]))
    if page.next:
        desk.out.show(f"\nmore: holdfast schedules list --cursor {page.next}")


@on_runs("put", at=schedules)
async def put_schedule(
    desk: Desk,
    hf: Holdfast,
    *,
    name: Name,
    clog: Annotated[str, typer.Option(help="The clog, flow or workflow to run.", show_default=False)],
    session: Annotated[str, typer.Option(help="The session of its runs.", show_default=False)],
    value: Annotated[str | None, typer.Option("--input", help="The input, as JSON.", show_default=False)] = None,
    text: Annotated[str | None, typer.Option(help="The input, as plain text.", show_default=False)] = None,
    cron: Annotated[str | None, typer.Option(help="Minute, hour, day, month, weekday.", show_default=False)] = None,
    timezone: Annotated[str | None, typer.Option(help="Whose clocks; UTC unless told.", show_default=False)] = None,
    at: Annotated[str | None, typer.Option(help="Once, as 2030-01-01T09:00+01:00.", show_default=False)] = None,
    missed: Annotated[str, typer.Option(help="What to do about missed windows: latest, all or skip.")] = "latest",
    paused: Annotated[bool | None, typer.Option("--paused/--running", help="As it is, unless told.")] = None,
    queue: Annotated[str | None, typer.Option(help="The queue of its runs.", show_default=False)] = None,
    lane: Annotated[str | None, typer.Option(help="The lane of its runs.", show_default=False)] = None,
    priority: Annotated[int, typer.Option(help="Higher goes first.")] = 0,
    user: User = None,
) -> None:
    """Make a schedule, or change the one of this name."""
    told = {name: each for name, each in (("queue", queue), ("lane", lane), ("user_id", user)) if each is not None}
    put = await hf.schedules.put(
        name,
        clog_id=clog,
        session_id=session,
        input=given_input(value, text, None),
        cron=cron,
        timezone=timezone,
        at=_instant(at),
        missed=missed,  # type: ignore[arg-type]
        paused=paused,
        priority=priority,
        **told,
    )
    _show(desk, put)


@on_runs("pause", at=schedules)
async def pause_schedule(desk: Desk, hf: Holdfast, *, name: Name, user: User = None) -> None:
    """Start nothing until it is resumed."""
    _show(desk, await hf.schedules.pause(name, user_id=user))


@on_runs("resume", at=schedules)
async def resume_schedule(desk: Desk, hf: Holdfast, *, name: Name, user: User = None) -> None:
    """Go on with the next window."""
    _show(desk, await hf.schedules.resume(name, user_id=user))


@on_runs("delete", at=schedules)
async def delete_schedule(desk: Desk, hf: Holdfast, *, name: Name, user: User = None) -> None:
    """Forget a schedule; its runs stay."""
    await hf.schedules.delete(name, user_id=user)
    if desk.out.json:
        desk.out.tell({"deleted": name})
    else:
        desk.out.show(f"{name} is deleted; its runs stay")


@on_runs("trigger", at=schedules)
async def trigger_schedule(
    desk: Desk,
    hf: Holdfast,
    *,
    name: Name,
    key: Key = None,
    window: Annotated[str | None, typer.Option(help="The run of this window.", show_default=False)] = None,
    new: Annotated[bool, typer.Option("--new", help="It is a problem if that run was started before.")] = False,
    user: User = None,
) -> int:
    """Start a run now."""
    mode: Any = "skip_duplicate" if new else "return_existing_run"
    run = await hf.schedules.trigger(name, key=key, window=_instant(window), mode=mode, user_id=user)
    if run is not None:
        show_run(desk, run)
    elif desk.out.json:
        desk.out.tell(None)
    else:
        desk.out.show(f"{name} has started this run before")
    return OK if run is not None else PROBLEMS


def _instant(text: str | None) -> datetime | None:
    if text is None:
        return None
    try:
        return datetime.fromisoformat(text)
    except ValueError as error:
        raise InvalidValue(f"{text!r} is no instant; write it like 2030-01-01T09:00+01:00") from error


def _when(each: Schedule) -> str:
    return f"{each.cron} {each.timezone}" if each.at is None else f"once, {each.at:%Y-%m-%d %H:%M:%S %Z}"


def _state(each: Schedule) -> str:
    if each.last_error:
        return f"problem: {each.last_error}"
    return "paused" if each.paused else "over" if each.next_at is None else "running"


def _line(each: Schedule) -> tuple[Any, ...]:
    return each.name, each.user_id, each.clog_id, _when(each), each.next_at, each.last_at, _state(each)


def _show(desk: Desk, put: Schedule) -> None:
    if desk.out.json:
        desk.out.tell(put)
    else:
        following = "" if put.next_at is None else f"; next at {put.next_at:%Y-%m-%d %H:%M:%S %Z}"
        desk.out.show(f"{put.name} is {_state(put)}{following}")
