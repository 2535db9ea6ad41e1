"""Runs that stand still: a commit that moves nothing of a run's row but its revision and instant sends no more."""

from __future__ import annotations

import asyncio
import itertools
from datetime import timedelta

import msgspec
import pytest

from holdfast import Holdfast
from holdfast.journal import rows
from holdfast.protocol.evolve import evolve
from holdfast.protocol.state import RunState
from holdfast.store.tables import RUN_MOVING
from holdfast.store.types import Row
from tests.conftest import FakeClock
from tests.contract import scene
from tests.contract.builders import assert_sound


def resting(row: Row) -> Row:
    """A run's row without what every commit moves."""
    return tuple(value for name, value in zip(RUN_MOVING, row, strict=True) if name not in ("rev", "at"))


@pytest.mark.parametrize("configuration", ["memory"])
async def test_a_run_stands_still_exactly_where_the_rest_of_its_row_does(hf: Holdfast, clock: FakeClock) -> None:
    built = await scene.build(hf, clock)
    found = set()

    for name, run_id in built.runs.items():
        states = [RunState(run_id=run_id)]
        for entry, fact in await hf.journal.facts(run_id):
            states.append(evolve(states[-1], fact, entry.at))
        for before, after in itertools.pairwise(states[1:]):
            same = resting(rows.moving_row(before)) == resting(rows.moving_row(after))
            assert rows.is_still(before, after) == same, f"{name} at {after.rev}"
            found.add(same)

    assert found == {True, False}


@pytest.mark.parametrize("together", [True, False])
async def test_events_move_the_revision_and_the_instant_and_nothing_else(
    hf: Holdfast, clock: FakeClock, together: bool
) -> None:
    """Several runs in one commit go another way than one alone."""
    for _ in range(3):
        await hf.create_run(session_id="s", clog_id="chat", input=1)
    claims = await hf.claim_next(limit=3)
    chosen = claims if together else claims[:1]
    before = [await hf.get_run(claim.run_id) for claim in chosen]
    clock.advance(1)

    await asyncio.gather(*(hf.emit(claim, "note", {"a": 1}) for claim in chosen))

    for then in before:
        assert then is not None
        now = await hf.get_run(then.run_id)
        moved = {"rev": then.rev + 1, "updated_at": then.updated_at + timedelta(seconds=1)}
        assert now == msgspec.structs.replace(then, **moved)
    await assert_sound(hf)
