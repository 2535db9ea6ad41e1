"""The runtime that served processes of these tests load: `tests.http.programs:make`."""

from __future__ import annotations

import os

from holdfast import Holdfast
from tests.http.clogs import register


def make() -> Holdfast:
    """On the database that the test names, with short leases."""
    hf = Holdfast(
        os.environ["HOLDFAST_DATABASE_URL"],
        schema=os.environ["HOLDFAST_SCHEMA"],
        lease_ms=int(os.environ.get("TEST_LEASE_MS", "1000")),
    )
    register(hf)
    return hf
