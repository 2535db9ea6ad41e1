"""Laws of every thread, a run's or not: J1, J2, J6, J8, J10, J11."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import groupby, pairwise

from holdfast.invariants.problems import Problem
from holdfast.protocol.values import digest
from holdfast.store import Entry


def revisions_are_contiguous(entries: Sequence[Entry], thread: str) -> Iterator[Problem]:
    """J1: the revisions of a thread are 1, 2, 3 … without gap or repeat."""
    for expected, entry in enumerate(entries, start=1):
        if entry.rev != expected:
            yield Problem("J1", thread, f"revision {expected} is missing, {entry.rev} stands in its place")
            return


def digests_match(entries: Sequence[Entry], thread: str) -> Iterator[Problem]:
    """J2, J10: every stored line is the line that was written."""
    for entry in entries:
        if digest(entry.kind, entry.data) != entry.digest:
            yield Problem("J10", thread, f"entry {entry.rev} ({entry.kind}) was changed after it was written")


def instants_do_not_decrease(entries: Sequence[Entry], thread: str) -> Iterator[Problem]:
    """J6: time never runs backwards along a thread."""
    for before, after in pairwise(entries):
        if after.at < before.at:
            yield Problem("J6", thread, f"entry {after.rev} is earlier than entry {before.rev}")


def positions_follow_revisions(entries: Sequence[Entry], thread: str) -> Iterator[Problem]:
    """J8: positions grow along a thread, or a reader ordered by position would see it torn."""
    for before, after in pairwise(entries):
        if after.position <= before.position:
            yield Problem("J8", thread, f"entry {after.rev} stands before entry {before.rev} in the order of positions")


def commits_are_whole(entries: Sequence[Entry], thread: str) -> Iterator[Problem]:
    """J8: what one commit wrote to a thread stands together, at one instant."""
    seen: set[int] = set()
    for commit_id, group in groupby(entries, key=lambda entry: entry.commit_id):
        lines = list(group)
        if commit_id in seen:
            yield Problem("J8", thread, f"entry {lines[0].rev} is torn from the rest of its commit")
        if len({entry.at for entry in lines}) > 1:
            yield Problem("J8", thread, f"the commit of entry {lines[0].rev} has more than one instant")
        seen.add(commit_id)


def head_is_the_last(entries: Sequence[Entry], thread: str, head: int) -> Iterator[Problem]:
    """J11: the recorded head is the last entry."""
    last = entries[-1].rev if entries else 0
    if last != head:
        yield Problem("J11", thread, f"the head says {head}, the last entry is {last}")


THREAD_LAWS: tuple[Callable[[Sequence[Entry], str], Iterator[Problem]], ...] = (
    revisions_are_contiguous,
    digests_match,
    instants_do_not_decrease,
    positions_follow_revisions,
    commits_are_whole,
)


def check_thread(thread: str, head: int, entries: Sequence[Entry]) -> list[Problem]:
    """Every law of a thread that is no run's."""
    problems = [problem for law in THREAD_LAWS for problem in law(entries, thread)]
    return problems + list(head_is_the_last(entries, thread, head))
