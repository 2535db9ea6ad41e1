"""Where the events of a run stand, for writers who say after which one theirs belongs."""

from __future__ import annotations

from typing import Any, NamedTuple

from holdfast.journal import Journal
from holdfast.protocol.events import View, view
from holdfast.protocol.values import canonical

SEQ_MAX = (1 << 62) - 1
SEQ_MOVED = "seq_moved"
BATCH = 100


class Standing(NamedTuple):
    """`rev` is the run's head if a certain event is the last one, else None; `next` is the first one after it."""

    rev: int | None
    next_seq: int = 0
    next: View | None = None

    def is_after(self, event: tuple[str, Any], tick_id: str) -> bool:
        """Is this event of this tick what follows already?"""
        found = self.next
        if found is None or (found.type, found.tick_id) != (event[0], tick_id):
            return False
        return canonical(found.data) == canonical(event[1])


async def standing_after(journal: Journal, run_id: str, seq: int) -> Standing:
    """Is this the seq of the run's last event, and if not, which is the first one after it?

    A seq at which there is no event is nobody's last.
    """
    after, is_known = max(seq - 1, 0), False
    while True:
        found = await journal.facts(run_id, after, BATCH)
        for entry, fact in found:
            shown = view(fact)
            after = entry.rev
            if entry.rev == seq:
                is_known = shown is not None
            elif shown is not None:
                return Standing(None, entry.rev, shown if is_known else None)
        if len(found) < BATCH:
            return Standing(after if is_known else None)
