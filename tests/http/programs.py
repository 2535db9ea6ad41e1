"""The runtime that served processes of these tests load: `tests.http.programs:make`."""

from __future__ import annotations

import os
import signal

from holdfast import Holdfast
from holdfast.runtime.kept_answers import Answer, KeptAnswers, Turn
from tests.http.clogs import register


def die_around_the_answer(place: str) -> None:
    """This process is killed once what was asked for is committed: before its answer is kept, or before it is sent."""
    keep = KeptAnswers.keep

    async def doomed(self: KeptAnswers, turn: Turn, answer: Answer) -> None:
        if place == "sent":
            await keep(self, turn, answer)
        os.kill(os.getpid(), signal.SIGKILL)

    KeptAnswers.keep = doomed  # type: ignore[method-assign]


def make() -> Holdfast:
    """On the database that the test names, with short leases."""
    if place := os.environ.get("TEST_DIES_BEFORE_IT_IS"):
        die_around_the_answer(place)
    hf = Holdfast(
        os.environ["HOLDFAST_DATABASE_URL"],
        schema=os.environ["HOLDFAST_SCHEMA"],
        lease_ms=int(os.environ.get("TEST_LEASE_MS", "1000")),
    )
    register(hf)
    return hf
