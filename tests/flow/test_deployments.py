"""Rolling deployments: a run goes to workers that know its version, and waits untouched while there are none."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

from holdfast import FlowContext, Holdfast, InvalidValue
from tests.conftest import FakeClock
from tests.contract.builders import assert_sound, kinds, look, quiet


@pytest.fixture(params=["file", "postgres"])
def configuration(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
async def other(hf: Holdfast, database_url: str, schema: str, clock: FakeClock) -> AsyncIterator[Holdfast]:
    """Another process on the same database."""
    async with Holdfast(database_url, clock=clock, schema=schema) as holdfast:
        yield holdfast


def deploy(hf: Holdfast, version: int | str) -> Any:
    @hf.flow("bill", version=version)
    async def bill(ctx: FlowContext, input: Any) -> str:
        await ctx.step(f"step of {version}", lambda: None)
        await ctx.sleep(60)
        await ctx.receive("go")
        return f"version {version}"

    return bill


@pytest.mark.clause("SB-12")
async def test_each_process_advances_only_what_it_knows(hf: Holdfast, other: Holdfast, clock: FakeClock) -> None:
    old = await hf.start(deploy(hf, 1), session_id="s")
    await hf.advance()
    new = await other.start(deploy(other, 2), session_id="s")
    await other.advance()
    clock.advance(60)
    for run in (old, new):
        await hf.signal(run.run_id, name="go")
    before = await kinds(hf, old.run_id)

    for _ in range(3):
        assert [result.run_id for result in (await other.advance()).results] in ([new.run_id], [])
    assert await other.execute_next() is None

    assert await kinds(hf, old.run_id) == before
    assert await other.result(new.run_id) == "version 2"
    await hf.drain()
    assert await hf.result(old.run_id) == "version 1"


async def test_a_new_run_begins_with_the_version_of_whoever_takes_it_first(hf: Holdfast, other: Holdfast) -> None:
    deploy(hf, 1)
    run = await other.start(deploy(other, 2), session_id="s")
    await hf.advance()
    await hf.signal(run.run_id, name="go")

    assert (await other.drain(), (await look(hf, run.run_id)).status) == (0, "waiting")
    await hf.drain()

    assert await hf.result(run.run_id) == "version 1"


async def test_a_run_whose_worker_died_is_taken_over_by_its_own_version_only(
    hf: Holdfast, other: Holdfast, clock: FakeClock
) -> None:
    run = await hf.start(deploy(hf, 1), session_id="s")
    await hf.advance()
    clock.advance(60)
    await hf.signal(run.run_id, name="go")
    (lost,) = await hf.take(None, clogs=hf._registry.names)
    clock.advance(3_600)
    deploy(other, 2)

    assert await other.drain() == 0
    assert (await look(hf, run.run_id)).deliveries == 1
    await hf.drain()

    assert await hf.result(run.run_id) == "version 1"
    assert lost.claim.run_id == run.run_id


async def test_explain_says_that_nobody_here_knows_the_version(hf: Holdfast, other: Holdfast, clock: FakeClock) -> None:
    run = await hf.start(deploy(hf, "2026-11"), session_id="s")
    await hf.advance()
    clock.advance(60)
    deploy(other, "2026-12")

    here, there = await hf.explain(run.run_id), await other.explain(run.run_id)

    assert here is not None
    assert there is not None
    assert (here.reason, there.reason) == ("attempt_visible", "no_handler_here")
    assert "no worker here knows version 2026-11 of flow 'bill'" in there.summary
    deploy(other, "2026-11")
    after = await other.explain(run.run_id)
    assert after is not None
    assert after.reason == "attempt_visible"


async def test_workers_of_two_versions_share_a_queue(database_url: str, schema: str) -> None:
    async with Holdfast(database_url, schema=schema) as first, Holdfast(database_url, schema=schema) as second:

        def quick(hf: Holdfast, version: int) -> Any:
            @hf.flow("quick", version=version)
            async def flow(ctx: FlowContext, input: Any) -> int:
                await ctx.step("note", lambda: None)
                await ctx.sleep(0.05)
                return version

            return flow

        flows = [quick(first, 1), quick(second, 2)]
        runs = [await first.start(flows[0], session_id="s") for _ in range(4)]
        await first.advance()
        workers = [first.worker(), second.worker()]
        running = [asyncio.create_task(worker.run()) for worker in workers]

        ends = [await second.result(run.run_id, timeout=30) for run in runs]
        for worker in workers:
            worker.stop()
        await asyncio.gather(*running)

        assert ends == [1] * 4
        claims = [(await kinds(first, run.run_id)).count("attempt_claimed") for run in runs]
        assert claims == [2] * 4
        await assert_sound(first)


async def test_a_copy_needs_the_version_of_its_original(hf: Holdfast, other: Holdfast) -> None:
    run = await hf.start(deploy(hf, 1), session_id="s")
    await hf.advance()
    deploy(other, 2)

    fork = await other.fork(run.run_id)
    await hf.signal(fork.run_id, name="go")
    assert await other.drain() == 0
    await hf.rebuild()
    assert await other.drain() == 0
    await quiet(hf)
    await hf.drain()

    assert await hf.result(fork.run_id) == "version 1"


async def test_a_version_is_a_name_of_its_own(hf: Holdfast) -> None:
    deploy(hf, 1)

    with pytest.raises(ValueError, match="has a version 1 already"):
        deploy(hf, "1")
    with pytest.raises(InvalidValue):
        deploy(hf, "")
