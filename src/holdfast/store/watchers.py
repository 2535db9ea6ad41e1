"""Who in other processes wants to hear of single runs, as far as this one knows.

A hint wakes every process that listens, on the server and in Python, and of most commits nobody elsewhere wants to
know: a worker listens for work, not for the ends of its neighbours' runs. So whoever watches runs says so, again and
again, and runs are told of only while somebody does. All of it may be lost on its way: that costs latency, as with any
hint.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

from holdfast import ambient

ASKING = "who-watches?"
"""Said by whoever begins to listen, so that those who watch need not be waited for."""
WATCHING = "we-watch"
SPOKEN = frozenset({ASKING, WATCHING})
"""What processes say to each other, and no news of anything."""
OF_RUNS = ("run:", "session:")
"""How topics begin that only those who watch want to hear of."""
ANSWER_S = 1.0
"""How long an answer may take. Until then, somebody may be watching."""
SAY_S = 10.0
"""How often it is said."""
WATCHED_S = 3 * SAY_S
"""For how long it counts: one that is lost on its way is made up for by the next."""
LATE_S = 1.0
"""What was kept back within this time may be news to somebody who begins to watch."""


class Watchers:
    """What was heard of them. Until anything is heard at all, there may be any number."""

    def __init__(self) -> None:
        self._until = math.inf
        self._kept_back_at = -math.inf

    @property
    def are_there(self) -> bool:
        return ambient.monotonic() < self._until

    def unknown(self) -> bool:
        """We begin to hear, or may have missed something. True if they should be asked, which once a moment is enough.

        Whoever watches answers soon; if nobody does, there is nobody.
        """
        now = ambient.monotonic()
        is_asked = self._until != math.inf and now < self._until
        self._until = now + ANSWER_S if self._until == math.inf else max(self._until, now + ANSWER_S)
        return not is_asked

    def heard(self) -> bool:
        """Somebody watches. True if there is something they may have missed a moment ago."""
        now = ambient.monotonic()
        were_there, self._until = self.are_there, now + WATCHED_S
        return not were_there and now - self._kept_back_at < LATE_S

    def wanted(self, topics: Iterable[str]) -> set[str]:
        """Those of these topics that somebody may want to hear of."""
        given = set(topics)
        if self.are_there:
            return given
        found = {topic for topic in given if not topic.startswith(OF_RUNS)}
        if len(found) < len(given):
            self._kept_back_at = ambient.monotonic()
        return found
