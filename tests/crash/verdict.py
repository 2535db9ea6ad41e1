"""Diaries against the journal: was everything that callers were told true, once, and nobody's work anybody else's?"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import NamedTuple

from holdfast import Holdfast
from holdfast.invariants.histories import (
    acknowledged_is_there_once,
    one_winner_per_revision,
    readings_are_prefixes,
    refused_is_nowhere,
)
from holdfast.invariants.threads import revisions_are_contiguous
from holdfast.moments import to_us
from holdfast.store import Entry
from tests.crash.traffic import THREADS, Diary, Held

Threads = dict[str, list[Entry]]


async def judge(holdfast: Holdfast, diaries: Sequence[Diary]) -> list[str]:
    """Every way in which the diaries and the database disagree, or the database with itself."""
    names = {told.thread for diary in diaries for told in diary.told} | {
        f"run:{held.run_id}" for diary in diaries for held in diary.held
    }
    threads = {name: await holdfast.journal.store.read(name) for name in sorted(names | set(THREADS))}
    calls = [call for diary in diaries for call in diary.calls]
    readings = [reading for diary in diaries for reading in diary.readings]
    held = [each for diary in diaries for each in diary.held]
    problems = [
        *(await holdfast.fsck()).problems,
        *(problem for name, entries in threads.items() for problem in revisions_are_contiguous(entries, name)),
        *acknowledged_is_there_once(calls, threads),
        *refused_is_nowhere(calls, threads),
        *one_winner_per_revision(calls),
        *readings_are_prefixes(readings, threads),
        *told_is_true(diaries, threads),
        *claims_are_one_holders(held, threads),
    ]
    return [str(problem) for problem in problems]


def told_is_true(diaries: Sequence[Diary], threads: Threads) -> Iterator[str]:
    """What carries a mark stands where its caller was told, and nowhere else."""
    places: dict[str, list[tuple[str, int]]] = {}
    for name, entries in threads.items():
        for entry in entries:
            for text in entry.data.split('"'):
                places.setdefault(text, []).append((name, entry.rev))
    for diary in diaries:
        for told in diary.told:
            found = places.get(told.mark, [])
            if found != [(told.thread, told.rev)]:
                yield f"{diary.name} was told {told}, the journal has it at {found}"


class _Span(NamedTuple):
    """From when until when a claim held, by the database's clock."""

    claimed_at: int
    ended_at: int
    claim_id: str


def claims_are_one_holders(held: Sequence[Held], threads: Threads) -> Iterator[str]:
    """Every claim went to one caller, stands in the journal once, and held while no other did."""
    for claim_id, count in Counter(each.claim_id for each in held).items():
        if count > 1:
            yield f"claim {claim_id} was given to {count} callers"
    for each in held:
        if each.end == "accepted too late":
            yield f"claim {each.claim_id} was listened to after its lease"
    by_run: dict[str, list[Held]] = {}
    for each in held:
        by_run.setdefault(each.run_id, []).append(each)
    for run_id, claims in by_run.items():
        entries = threads[f"run:{run_id}"]
        spans = sorted(_span(each, entries) for each in claims)
        for before, after in pairwise(spans):
            if after.claimed_at < before.ended_at:
                yield f"run {run_id} was held by {before.claim_id} and {after.claim_id} at once"


def _span(held: Held, entries: Sequence[Entry]) -> _Span:
    of_claim = [entry for entry in entries if held.claim_id in entry.data]
    claimed = [entry for entry in of_claim if entry.kind == "attempt_claimed"]
    assert len(claimed) == 1, f"claim {held.claim_id} stands in the journal {len(claimed)} times"
    ends = [entry.at for entry in of_claim if entry.kind in ("run_terminal", "tick_settled", "tick_abandoned")]
    return _Span(claimed[0].at, min([*ends, to_us(held.lease_until)]), held.claim_id)
