"""Laws about what callers were told: J3, J4, J5, J7, J9, P2, P6. They need the callers' own record of their calls."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Literal

import msgspec

from holdfast.invariants.problems import Problem
from holdfast.store import Entry


class Call(msgspec.Struct, frozen=True, kw_only=True):
    """One append as its caller saw it. `unknown`: the caller was never told how it ended."""

    thread: str
    bodies: tuple[str, ...]
    outcome: Literal["ok", "refused", "unknown"]
    rev: int | None = None
    expected_rev: int | None = None


class Reading(msgspec.Struct, frozen=True, kw_only=True):
    """What a caller once read of a thread, from its first entry on."""

    thread: str
    digests: tuple[bytes, ...]


def acknowledged_is_there_once(calls: Sequence[Call], threads: Mapping[str, Sequence[Entry]]) -> Iterator[Problem]:
    """J3, J5: an append that was acknowledged stands at its revision, and its unique bodies stand nowhere else."""
    for call in calls:
        if call.outcome != "ok" or call.rev is None:
            continue
        entries = threads[call.thread]
        first = call.rev - len(call.bodies)
        if tuple(entry.data for entry in entries[first : call.rev]) != call.bodies:
            yield Problem("J3", call.thread, f"the append acknowledged at {call.rev} is not there")
        counts = Counter(entry.data for entry in entries)
        if any(counts[body] != 1 for body in call.bodies):
            yield Problem("J5", call.thread, f"the append acknowledged at {call.rev} stands more than once")


def refused_is_nowhere(calls: Sequence[Call], threads: Mapping[str, Sequence[Entry]]) -> Iterator[Problem]:
    """J4: a refused append left nothing; one of unknown fate is there once or not at all."""
    for call in calls:
        counts = Counter(entry.data for entry in threads[call.thread])
        most = {"ok": 1, "refused": 0, "unknown": 1}[call.outcome]
        for body in call.bodies:
            if counts[body] > most:
                yield Problem("J4", call.thread, f"an append that was {call.outcome} stands {counts[body]} times")


def one_winner_per_revision(calls: Sequence[Call]) -> Iterator[Problem]:
    """J7: of all appends that expected one revision, at most one succeeded."""
    won = Counter(
        (call.thread, call.expected_rev) for call in calls if call.outcome == "ok" and call.expected_rev is not None
    )
    for (thread, expected), count in won.items():
        if count > 1:
            yield Problem("J7", thread, f"{count} appends that expected revision {expected} succeeded")


def readings_are_prefixes(readings: Sequence[Reading], threads: Mapping[str, Sequence[Entry]]) -> Iterator[Problem]:
    """J9: whatever anyone ever read of a thread is how it still begins."""
    for reading in readings:
        begins = tuple(entry.digest for entry in threads[reading.thread][: len(reading.digests)])
        if begins != reading.digests:
            yield Problem("J9", reading.thread, "someone read entries that are not there now, or not in this order")


def checkpoint_is_a_prefix(thread: str, rev: int, entries: Sequence[Entry]) -> Iterator[Problem]:
    """P2: a checkpoint covers no more than there is."""
    if rev > len(entries):
        yield Problem("P2", thread, f"the checkpoint covers revision {rev}, the thread ends at {len(entries)}")


def journals_agree(one: Sequence[Entry], other: Sequence[Entry], thread: str) -> Iterator[Problem]:
    """P6: the same calls leave the same lines on every database."""
    if [(entry.rev, entry.kind, entry.digest) for entry in one] != [
        (entry.rev, entry.kind, entry.digest) for entry in other
    ]:
        yield Problem("P6", thread, "two databases hold different lines after the same calls")
