"""The dispatch view of a queue as a pure fold: what is visible, claimed or expired, from entries alone.

Each run is folded by the same `evolve` that judged its commits, so the view and the tables cannot disagree.
"""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from holdfast.protocol.evolve import evolve
from holdfast.protocol.facts import Fact
from holdfast.protocol.state import RunState, Work


class Attempt(msgspec.Struct, frozen=True, kw_only=True):
    """One queue-visible item. While a person is asked about its run (`paused`), nobody can claim it; nor while the
    run waits for its lane (`blocked`)."""

    run_id: str
    runnable_key: str
    status: str
    paused: bool = False
    blocked: bool = False
    attempt: int
    visible_at: int
    claim_id: str | None = None
    owner_id: str | None = None
    lease_until: int | None = None


class Dispatch(msgspec.Struct, frozen=True):
    """All open attempts of one queue."""

    attempts: tuple[Attempt, ...]

    def _claimable(self) -> Iterable[Attempt]:
        return (item for item in self.attempts if not item.paused and not item.blocked)

    def visible(self, at: int) -> tuple[Attempt, ...]:
        """Unclaimed and due, oldest first."""
        due = (item for item in self._claimable() if item.claim_id is None and item.visible_at <= at)
        return tuple(sorted(due, key=lambda item: (item.visible_at, item.run_id, item.runnable_key)))

    def expired(self, at: int) -> tuple[Attempt, ...]:
        """Claimed, but the lease has ended."""
        return tuple(item for item in self._claimable() if item.lease_until is not None and item.lease_until <= at)


def fold(entries: Iterable[tuple[str, Fact, int]]) -> Dispatch:
    """The queue after these entries: (run id, fact, instant), in order within each run."""
    runs: dict[str, RunState] = {}
    for run_id, fact, at in entries:
        runs[run_id] = evolve(runs.get(run_id) or RunState(run_id=run_id), fact, at)
    return Dispatch(
        tuple(_attempt(run, work) for run in runs.values() if not run.terminal for work in run.work.values())
    )


def _attempt(run: RunState, work: Work) -> Attempt:
    waiting = "retry_scheduled" if work.attempt else "available"
    return Attempt(
        run_id=run.run_id,
        runnable_key=work.key,
        status="claimed" if work.claim else waiting,
        paused=run.boundary is not None,
        blocked=work.blocked,
        attempt=work.attempt,
        visible_at=work.visible_at,
        claim_id=work.claim.claim_id if work.claim else None,
        owner_id=work.claim.owner_id if work.claim else None,
        lease_until=work.claim.lease_until if work.claim else None,
    )
