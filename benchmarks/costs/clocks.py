"""The CPU of a database server, finely enough for blocks of a few milliseconds."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

import psutil

from benchmarks.places import Place, PostgresPlace


async def server_of(place: Place) -> psutil.Process | None:
    """The process that all of the server's processes come from; none for a file."""
    if not isinstance(place, PostgresPlace):
        return None
    return psutil.Process(await place.count("SELECT pg_backend_pid()")).parent()


def cpu_s(server: psutil.Process | None) -> float:
    """Of the processes that are there now; take it twice and nobody may end in between."""
    if server is None:
        return 0.0
    used = 0.0
    for process in (server, *server.children(recursive=True)):
        with suppress(psutil.NoSuchProcess, ProcessLookupError):
            used += _of(process)
    return used


def _of(process: psutil.Process) -> float:
    # The scheduler counts nanoseconds, where other clocks tick a hundred times a second; not every kernel tells.
    with suppress(FileNotFoundError):
        return int(Path(f"/proc/{process.pid}/schedstat").read_text().split()[0]) / 1e9
    times = process.cpu_times()
    return float(times.user + times.system)
