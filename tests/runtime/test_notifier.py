"""The notifier: told after the commit that work is due, never instead of it."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest

from holdfast import Continue, Done, Holdfast, Ok, Retry, Wait
from tests.contract.builders import anomalies, assert_sound, create, entry, idle, kinds, look, quiet
from tests.runtime.clogs import answering, inputs, until


class Told:
    """A notifier that remembers, and does what it is told to do."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, list[str]]] = []
        self.answer: Any = None

    async def __call__(self, queue: str, run_ids: Sequence[str]) -> Any:
        self.calls.append((queue, list(run_ids)))
        if isinstance(self.answer, BaseException):
            raise self.answer
        return await self.answer(queue, run_ids) if callable(self.answer) else self.answer

    def runs(self) -> list[str]:
        return [run_id for _, run_ids in self.calls for run_id in run_ids]


@pytest.fixture
def told() -> Told:
    return Told()


@pytest.fixture
async def hf(database_url: str, schema: str, clock: Any, told: Told) -> Any:
    async with Holdfast(database_url, clock=clock, schema=schema, notifier=told) as holdfast:
        yield holdfast
        await quiet(holdfast)
        await assert_sound(holdfast)


async def wakeups(hf: Holdfast, run_id: str) -> int:
    return (await kinds(hf, run_id)).count("live_wakeup_emitted")


@pytest.mark.clause("S-16", "S-17", "S-18")
async def test_a_notifier_is_told_once_the_work_is_on_disk(hf: Holdfast, told: Told) -> None:
    statuses: list[str] = []

    async def looks(queue: str, run_ids: Sequence[str]) -> None:
        statuses.extend([(await look(hf, run_id)).status for run_id in run_ids])

    told.answer = looks
    run = await create(hf, queue="fast")
    await until(lambda: wakeups(hf, run.run_id))

    assert told.calls == [("fast", [run.run_id])]
    assert statuses == ["pending"]
    assert await kinds(hf, run.run_id) == ["run_created", "live_wakeup_emitted"]


@pytest.mark.clause("S-19")
@pytest.mark.parametrize("answer", [False, ValueError("away"), ConnectionError("away")])
async def test_a_notifier_that_fails_costs_nothing_but_the_hint(hf: Holdfast, told: Told, answer: Any) -> None:
    told.answer = answer
    seen = answering(hf)
    run = await create(hf)
    await until(lambda: _some(told.calls))

    assert (await look(hf, run.run_id)).status == "pending"
    assert (await hf.advance()).advanced == 1
    assert inputs(seen) == ["hello"]
    assert await wakeups(hf, run.run_id) == 0


async def _some(calls: list[Any]) -> bool:
    return bool(calls)


@pytest.mark.clause("S-19")
async def test_a_notifier_that_never_answers_holds_nobody_up(hf: Holdfast, told: Told) -> None:
    hangs = asyncio.Event()

    async def waits(queue: str, run_ids: Sequence[str]) -> None:
        await hangs.wait()

    told.answer = waits
    answering(hf, Done())
    run = await create(hf)

    assert (await hf.advance()).advanced == 1
    assert (await look(hf, run.run_id)).status == "done"
    hangs.set()


@pytest.mark.clause("S-17")
async def test_everything_that_makes_work_due_is_told(hf: Holdfast, told: Told) -> None:
    answering(hf, Continue(), Retry("now", after=0), Ok())
    run = await idle(hf)
    assert told.calls == []

    await hf.signal(run.run_id, 1)
    for count in (1, 2, 3):
        # Noted too, not only told: a pass goes around a run that somebody is just writing to.
        await until(lambda count=count: _are_noted(hf, run.run_id, count))  # type: ignore[misc]
        assert (await hf.advance()).advanced == 1

    assert told.runs() == [run.run_id] * 3


async def _are_noted(hf: Holdfast, run_id: str, count: int) -> bool:
    return await wakeups(hf, run_id) == count


async def _are(told: Told, count: int) -> bool:
    return len(told.calls) == count


@pytest.mark.clause("S-17")
async def test_what_is_due_later_is_not_told_now(hf: Holdfast, told: Told) -> None:
    answering(hf, Wait(seconds=60), Retry("later"))
    for _ in range(2):
        await create(hf)
    await until(lambda: _are(told, 2))
    await hf.advance()
    await hf.journal.close()

    assert len(told.calls) == 2


@pytest.mark.clause("S-17")
async def test_many_runs_of_one_commit_are_told_together(hf: Holdfast, told: Told) -> None:
    requests = [{"session_id": "s1", "clog_id": "chat", "input": n, "queue": "fast"} for n in range(3)]
    runs = await hf.create_runs(requests)
    await until(lambda: _some(told.calls))

    assert told.calls == [("fast", [run.run_id for run in runs])]


@pytest.mark.clause("S-20", "S-63")
async def test_a_wakeup_without_work_is_an_anomaly_and_makes_none(hf: Holdfast) -> None:
    run = await idle(hf)

    await hf.journal.append(f"run:{run.run_id}", [entry("live_wakeup_emitted")])

    assert await anomalies(hf, run.run_id) == [("unknown_runnable_intent", "live_wakeup_emitted")]
    assert (await look(hf, run.run_id)).status == "idle"
    assert (await hf.advance()).advanced == 0
