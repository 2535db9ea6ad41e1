"""Irreversible steps of a workflow: a replay that would do them again needs a word."""

from __future__ import annotations

from typing import Any

import pytest

from holdfast import Conflict, Holdfast, Workflow


def shop(charges: list[int], *, wanted: bool = True) -> Workflow:
    flow = Workflow("shop")

    @flow.step()
    async def reserve(ctx: Any, input: int) -> int:
        return input

    @flow.step(after=["reserve"], irreversible=True, when=lambda results: wanted)
    async def charge(ctx: Any, reserve: int) -> int:
        charges.append(reserve)
        return reserve

    @flow.step(after=["charge"])
    async def ship(ctx: Any, charge: int) -> str:
        return "shipped"

    return flow


async def lived(hf: Holdfast, flow: Workflow) -> str:
    hf.register(flow)
    run = await hf.start(flow, 5, session_id="s")
    await hf.drain()
    assert await hf.result(run.run_id) == {"ship": "shipped"}
    return run.run_id


@pytest.mark.clause("SB-13")
async def test_a_replay_of_a_workflow_needs_explicit_permission(hf: Holdfast) -> None:
    charges: list[int] = []
    run_id = await lived(hf, shop(charges))

    for almost in (False, 1, "yes"):
        with pytest.raises(Conflict, match="'charge'") as caught:
            await hf.replay(run_id, allow_irreversible=almost)  # type: ignore[arg-type]
        assert caught.value.code == "irreversible"
    again = await hf.replay(run_id, allow_irreversible=True)
    await hf.drain()

    assert await hf.result(again.run_id) == {"ship": "shipped"}
    assert charges == [5, 5]


@pytest.mark.clause("SB-13")
async def test_a_step_that_was_skipped_stands_in_nobodys_way(hf: Holdfast) -> None:
    charges: list[int] = []
    run_id = await lived(hf, shop(charges, wanted=False))

    assert (await hf.replay(run_id)).status == "pending"
    assert charges == []


@pytest.mark.clause("SB-13")
async def test_a_fork_may_go_on_behind_the_result_and_not_before_it(hf: Holdfast) -> None:
    charges: list[int] = []
    run_id = await lived(hf, shop(charges))
    claims = {
        entry.data.get("runnable_key"): entry.rev
        for entry in await hf.journal.read(f"run:{run_id}")
        if entry.kind == "attempt_claimed"
    }

    for rev in (claims["charge"] - 1, claims["charge"]):
        with pytest.raises(Conflict, match="'charge'"):
            await hf.fork(run_id, at_rev=rev)
    fork = await hf.fork(run_id, at_rev=claims["ship"] - 1)
    await hf.drain()

    assert await hf.result(fork.run_id, timeout=10) == {"ship": "shipped"}
    assert charges == [5]
