"""`Slots`: the places of one worker. Who is in a handler, who only waits for the disk, and who was claimed ahead."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator

from holdfast import ambient
from holdfast.runtime.claims import Taken

SETTLING_MAX = 3
"""Ticks that wait for the disk alone, for each slot: enough to work on while the disk is waited for."""
BRISK_S = 0.05
"""Handlers that take no longer soon make room for a claim that is ahead of its slot."""
BRISK_MIN = 64
"""How many of them in a row it takes, or as many as there are slots: where one in ten takes its time, so many hardly
ever come together."""
AHEAD_S = 0.25
"""A claim that has waited this long for its slot is somebody else's to run."""


class Slots:
    """What a worker may begin, and what it may claim.

    A database that works apart from us can look for the next claims while we work on these. Where it `looks_ahead`, as
    many again as there are slots are claimed while handlers are brisk; where they take their time, nothing is held
    that another worker could begin at once.
    """

    def __init__(self, many: int, *, looks_ahead: bool, patience_s: float = AHEAD_S) -> None:
        self._many = many
        self._looks_ahead = looks_ahead
        self._patience_s = patience_s
        self._handling: dict[str, float] = {}
        self._running = 0
        self._ahead: deque[tuple[Taken, float]] = deque()
        self._brisk = 0

    @property
    def free(self) -> int:
        """How many ticks may begin. One whose handler has answered only waits for the disk: its slot is free, so that
        claiming goes on beside committing; but a slow disk must not gather ticks without end."""
        return min(self._many - len(self._handling), (1 + SETTLING_MAX) * self._many - self._running)

    @property
    def room(self) -> int:
        """How many may be claimed."""
        if not self._looks_ahead or self._brisk < max(self._many, BRISK_MIN):
            return self.free
        room = self.free + self._many - len(self._ahead)
        # One by one, claims ahead would be as many statements as runs.
        return room if 2 * room >= self._many else self.free

    @property
    def counts(self) -> dict[str, int]:
        """How many ticks are in their handlers, how many wait for the disk alone, and how many more could begin."""
        busy = len(self._handling)
        return {"busy": busy, "settling": self._running - busy, "free": self._many - busy}

    def is_handling(self, claim_id: str) -> bool:
        return claim_id in self._handling

    def begin(self, claim_id: str) -> None:
        """A tick is in its handler."""
        self._handling[claim_id] = ambient.monotonic()
        self._running += 1

    def handled(self, claim_id: str) -> None:
        """Its handler has answered, or never will."""
        began = self._handling.pop(claim_id, None)
        if began is not None:
            self._brisk = self._brisk + 1 if ambient.monotonic() - began <= BRISK_S else 0

    def end(self) -> None:
        """A tick is over, and its outcome on disk."""
        self._running -= 1

    def queue(self, taken: Iterable[Taken], since: float) -> None:
        """These are claimed, and begin when it is their turn. `since` is when they were asked for."""
        self._ahead.extend((item, since) for item in taken)

    def turns(self) -> Iterator[tuple[Taken, float]]:
        """Whose turn it is. Each must begin before the next is asked for."""
        while self._ahead and self.free > 0:
            yield self._ahead.popleft()

    def patience(self, seconds: float | None) -> float | None:
        """So long, or until a claim that is ahead has waited for long enough."""
        if not self._ahead:
            return seconds
        left_s = max(self._ahead[0][1] + self._patience_s - ambient.monotonic(), 0)
        return left_s if seconds is None else min(seconds, left_s)

    def overdue(self) -> list[Taken]:
        """Those that have waited for too long, which are not ours to begin any more; whoever is in the slots may well
        stay there, so no more are claimed ahead until handlers are brisk again."""
        if self.patience(None) != 0:
            return []
        self._brisk = 0
        return self.let_go()

    def let_go(self) -> list[Taken]:
        """All that did not begin, which are not ours to begin any more."""
        left = [item for item, _ in self._ahead]
        self._ahead.clear()
        return left
