"""When the cores of this machine stood still. A shared machine takes them away for milliseconds at a time, and
whoever should have run then is late; a few tens of milliseconds of that are most of a high quantile.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

NAP_S = 0.001
LATE_MS = 0.5


class Stillness:
    """One sleeper on each core, who notes when it is woken late: the core was gone, or somebody kept it."""

    def __init__(self) -> None:
        self.gaps: list[tuple[float, float]] = []
        """When a sleeper was due and when it woke, where the two are apart."""
        self._over = threading.Event()

    @contextmanager
    def watched(self) -> Iterator[None]:
        sleepers = [threading.Thread(target=self._sleep_on, args=(core,), daemon=True) for core in _cores()]
        for sleeper in sleepers:
            sleeper.start()
        try:
            yield
        finally:
            self._over.set()
            for sleeper in sleepers:
                sleeper.join()

    def between(self, began_ms: float, ended_ms: float) -> float:
        """Milliseconds in which cores stood still, all of them added up; instants are of the monotonic clock."""
        return sum(
            min(woken, ended_ms) - max(due, began_ms) for due, woken in self.gaps if due < ended_ms and woken > began_ms
        )

    def _sleep_on(self, core: int | None) -> None:
        if core is not None:
            os.sched_setaffinity(threading.get_native_id(), {core})
        while not self._over.is_set():
            due = (time.monotonic() + NAP_S) * 1_000
            time.sleep(NAP_S)
            woken = time.monotonic() * 1_000
            if woken - due > LATE_MS:
                self.gaps.append((due, woken))


def _cores() -> list[int | None]:
    """Those we may use; where nobody can be tied to one, a single sleeper anywhere."""
    return [*sorted(os.sched_getaffinity(0))] if hasattr(os, "sched_getaffinity") else [None]
