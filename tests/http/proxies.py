"""nginx and haproxy before served processes, on loopback, gone when their user is."""

from __future__ import annotations

import asyncio
import socket
import tempfile
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

from tests.crash.programs import require

STOP_S = 10.0
Settings = Callable[[str, int], str]
"""The settings of a program that keeps its files in a folder and listens at a port."""

# As a distribution ships it: buffering is on, HTTP/1.0 to the server behind. Only where it writes is ours.
_NGINX = """
daemon off;
pid {folder}/nginx.pid;
error_log stderr;
events {{ }}
http {{
    access_log off;
    client_body_temp_path {folder}/body;
    proxy_temp_path {folder}/proxy;
    fastcgi_temp_path {folder}/fastcgi;
    uwsgi_temp_path {folder}/uwsgi;
    scgi_temp_path {folder}/scgi;
    server {{
        listen 127.0.0.1:{port};
        location / {{ proxy_pass http://127.0.0.1:{first}; }}
    }}
}}
"""
_HAPROXY = """
defaults
    mode http
    timeout connect 2s
    timeout client 60s
    timeout server 60s
    option redispatch
    retries 3
frontend all
    bind 127.0.0.1:{port}
    default_backend api
backend api
    balance roundrobin
    option httpchk GET /readyz
{servers}
"""


@asynccontextmanager
async def nginx(port_behind: int) -> AsyncIterator[str]:
    """With its defaults, before one server."""
    async with _running(
        "nginx", ["-c"], lambda folder, port: _NGINX.format(folder=folder, port=port, first=port_behind)
    ) as url:
        yield url


@asynccontextmanager
async def haproxy(ports_behind: Sequence[int]) -> AsyncIterator[str]:
    """Round robin without stickiness, before several servers."""
    lines = [f"    server s{n} 127.0.0.1:{port} check inter 200ms" for n, port in enumerate(ports_behind)]
    text = "\n".join(lines)
    async with _running("haproxy", ["-db", "-f"], lambda _, port: _HAPROXY.format(port=port, servers=text)) as url:
        yield url


@asynccontextmanager
async def _running(name: str, options: Sequence[str], settings: Settings) -> AsyncIterator[str]:
    program = require(name)
    with tempfile.TemporaryDirectory(prefix=f"holdfast-{name}-") as folder:
        port = _free_port()
        path = _written(Path(folder, "settings.conf"), settings(folder, port))
        process = await asyncio.create_subprocess_exec(
            program, *options, path, stdout=asyncio.subprocess.DEVNULL, stderr=asyncio.subprocess.DEVNULL
        )
        try:
            await _listens(port)
            yield f"http://127.0.0.1:{port}"
        finally:
            process.terminate()
            await asyncio.wait_for(process.wait(), STOP_S)


def _written(path: Path, text: str) -> str:
    path.write_text(text, encoding="utf-8")
    return str(path)


async def _listens(port: int) -> None:
    async with asyncio.timeout(10):
        while True:
            try:
                _, writer = await asyncio.open_connection("127.0.0.1", port)
            except OSError:
                await asyncio.sleep(0.02)
                continue
            writer.close()
            return


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port
