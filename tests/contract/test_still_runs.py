"""Runs that stand still: a commit that moves nothing of a run's row but its revision and instant sends no more."""

from __future__ import annotations

import itertools

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


async def test_steps_and_events_leave_the_row_and_it_agrees_with_its_journal(hf: Holdfast) -> None:
    run = await hf.create_run(session_id="s", clog_id="chat", input=1)
    other = await hf.create_run(session_id="s", clog_id="chat", input=1)
    claims = await hf.claim_next(limit=2)
    before = {each.run_id: await hf.get_run(each.run_id) for each in (run, other)}

    for claim in claims:
        await hf.emit(claim, "note", {"a": 1})

    for each in (run, other):
        now, then = await hf.get_run(each.run_id), before[each.run_id]
        assert now is not None
        assert then is not None
        assert (now.status, now.rev, now.started_at) == (then.status, then.rev + 1, then.started_at)
    await assert_sound(hf)
