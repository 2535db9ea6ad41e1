"""What a commit is news of: whoever listens for one of these topics should look."""

from __future__ import annotations

from collections.abc import Sequence

from holdfast.store.tables import OUTBOX, WORK
from holdfast.store.types import Member

OUTBOX_TOPIC = "outbox"
_QUEUE, _CLAIM_ID = (WORK.names.index(name) for name in ("queue", "claim_id"))


def topics(members: Sequence[Member]) -> set[str]:
    """The threads that grew, the queues with new work, the sessions with new runs, the outbox."""
    found = {member.thread for member in members}
    for member in members:
        puts = member.changes.puts
        found |= {f"queue:{row[_QUEUE]}" for row in puts.get(WORK.name, ()) if row[_CLAIM_ID] is None}
        if member.created is not None:
            found.add(f"session:{member.created[1]}")
        if OUTBOX.name in puts:
            found.add(OUTBOX_TOPIC)
    return found
