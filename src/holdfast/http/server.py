"""`Server`: uvicorn with an end in order. Streams end first, then the API, then the worker's ticks."""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import socket
from collections.abc import Callable, Iterator

import uvicorn
from fastapi import FastAPI

from holdfast.errors import InvalidValue
from holdfast.http.service import Service
from holdfast.redaction import logger
from holdfast.worker import hearing_signals

log = logger("holdfast.http")

LINGER_S = 0.3
GRACE_S = 5
LOOPBACK_HOSTS = ("localhost", "127.0.0.1", "::1")


class Server(uvicorn.Server):
    """Serves one app until it is told to stop.

    The first signal makes `/readyz` say so and ends every stream, whose readers come back elsewhere; requests on their
    way are answered. The second ends everything at once.
    """

    def __init__(self, app: FastAPI, *, host: str, port: int, on_drain: Callable[[], None] | None = None) -> None:
        config = uvicorn.Config(
            app,
            host=host,
            port=port,
            # Whoever runs us opens the runtime before us and closes it after: a worker may need it longer.
            lifespan="off",
            log_config=None,
            access_log=False,
            server_header=False,
            timeout_graceful_shutdown=GRACE_S,
        )
        super().__init__(config)
        self._service: Service = app.state.holdfast
        self._on_drain = on_drain
        self.ready = asyncio.Event()
        """Set once it listens."""

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self.ready.set()

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Not here: signals are for the whole process, whose worker may need longer than the server."""
        yield

    @contextlib.contextmanager
    def hearing_signals(self) -> Iterator[None]:
        """Leave on SIGTERM and SIGINT, for as long as anything runs. Only a main thread can hear them."""
        with hearing_signals(self.drain):
            yield

    def drain(self) -> None:
        """Leave. Called again: at once."""
        if self._on_drain is not None:
            self._on_drain()
        if self._service.is_leaving:
            self.should_exit = self.force_exit = True
            return
        log.info("leaving: streams end, requests on their way are answered")
        self._service.leave()
        # A moment in which whoever asks hears that we are leaving, instead of nobody.
        asyncio.get_running_loop().call_later(LINGER_S, self._stop)

    def _stop(self) -> None:
        self.should_exit = True

    @property
    def address(self) -> tuple[str, int]:
        """Where it listens, once it has started; a port of 0 is a free one."""
        host, port, *_ = self.servers[0].sockets[0].getsockname()
        return host, port


def check_bind(host: str, auth: str) -> None:
    """Whoever serves everybody must know who they are; on this machine alone nobody has to say."""
    if auth == "none" and not is_loopback(host):
        text = f"{host} is open to others and HOLDFAST_AUTH is none; set it to token or oidc, or bind to 127.0.0.1"
        raise InvalidValue(text, code="auth_required")


def is_loopback(host: str) -> bool:
    if host in LOOPBACK_HOSTS:
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
