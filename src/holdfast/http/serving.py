"""Serving a runtime: the API, a worker, or both in one process, from the first request to an end in order."""

from __future__ import annotations

import asyncio
import contextlib
import os
import resource
import sys
from collections.abc import Sequence

from holdfast.credentials import Site
from holdfast.errors import InvalidValue
from holdfast.facade import Holdfast
from holdfast.http.app import create_app
from holdfast.http.limits import Limits
from holdfast.http.server import LOOPBACK_HOSTS, Server, check_bind, is_loopback
from holdfast.worker import RunWorker

ROLES = ("api", "worker", "all")
CONNECTIONS_MAX = 65_536


async def serve(
    hf: Holdfast,
    *,
    role: str,
    host: str,
    port: int,
    queues: Sequence[str] | None = None,
    concurrency: int = 64,
    drain_s: float = 30.0,
    sticky_ttl_s: float | None = None,
) -> None:
    """Serve until SIGTERM or SIGINT. Who may call is said by `HOLDFAST_AUTH`; nobody but this machine, unless told."""
    if role not in ROLES:
        raise InvalidValue(f"role is {role!r}; use one of {', '.join(ROLES)}")
    auth = os.environ.get("HOLDFAST_AUTH") or "none"
    check_bind(host, auth)
    _allow_connections()
    hf.office.check_key()
    site = None if role == "worker" else _site(hf, host, port)
    app = create_app(hf, auth=auth, role=role, limits=_limits(auth), hosts=_hosts(auth, host), site=site)
    async with app.state.holdfast.lifespan():
        worker = None if role == "api" else hf.worker(queues or None, concurrency, None, drain_s, sticky_ttl_s)
        server = Server(app, host=host, port=port, on_drain=worker.stop if worker else None)
        with server.hearing_signals():
            beside = [asyncio.create_task(_announce(server, role))]
            if worker is not None:
                beside.append(asyncio.create_task(_work(server, worker)))
            try:
                await server.serve()
            except SystemExit as error:
                text = f"cannot listen at {host}:{port}; is it in use?"
                raise InvalidValue(text, code="cannot_listen") from error
            finally:
                await _end(server, beside)


def _allow_connections() -> None:
    """Every stream is an open file, and many systems begin with a thousand: take what we may have without asking."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = CONNECTIONS_MAX if hard == resource.RLIM_INFINITY else min(hard, CONNECTIONS_MAX)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


async def _end(server: Server, beside: list[asyncio.Task[None]]) -> None:
    """A worker ends when it has let go of its ticks; one that waited for a server that never listened ends now."""
    if not server.ready.is_set():
        for task in beside:
            task.cancel()
    for task in beside:
        with contextlib.suppress(asyncio.CancelledError):
            await task


async def _work(server: Server, worker: RunWorker) -> None:
    """Work once the server listens: it hears the signals for both. Whatever ends the worker ends the process."""
    await server.ready.wait()
    try:
        await worker.run()
    finally:
        if not server.should_exit:
            server.drain()


async def _announce(server: Server, role: str) -> None:
    """People and programs that started us look for this line."""
    await server.ready.wait()
    host, port = server.address
    shown = f"[{host}]" if ":" in host else host
    print(f"holdfast serves {role} at http://{shown}:{port}", file=sys.stderr, flush=True)


def _site(hf: Holdfast, host: str, port: int) -> Site | None:
    """Where browsers find us when nobody says so: here, if we listen to this machine at a port that we know."""
    return hf.office.site(url=f"http://127.0.0.1:{port}") if port and is_loopback(host) else None


def _hosts(auth: str, host: str) -> list[str] | None:
    """Without a login only this machine may ask, and only by its own name: a page that renames itself may not."""
    return [*LOOPBACK_HOSTS, host] if auth == "none" and is_loopback(host) else None


def _limits(auth: str) -> Limits:
    """Nobody limits the person at this machine; others have a fair share unless told."""
    rate = os.environ.get("HOLDFAST_COMMANDS_PER_SECOND") or ("" if auth == "none" else "50")
    starts = os.environ.get("HOLDFAST_STARTS_PER_SECOND") or ("" if auth == "none" else "5")
    streams = os.environ.get("HOLDFAST_STREAMS_PER_USER") or ("" if auth == "none" else "100")
    try:
        return Limits(
            commands_per_second=float(rate) if rate else None,
            starts_per_second=float(starts) if starts else None,
            streams_per_user=int(streams) if streams else None,
        )
    except ValueError as error:
        raise InvalidValue(f"a limit in the environment is no number: {error}") from error
