"""Workflows as JSON, and the types of what they are started with."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest

from holdfast import Holdfast, InvalidValue, RetryPolicy, Workflow
from holdfast.workflow import from_spec, to_spec
from tests.workflow.test_steps import ended, started


async def load(ctx: Any, input: Any) -> list[int]:
    return [1, 2, 3]


async def double(ctx: Any, item: int) -> int:
    return item * 2


async def undo(ctx: Any, result: Any) -> None:
    return None


async def report(ctx: Any, error: Any) -> None:
    return None


def rich() -> Workflow:
    flow = Workflow("rich", version="7")
    flow.step("load", retry=RetryPolicy(max_attempts=5), irreversible=True, on_error="help")(load)
    flow.map("double", over="load", limit=2, when=bool)(double)
    flow.wait("nap", seconds=3, after=["double"])
    flow.approval("ask", after=["nap"], expires=60, on_expiry="approve")
    flow.pause("hold", after=["ask"])
    flow.step("help")(report)
    flow.compensate("load")(undo)
    return flow


LISTED: dict[str, Any] = {"load": load, "double": double, "help": report}


@pytest.mark.clause("SB-21")
async def test_a_workflow_comes_back_from_json_as_the_same_definition(hf: Holdfast) -> None:
    spec = json.loads(json.dumps(to_spec(rich())))

    again = from_spec(spec, LISTED, conditions={"double": bool}, compensations={"load": undo})

    assert again.fingerprint == rich().fingerprint
    assert to_spec(again) == spec


def test_what_a_spec_leaves_out_is_what_a_declaration_leaves_out() -> None:
    flow = Workflow("w")
    flow.step("load")(load)

    assert from_spec({"name": "w", "nodes": [{"name": "load"}]}, LISTED).fingerprint == flow.fingerprint


@pytest.mark.clause("SB-21")
async def test_a_workflow_from_json_runs(hf: Holdfast) -> None:
    spec = {
        "name": "small",
        "nodes": [{"name": "load"}, {"name": "d", "kind": "map", "over": "load", "after": ["load"]}],
    }

    assert await ended(hf, from_spec(spec, {"load": load, "d": double})) == {"d": [2, 4, 6]}


@pytest.mark.clause("SB-21")
@pytest.mark.parametrize(
    ("spec", "why"),
    [
        ({"name": "w", "nodes": [{"name": "os.system"}]}, "no action is listed for step 'os.system'"),
        ({"name": "w", "nodes": [{"name": "load", "conditional": True}]}, "no condition is listed"),
        ({"name": "w", "nodes": [{"name": "load", "has_undo": True}]}, "no compensation is listed"),
        ({"name": "w", "nodes": [{"name": "load", "kind": "shell"}]}, "no spec of a workflow"),
        ({"name": "w", "nodes": [], "code": "import os"}, "no spec of a workflow"),
        ({"name": "w", "nodes": [{"name": "", "kind": "wait"}]}, "step must be"),
        ({"name": "w", "nodes": [{"name": "m[1]", "kind": "wait"}]}, "step must be"),
        ({"name": "w", "nodes": [{"name": "a\0", "kind": "wait"}]}, "step must be"),
        ({"nodes": []}, "no spec of a workflow"),
        ([], "no spec of a workflow"),
    ],
)
def test_a_spec_chooses_from_a_list_and_loads_nothing(spec: Any, why: str) -> None:
    with pytest.raises(InvalidValue, match=why):
        from_spec(spec, LISTED)


class Order(msgspec.Struct):
    item: str
    count: int = 1


def typed() -> Workflow:
    flow = Workflow("typed", input=Order)

    @flow.step()
    async def read(ctx: Any, input: Order) -> list[Any]:
        return [type(input).__name__, input.item, input.count]

    return flow


@pytest.mark.clause("SB-11")
async def test_steps_get_an_input_of_the_declared_type_with_its_defaults(hf: Holdfast) -> None:
    assert await ended(hf, typed(), {"item": "cup"}) == {"read": ["Order", "cup", 1]}


@pytest.mark.clause("SB-11")
async def test_an_input_of_another_type_is_refused_before_a_run_exists(hf: Holdfast) -> None:
    with pytest.raises(InvalidValue, match="item") as caught:
        await started(hf, typed(), {"count": 1})

    assert caught.value.code == "invalid_input"
    assert (await hf.list_runs()).items == []


@pytest.mark.clause("SB-11")
async def test_a_run_that_was_created_with_another_type_fails_at_once(hf: Holdfast) -> None:
    hf.register(typed())
    run = await hf.create_run(session_id="s", clog_id="typed", input={"count": "many"})
    await hf.drain()

    info = await hf.get_run(run.run_id)
    assert info is not None
    assert (info.status, info.error_kind, info.attempt) == ("failed", "invalid_input", 0)
