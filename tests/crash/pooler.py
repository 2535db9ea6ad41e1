"""PgBouncer in transaction mode before a Postgres, on loopback, gone when its user is."""

from __future__ import annotations

import os
import socket
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

from tests.crash.programs import require

STOP_S = 10.0


@contextmanager
def transaction_pooler(postgres_url: str, *, server_connections: int) -> Iterator[str]:
    """The address of the pooler. All its clients share a few connections to the server."""
    program = require("pgbouncer")
    (host,) = parse_qs(urlsplit(postgres_url).query)["host"]
    with tempfile.TemporaryDirectory(prefix="holdfast-pooler-") as folder:
        port = _free_port()
        settings = Path(folder, "pgbouncer.ini")
        settings.write_text(_SETTINGS.format(host=host, port=port, size=server_connections), encoding="utf-8")
        # It refuses to be root, and whoever runs the server may use the server's socket.
        owner = os.stat(host)
        os.chown(folder, owner.st_uid, owner.st_gid)
        user, group = (owner.st_uid, owner.st_gid) if os.geteuid() == 0 else (None, None)
        command = [program, str(settings)]
        with subprocess.Popen(command, stderr=subprocess.PIPE, text=True, user=user, group=group) as process:
            try:
                _wait_until_up(process)
                yield f"postgresql://postgres:@127.0.0.1:{port}/postgres?sslmode=disable"
            finally:
                process.terminate()
                process.wait(STOP_S)


def _wait_until_up(process: subprocess.Popen[str]) -> None:
    assert process.stderr is not None
    said: list[str] = []
    for line in process.stderr:
        said.append(line)
        if "process up" in line:
            return
    raise AssertionError(f"pgbouncer did not start: {''.join(said)}")


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


_SETTINGS = """
[databases]
postgres = host={host} port=5432 user=postgres dbname=postgres

[pgbouncer]
listen_addr = 127.0.0.1
listen_port = {port}
unix_socket_dir =
auth_type = any
pool_mode = transaction
default_pool_size = {size}
max_client_conn = 200
log_connections = 0
log_disconnections = 0
log_stats = 0
"""
