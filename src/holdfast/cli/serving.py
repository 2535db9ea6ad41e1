"""Commands that serve: `serve` in the role of an API, a worker or both, and `dev` with everything in one process."""

from __future__ import annotations

import os
import sys
from typing import Annotated, Any

import typer

from holdfast.cli.app import Desk, command
from holdfast.cli.demonstration import register_demonstration
from holdfast.cli.process import settle_in
from holdfast.cli.working import App, Queues, StickyTtl, load, sticky_ttl_s
from holdfast.errors import InvalidValue
from holdfast.facade import Holdfast
from holdfast.logs import write_logs
from holdfast.redaction import logger
from holdfast.store.doctor import check_reachable

PORT = 8787
LEASE_MS = 5_000
"""Of the demonstration: it is killed on purpose, and whoever does that wants to see it go on."""
Host = Annotated[str, typer.Option(help="Where to listen; other machines need HOLDFAST_AUTH=token or oidc.")]
Port = Annotated[int, typer.Option(min=0, max=65_535, help="0 for a free one.")]
Concurrency = Annotated[int, typer.Option(help="How many ticks at once.")]
DrainS = Annotated[float, typer.Option(help="How long ticks may take to end after SIGTERM.")]


@command()
async def serve(
    desk: Desk,
    *,
    app: App = None,
    role: Annotated[str | None, typer.Option(help="api, worker or all; otherwise HOLDFAST_ROLE.")] = None,
    host: Host = "127.0.0.1",
    port: Port = PORT,
    queues: Queues = None,
    concurrency: Concurrency = 64,
    drain_s: DrainS = 30.0,
    sticky_ttl: StickyTtl = None,
) -> None:
    """Serve the API, work on runs, or both, until SIGTERM or Ctrl-C; the second one ends it at once."""
    told = {"host": host, "port": port, "queues": queues, "concurrency": concurrency, "drain_s": drain_s}
    told["sticky_ttl_s"] = sticky_ttl_s(sticky_ttl)
    await _serve(desk, app, as_json=not sys.stderr.isatty(), role=role, **told)


@command()
async def dev(
    desk: Desk,
    *,
    app: App = None,
    host: Host = "127.0.0.1",
    port: Port = PORT,
    concurrency: Concurrency = 64,
    drain_s: DrainS = 5.0,
) -> None:
    """Everything in one process: API, worker and a page at `/`, with a demonstration unless you bring your own."""
    told = {"host": host, "port": port, "concurrency": concurrency, "drain_s": drain_s}
    await _serve(desk, app, as_json=False, role="all", **told)


def role_of(desk: Desk, app: str | None, given: str | None) -> str:
    """What this process is to be. A worker that nobody gave a database would wait for ever for runs of its own."""
    role = given or os.environ.get("HOLDFAST_ROLE") or "all"
    if role == "worker" and not desk.is_told_where and not (app or os.environ.get("HOLDFAST_APP")):
        logger("holdfast").warning(
            "a worker needs the database of its APIs and HOLDFAST_DATABASE_URL names none; serving as all, on %s",
            desk.place,
        )
        return "all"
    return role


async def _serve(desk: Desk, app: str | None, *, as_json: bool, role: str | None, **told: Any) -> None:
    try:
        # The server is an extra, and no other command should wait for its framework.
        from holdfast.http import serving  # noqa: PLC0415
    except ModuleNotFoundError as error:
        text = f"serving needs more: pip install 'holdfast[server]' ({error})"
        raise InvalidValue(text, code="extra_missing") from error
    write_logs(as_json=as_json)
    hf = await _runtime(desk, app)
    settle_in()
    await serving.serve(hf, role=role_of(desk, app, role), **told)


async def _runtime(desk: Desk, app: str | None) -> Holdfast:
    """The program's own runtime, or one with the demonstration on the database of the desk."""
    if app is not None or os.environ.get("HOLDFAST_APP"):
        return load(app)
    await check_reachable(desk.url)
    hf = Holdfast(desk.url, schema=desk.schema, lease_ms=LEASE_MS)
    register_demonstration(hf)
    return hf
