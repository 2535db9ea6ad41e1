"""Whatever goes wrong on the way to the database, each operation happens exactly once and its caller learns how."""

from __future__ import annotations

import asyncio

import pytest

from holdfast import Holdfast, SignalReceipt
from tests.conftest import IN_PROCESS, FakeClock
from tests.contract.builders import assert_sound, create, idle, kinds
from tests.contract.faulty import WRITE_FAULTS, Fault, FaultyDatabase, with_faults
from tests.contract.operations import OPERATIONS, Scene

pytestmark = pytest.mark.parametrize("configuration", IN_PROCESS)


def in_peace() -> None:
    """Nothing goes wrong."""


@pytest.mark.clause("S-16", "S-38", "O-40")
@pytest.mark.parametrize("name", OPERATIONS)
async def test_an_operation_of_unknown_fate_happens_exactly_once(
    hf: Holdfast, clock: FakeClock, faults: FaultyDatabase, name: str
) -> None:
    operation = OPERATIONS[name]
    wanted = await operation.tell(Scene(hf, clock, "peace", in_peace))

    for fault in operation.faults:

        def arm(fault: Fault = fault) -> None:
            faults.strike(operation.method, fault, nth=operation.nth)

        told = await operation.tell(Scene(hf, clock, fault, arm))

        assert (fault, told) == (fault, wanted)
        assert faults.is_quiet


@pytest.mark.parametrize("method", ["read_slices", "fetch", "fetch_by_key", "fetch_snapshot", "landed"])
async def test_a_read_that_fails_costs_time_only(
    hf: Holdfast, clock: FakeClock, faults: FaultyDatabase, method: str
) -> None:
    for number, (name, operation) in enumerate(OPERATIONS.items()):
        wanted = await operation.tell(Scene(hf, clock, f"peace-{number}", in_peace))

        def arm(strike: str = operation.method, nth: int = operation.nth) -> None:
            if method == "landed":
                faults.strike(strike, "unanswered", nth=nth)
            faults.strike(method, "busy", nth=1)
            faults.strike(method, "busy", nth=2)

        told = await operation.tell(Scene(hf, clock, f"busy-{number}", arm))

        assert (name, told) == (name, wanted)
        faults.forget()
    assert faults.struck[method] > 0


@pytest.mark.clause("S-19", "S-17")
async def test_a_hint_that_fails_undoes_nothing(hf: Holdfast, faults: FaultyDatabase) -> None:
    for fault in WRITE_FAULTS[:3]:
        faults.strike("send_hint", fault)
        # A commit that comes alone takes its news along.
        runs = await hf.create_runs([{"session_id": "s", "clog_id": "chat", "input": 1, "queue": fault}] * 2)

        claimed = await hf.claim_next(fault, limit=2)
        assert sorted(claim.run_id for claim in claimed) == sorted(run.run_id for run in runs)
    await create(hf)


@pytest.mark.clause("S-11")
async def test_a_database_that_is_busy_at_first_is_opened_all_the_same(
    configuration: str, database_url: str, schema: str, clock: FakeClock
) -> None:
    holdfast = Holdfast(database_url, clock=clock, schema=schema)
    faulty = with_faults(holdfast)
    for method in ("open", "migrate"):
        faulty.strike(method, "busy", nth=1)
        faulty.strike(method, "busy", nth=2)
    faulty.strike("migrate", "unanswered", nth=3)

    async with holdfast:
        assert (await create(holdfast)).status == "pending"
        await assert_sound(holdfast)

    assert faulty.is_quiet


@pytest.mark.parametrize("fault", WRITE_FAULTS)
async def test_callers_who_share_a_lost_commit_each_get_their_own_answer(
    hf: Holdfast, faults: FaultyDatabase, fault: Fault
) -> None:
    runs = [await idle(hf) for _ in range(8)]
    faults.strike("write", fault)

    receipts = await asyncio.gather(*(hf.signal(run.run_id, i) for i, run in enumerate(runs) for _ in range(3)))

    assert sorted(receipt.rev or 0 for receipt in receipts) == [2] * 8 + [3] * 8 + [4] * 8
    for run in runs:
        assert await kinds(hf, run.run_id) == ["run_created", *["signal_received"] * 3]


@pytest.mark.clause("C-26")
@pytest.mark.parametrize("fault", WRITE_FAULTS)
async def test_equal_keys_in_one_lost_commit_are_still_one(hf: Holdfast, faults: FaultyDatabase, fault: Fault) -> None:
    run = await idle(hf)
    faults.strike("write", fault)

    receipts = await asyncio.gather(
        hf.signal(run.run_id, "a", key="a"),
        hf.signal(run.run_id, "b", key="b"),
        hf.signal(run.run_id, "a", key="a"),
        hf.signal(run.run_id, "b", key="b"),
    )

    first, second = SignalReceipt(True, None, 2), SignalReceipt(True, None, 3)
    assert list(receipts) == [first, second, first, second]
    assert await kinds(hf, run.run_id) == ["run_created", "signal_received", "signal_received"]


@pytest.mark.clause("S-38")
async def test_a_caller_who_loses_again_and_again_takes_the_lock_and_still_writes_once(
    hf: Holdfast, faults: FaultyDatabase
) -> None:
    for number, last in enumerate(WRITE_FAULTS):
        run = await idle(hf)
        for nth in (1, 2, 3):
            faults.strike("write", "lost", nth=nth)
        faults.strike("write_locked", last)
        faults.strike("write_locked", "lost", nth=2)

        receipt = await hf.signal(run.run_id, number)

        assert receipt == SignalReceipt(True, None, 2)
        assert await kinds(hf, run.run_id) == ["run_created", "signal_received"]
