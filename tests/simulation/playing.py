"""One crash at a chosen commit of a story, on an otherwise quiet schedule."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from itertools import cycle
from typing import Any

import pytest

from holdfast import Holdfast
from holdfast.testing.simulation import _in_a_loop_of_its_own, _Play

Part = Callable[[Holdfast], Awaitable[None]]


def blocks(quick: int, all_of_them: int) -> list[Any]:
    """Numbers of blocks of seeds: the first ones belong to every test run, the rest to the longer suites."""
    later = [pytest.param(block, marks=pytest.mark.slow) for block in range(quick, all_of_them)]
    return [*range(quick), *later]


def played(story: Part, is_right: Part, crash_at: int = 0, *, before: bool = False) -> _Play:
    """The story with one crash, right before or right after this commit; none at 0."""
    play = _Play(story, is_right, seed=1, workers=2, faults=(), commits=0)
    play._crash_at = {crash_at: before}
    _in_a_loop_of_its_own(play)
    return play


BEFORE_OR_AFTER = pytest.mark.parametrize(
    "sides",
    [(True, False), *(pytest.param(each, marks=pytest.mark.slow) for each in ((True,), (False,)))],
    ids=["by turns", "before", "after"],
)
"""Right before each commit and right after it; every test run has one of the two, by turns."""


def dies_at_every_commit(story: Part, is_right: Part, sides: Sequence[bool]) -> int:
    """Play the story once for each of its commits, with a crash there; answer how many commits it has."""
    commits = played(story, is_right).commits
    for place, before in zip(range(1, commits + 1), cycle(sides), strict=False):
        assert played(story, is_right, place, before=before).crashes == 1
    return commits
