"""Commands that do the work: `worker` until it is told to stop, `advance` for one pass."""

from __future__ import annotations

import importlib
import os
import sys
from typing import Annotated

import typer

from holdfast.cli.app import Desk, command
from holdfast.cli.output import table
from holdfast.cli.process import settle_in
from holdfast.errors import InvalidValue
from holdfast.facade import AdvanceResult, Holdfast
from holdfast.logs import write_logs
from holdfast.redaction import logger
from holdfast.runtime.stickiness import TTL_S, check_sticky_ttl

LEASE_MIN_MS = 10_000
"""A process that stops for a moment, as processes do, must not lose what it holds."""
App = Annotated[
    str | None,
    typer.Argument(metavar="[APP]", help="Where your Holdfast is, as module:name; otherwise HOLDFAST_APP."),
]
Queues = Annotated[list[str] | None, typer.Option("--queue", "-q", help="A queue to serve; may be repeated.")]
LeaseMs = Annotated[
    int | None, typer.Option(min=LEASE_MIN_MS, help="How long a claim lasts without a heartbeat; as your app has it.")
]
_STICKY_HELP = f"Sessions keep to their worker for so many seconds, or `on` for {TTL_S:.0f}; else HOLDFAST_STICKY_TTL."
StickyTtl = Annotated[str | None, typer.Option("--sticky-ttl", metavar="SECONDS", help=_STICKY_HELP)]


@command()
async def worker(
    desk: Desk,
    *,
    app: App = None,
    queues: Queues = None,
    concurrency: Annotated[int, typer.Option(help="How many ticks at once.")] = 64,
    lease_ms: LeaseMs = None,
    drain_s: Annotated[float, typer.Option(help="How long ticks may take to end after SIGTERM.")] = 30.0,
    sticky_ttl: StickyTtl = None,
) -> None:
    """Run what is due until SIGTERM or Ctrl-C: the first lets ticks end, the second gives them back at once."""
    write_logs(as_json=not sys.stderr.isatty(), everything=True)
    kept_s = sticky_ttl_s(sticky_ttl)
    async with load(app) as hf:
        working = hf.worker(queues or None, concurrency, lease_ms, drain_s, kept_s)
        settle_in()
        logger("holdfast").info("%s serves %s", working.owner_id, ", ".join(working.queues))
        await working.run()
        logger("holdfast").info("%s has stopped after %d ticks", working.owner_id, working.ticks)


@command()
async def advance(
    desk: Desk,
    *,
    app: App = None,
    budget_ms: Annotated[int | None, typer.Option(help="Begin no tick after this long.")] = None,
    max_runs: Annotated[int | None, typer.Option(help="At most so many ticks.")] = None,
    queues: Queues = None,
) -> None:
    """One pass: every run that is due gets at most one tick."""
    async with load(app) as hf:
        result = await hf.advance(budget_ms, max_runs, queues or None)
    if desk.out.json:
        desk.out.tell(result)
    else:
        _show(desk, result)


def sticky_ttl_s(given: str | None) -> float | None:
    """For how long sessions keep to a worker: what is said here, else in the environment, else not at all."""
    said = (given or os.environ.get("HOLDFAST_STICKY_TTL") or "").strip().lower()
    if said in ("", "off"):
        return None
    try:
        seconds = TTL_S if said == "on" else float(said)
    except ValueError as error:
        text = f"a session keeps to its worker for seconds, or `on`, or `off`; {said!r} is none of them"
        raise InvalidValue(text, code="invalid_sticky_ttl") from error
    return check_sticky_ttl(seconds)


def load(name: str | None) -> Holdfast:
    """The program's own runtime, with its clogs: a Holdfast, or a function that makes one."""
    wanted = name or os.environ.get("HOLDFAST_APP")
    if not wanted:
        raise InvalidValue("nothing knows your clogs; name your Holdfast as module:name, here or in HOLDFAST_APP")
    module, colon, attribute = wanted.partition(":")
    if not colon:
        raise InvalidValue(f"{wanted!r} names a module only; say where in it your Holdfast is, as in {wanted}:hf")
    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())
    try:
        found = getattr(importlib.import_module(module), attribute)
    except ModuleNotFoundError as error:
        raise InvalidValue(f"{wanted} cannot be imported: {error}; run this where your program is") from error
    except AttributeError as error:
        raise InvalidValue(f"module {module} has no {attribute}") from error
    hf = found() if callable(found) else found
    if not isinstance(hf, Holdfast):
        raise InvalidValue(f"{wanted} is a {type(hf).__name__}, not a Holdfast or a function that makes one")
    return hf


def _show(desk: Desk, result: AdvanceResult) -> None:
    if result.results:
        rows = [(each.run_id, each.tick_id, each.outcome, each.status) for each in result.results]
        desk.out.show(table(("run", "tick", "outcome", "status"), rows))
    when = f"; come back at {result.next_wake_at:%Y-%m-%d %H:%M:%S %Z}" if result.next_wake_at else ""
    cut = ", the budget is used up" if result.budget_exhausted else ""
    desk.out.show(f"{result.advanced} advanced{cut}{when}")
