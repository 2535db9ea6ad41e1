"""`Stickiness`: sessions that keep to the worker that served them last, for as long as it says.

A preference, not a right: leases and lanes decide who may work on what. A worker that dies leaves its sessions to the
others once their time is over.
"""

from __future__ import annotations

from collections.abc import Sequence

from holdfast.errors import InvalidValue
from holdfast.protocol.state import RunState
from holdfast.store import Store

TTL_S = 600.0
TTL_MIN_S = 10.0
TTL_MAX_S = 86_400.0

# In one order, so that two workers who write several sessions at once do not wait for each other.
_KEEP = """
    INSERT INTO {s}sticky_sessions (session_id, owner_id, expires_at)
    SELECT x.session_id, CAST($1 AS text), {now} + CAST($2 AS bigint)
    FROM (SELECT DISTINCT session_id FROM {s}runs WHERE run_id IN ({places})) x
    WHERE true
    ORDER BY x.session_id
    ON CONFLICT (session_id) DO UPDATE SET owner_id = excluded.owner_id, expires_at = excluded.expires_at
    WHERE sticky_sessions.owner_id = excluded.owner_id OR sticky_sessions.expires_at <= {now}
    RETURNING session_id
"""
_LET_GO = "DELETE FROM {s}sticky_sessions WHERE owner_id = $1"
_FORGET = "DELETE FROM {s}sticky_sessions WHERE expires_at <= $1"


class Stickiness:
    """The sessions that keep to one worker."""

    def __init__(self, store: Store[RunState], owner_id: str, ttl_s: float) -> None:
        self._store = store
        self._owner_id = owner_id
        self._ttl_us = round(check_sticky_ttl(ttl_s) * 1_000_000)

    async def keep(self, run_ids: Sequence[str]) -> None:
        """The sessions of these runs are this worker's from now on, unless another has them already."""
        distinct = sorted(set(run_ids))
        places = ", ".join(f"${place}" for place in range(3, len(distinct) + 3))
        await self._store.change(_KEEP.replace("{places}", places), self._owner_id, self._ttl_us, *distinct)

    async def let_go(self) -> None:
        """Whoever asks next may have them."""
        await self._store.execute((_LET_GO, (self._owner_id,)))


async def forget_stale(store: Store[RunState], now: int) -> None:
    """Remove the preferences that were over at this instant."""
    await store.execute((_FORGET, (now,)))


def check_sticky_ttl(ttl_s: float) -> float:
    """The same, if it is a time for which a session may keep to a worker."""
    # Nothing that is no number, or that is not a number, lies between two.
    if isinstance(ttl_s, bool | str) or not TTL_MIN_S <= ttl_s <= TTL_MAX_S:
        text = f"a session keeps to its worker for {TTL_MIN_S:.0f} to {TTL_MAX_S:.0f} seconds; got {ttl_s!r}"
        raise InvalidValue(text, code="invalid_sticky_ttl")
    return ttl_s
