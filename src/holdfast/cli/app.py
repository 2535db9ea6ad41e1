"""The app, what every command has in common, and how its errors become exit codes."""

from __future__ import annotations

import asyncio
import functools
import inspect
import os
import sys
from collections.abc import Callable, Coroutine
from importlib.metadata import PackageNotFoundError, version
from typing import Annotated, Any, NamedTuple
from urllib.parse import urlsplit

import typer

from holdfast.cli.output import Output, complain
from holdfast.errors import Conflict, DatabaseError, HoldfastError, InvalidEntry, LeaseLost
from holdfast.facade import Holdfast
from holdfast.store.doctor import check_reachable, check_ready

OK, PROBLEMS, UNUSABLE, INTERRUPTED = 0, 1, 2, 130
DEFAULT_DATABASE = "./holdfast.db"

app = typer.Typer(
    name="holdfast",
    help="Look after durable runs. Exit codes: 0 all is well, 1 problems were found, 2 usage or environment.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)

_DB_HELP = f"A path, sqlite:///path or postgresql://…; otherwise HOLDFAST_DATABASE_URL, otherwise {DEFAULT_DATABASE}."
Db = Annotated[str | None, typer.Option("--db", metavar="URL", help=_DB_HELP)]
Schema = Annotated[str | None, typer.Option("--schema", help="On Postgres: the schema; otherwise HOLDFAST_SCHEMA.")]
Json = Annotated[bool, typer.Option("--json", help="Answer in JSON, for programs.")]
Run = Annotated[str, typer.Argument(metavar="RUN", help="The run's id.", show_default=False)]
Actor = Annotated[str | None, typer.Option(help="Who decides; your login name unless told.", show_default=False)]


class Choice(NamedTuple):
    """What the common options say; None where they say nothing."""

    db: str | None = None
    schema: str | None = None
    json: bool = False


class Desk:
    """Where a command works: the database it is about, and the paper for its answer."""

    def __init__(self, choice: Choice) -> None:
        told = choice.db or os.environ.get("HOLDFAST_DATABASE_URL")
        self.url = told or DEFAULT_DATABASE
        self.is_told_where = bool(told)
        self.schema = choice.schema or os.environ.get("HOLDFAST_SCHEMA") or "holdfast"
        self.out = Output(json=choice.json)

    @property
    def place(self) -> str:
        """The database for people to read: without a password."""
        if "://" not in self.url:
            return self.url
        parts = urlsplit(self.url)
        return f"{parts.scheme}://{parts.hostname or ''}{parts.path}"

    def holdfast(self) -> Holdfast:
        return Holdfast(self.url, schema=self.schema)


Command = Callable[..., Coroutine[Any, Any, int | None]]


def command(name: str | None = None, *, at: typer.Typer = app) -> Callable[[Command], Command]:
    """A command at a desk: `async def words(desk, …)`, which answers an exit code, or None for 0."""

    def register(work: Command) -> Command:
        _add(name, work, lambda desk, given: work(desk, **given), at)
        return work

    return register


def group(name: str, help: str) -> typer.Typer:
    """A word with commands of its own."""
    made = typer.Typer(name=name, help=help, no_args_is_help=True, rich_markup_mode=None)
    app.add_typer(made)
    return made


def on_runs(name: str | None = None, *, at: typer.Typer = app, bare: bool = False) -> Callable[[Command], Command]:
    """A command on an open database that is up to date: `async def words(desk, hf, …)`.

    A `bare` one is what its group does when no other command is named.
    """

    def register(work: Command) -> Command:
        async def opened(desk: Desk, given: dict[str, Any]) -> int | None:
            await check_ready(desk.url, schema=desk.schema)
            hf = desk.holdfast()
            await hf.open(migrate=False)
            try:
                return await work(desk, hf, **given)
            finally:
                await hf.close()

        _add(name, work, opened, at, bare=bare)
        return work

    return register


async def open_and_migrate(desk: Desk) -> Holdfast:
    """The database, made or brought up to date where that is needed."""
    await check_reachable(desk.url)
    return await desk.holdfast().open()


def _add(
    name: str | None,
    work: Command,
    begin: Callable[[Desk, dict[str, Any]], Any],
    at: typer.Typer = app,
    *,
    bare: bool = False,
) -> None:
    """Give the command the options that all have, before or after its name, and run it as a whole program."""
    signature = inspect.signature(work, eval_str=True)
    own = [each for each in signature.parameters.values() if each.name not in ("desk", "hf")]

    @functools.wraps(work)
    def call(ctx: typer.Context, **given: Any) -> None:
        before: Choice = ctx.obj or Choice()
        after = Choice(given.pop("db"), given.pop("schema"), given.pop("json"))
        choice = Choice(after.db or before.db, after.schema or before.schema, after.json or before.json)
        if ctx.invoked_subcommand is not None:
            ctx.obj = choice
            return
        raise typer.Exit(_run(begin, choice, given))

    parameters = [*_parameters(_context), *own, *_parameters(_common)]
    call.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    call.__annotations__ = {each.name: each.annotation for each in parameters}
    if bare:
        at.callback(invoke_without_command=True, no_args_is_help=False)(call)
    else:
        at.command(name or work.__name__)(call)


def _context(ctx: typer.Context) -> None: ...


def _common(*, db: Db = None, schema: Schema = None, json: Json = False) -> None: ...


def _parameters(function: Callable[..., None]) -> list[inspect.Parameter]:
    found = inspect.signature(function, eval_str=True).parameters.values()
    return [each.replace(kind=inspect.Parameter.KEYWORD_ONLY) for each in found]


def _run(begin: Callable[[Desk, dict[str, Any]], Any], choice: Choice, given: dict[str, Any]) -> int:
    try:
        return asyncio.run(_begun(begin, choice, given)) or OK
    except (Conflict, LeaseLost, InvalidEntry) as error:
        complain(str(error))
        return PROBLEMS
    except (HoldfastError, OSError) as error:
        if isinstance(error, BrokenPipeError):
            return _left_alone()
        complain(str(error))
        return UNUSABLE
    except KeyboardInterrupt:
        return INTERRUPTED


async def _begun(begin: Callable[[Desk, dict[str, Any]], Any], choice: Choice, given: dict[str, Any]) -> int | None:
    try:
        desk = Desk(choice)
        _ = desk.place
    except ValueError as error:
        raise DatabaseError(f"the database URL cannot be read: {error}", code="invalid_url") from error
    answer: int | None = await begin(desk, given)
    return answer


def _left_alone() -> int:
    """The reader of our output went away (`… | head`). Python would complain once more at its end."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return OK


def _show_version(wanted: bool) -> None:
    if wanted:
        try:
            typer.echo(f"holdfast {version('holdfast')}")
        except PackageNotFoundError:
            typer.echo("holdfast (not installed, run from its sources)")
        raise typer.Exit


@app.callback()
def _before(
    ctx: typer.Context,
    db: Db = None,
    schema: Schema = None,
    json: Json = False,
    show_version: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Show the version and end.")
    ] = False,
) -> None:
    ctx.obj = Choice(db, schema, json)
