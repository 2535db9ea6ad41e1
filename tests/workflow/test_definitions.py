"""Definitions: refused at registration with every culprit named, remembered by their runs, never drifted from."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from holdfast import Conflict, Holdfast, InvalidValue, Workflow
from holdfast.protocol.graphs import Node
from holdfast.workflow.definition import Code
from tests.conftest import FakeClock
from tests.workflow.test_steps import diamond, started


async def nothing(ctx: Any, **given: Any) -> None:
    return None


def declared(*steps: tuple[str, list[str]], **options: Any) -> Workflow:
    flow = Workflow("w", **options)
    for name, after in steps:
        flow.step(name, after=after)(nothing)
    return flow


def unknown_route(flow: Workflow) -> None:
    flow.step("a", on_error="help")(nothing)


def route_with_parents(flow: Workflow) -> None:
    flow.step("a", on_error="b")(nothing)
    flow.step("b", after=["a"])(nothing)


def undo_of_nothing(flow: Workflow) -> None:
    flow.step("a")(nothing)
    flow.compensate("b")(nothing)


def asks_for_a_stranger(flow: Workflow) -> None:
    flow.step("a")(nothing)

    @flow.step(after=["a"])
    async def b(ctx: Any, a: Any, c: Any) -> None:
        return None


def route_into_a_parent(flow: Workflow) -> None:
    flow.step("a")(nothing)
    flow.step("b", after=["a"], on_error="a")(nothing)


def map_over_nothing(flow: Workflow) -> None:
    flow.map("m", over="gone")(nothing)


def map_over_a_stranger(flow: Workflow) -> None:
    flow._add_node(Node(name="a", kind="wait"), Code())
    flow._add_node(Node(name="m", kind="map", over="a"), Code(function=nothing))


def three_in_a_ring(flow: Workflow) -> None:
    for name, before in (("a", "c"), ("b", "a"), ("c", "b")):
        flow.step(name, after=[before])(nothing)


@pytest.mark.clause("SB-11")
@pytest.mark.parametrize(
    ("declare", "names"),
    [
        (lambda flow: None, ["no steps"]),
        (lambda flow: flow.step("a", after=["b"])(nothing), ["'a'", "'b'"]),
        (lambda flow: [flow.step("a")(nothing), flow.step("a")(nothing)], ["'a' is declared 2 times"]),
        (three_in_a_ring, ["wait for each other", "a → b → c → a"]),
        (lambda flow: flow.step("a", after=["a"])(nothing), ["a → a"]),
        (lambda flow: flow.step("input")(nothing), ["'input'"]),
        (lambda flow: flow.step("undo:a")(nothing), ["'undo:a'"]),
        (unknown_route, ["'a'", "'help'"]),
        (route_with_parents, ["'b'", "error route"]),
        (route_into_a_parent, ["wait for each other"]),
        (undo_of_nothing, ["'b' has a compensation"]),
        (asks_for_a_stranger, ["'b' asks for 'c'"]),
        (map_over_nothing, ["'m'", "'gone'"]),
        (map_over_a_stranger, ["map 'm' goes over 'a', which is none of its parents"]),
    ],
)
async def test_a_graph_that_cannot_be_run_is_refused_and_the_culprits_are_named(
    hf: Holdfast, declare: Callable[[Workflow], Any], names: list[str]
) -> None:
    flow = Workflow("broken")
    declare(flow)

    with pytest.raises(ValueError, match="workflow broken cannot be run") as caught:
        hf.register(flow)

    rotated = str(caught.value).replace("b → c → a → b", "a → b → c → a").replace("c → a → b → c", "a → b → c → a")
    assert [name for name in names if name not in rotated] == []
    assert "broken" not in str(hf._registry.names)


def test_all_that_is_wrong_is_said_at_once() -> None:
    flow = declared(("a", ["x"]), ("b", ["y"]))

    with pytest.raises(ValueError, match=r"'x'.*'y'"):
        _ = flow.graph


@pytest.mark.parametrize("name", ["", "a b", "a[0]", "ä", 7])
def test_a_name_that_is_none_is_refused_where_it_is_given(name: Any) -> None:
    with pytest.raises(InvalidValue):
        Workflow("w").step(name, after=[])(nothing) if name else Workflow("w").wait(name, seconds=1)
    if name != "a[0]":
        with pytest.raises(InvalidValue):
            Workflow(name)


@pytest.mark.parametrize("seconds", [-1, float("nan"), float("inf")])
def test_a_wait_that_cannot_be_kept_is_refused(seconds: float) -> None:
    with pytest.raises((InvalidValue, ValueError)):
        Workflow("w").wait("nap", seconds=seconds)


def test_two_definitions_are_the_same_exactly_if_steps_and_version_are() -> None:
    same = [declared(("a", []), ("b", ["a"])).fingerprint for _ in range(2)]
    others = [
        declared(("a", []), ("b", [])).fingerprint,
        declared(("a", []), ("c", ["a"])).fingerprint,
        declared(("a", []), ("b", ["a"]), version="2").fingerprint,
        declared(("b", []), ("a", ["b"])).fingerprint,
    ]

    assert same[0] == same[1]
    assert len({same[0], *others}) == 5


@pytest.mark.clause("SB-12")
async def test_a_run_remembers_its_definition(hf: Holdfast) -> None:
    flow = diamond()
    run = await started(hf, flow, 1)
    await hf.drain()

    (entry,) = [each for each in await hf.journal.read(f"run:{run.run_id}") if each.kind == "workflow_started"]
    assert (entry.data["version"], entry.data["fingerprint"]) == ("1", flow.fingerprint)
    assert [node["name"] for node in entry.data["graph"]["nodes"]] == ["top", "left", "right", "bottom"]


def changed(version: str = "1") -> Workflow:
    """The same name, one more step."""
    flow = Workflow("diamond", version=version)

    @flow.step()
    async def top(ctx: Any, input: int) -> str:
        return "changed"

    @flow.step(after=["top"])
    async def more(ctx: Any, top: str) -> str:
        return top

    return flow


@pytest.mark.clause("SB-12")
async def test_a_changed_definition_fails_closed(hf: Holdfast, clock: FakeClock) -> None:
    hf.register(diamond())
    run = await hf.start("diamond", 1, session_id="s")
    await hf.advance()
    hf._workflows["diamond"]._definitions.clear()
    hf.register(changed())

    await hf.drain()

    info = await hf.get_run(run.run_id)
    assert info is not None
    assert (info.status, info.error_kind) == ("failed", "workflow_changed")
    assert "keep the old definition" in str(info.last_error)
    kinds = [entry.kind for entry in await hf.journal.read(f"run:{run.run_id}")]
    assert "attempt_failed" in kinds
    assert "attempt_completed" not in kinds


@pytest.mark.clause("SB-12")
async def test_a_changed_definition_takes_no_error_route(hf: Holdfast) -> None:
    def routed(version: str) -> Workflow:
        flow = Workflow("routed", version=version)

        @flow.step(on_error="refund")
        async def pay(ctx: Any, input: Any) -> str:
            return "paid"

        @flow.step()
        async def refund(ctx: Any, error: Any) -> str:
            return "refunded"

        return flow

    hf.register(routed("1"))
    run = await hf.start("routed", session_id="s")
    await hf.advance()
    hf._workflows["routed"]._definitions.clear()
    hf.register(routed("2"))
    await hf.advance()
    hf.register(routed("1"))
    await hf.drain()

    info = await hf.get_run(run.run_id)
    assert info is not None
    assert (info.status, info.error_kind) == ("failed", "workflow_changed")


@pytest.mark.clause("SB-12")
async def test_a_replay_under_a_changed_definition_is_refused(hf: Holdfast) -> None:
    run = await started(hf, diamond(), 1)
    await hf.drain()
    hf.register(changed("2"))

    with pytest.raises(Conflict) as caught:
        await hf.replay(run.run_id)

    assert caught.value.code == "workflow_changed"


def test_what_is_declared_too_late_is_refused() -> None:
    flow = declared(("a", []))
    _ = flow.graph

    for late in (lambda: flow.step("b")(nothing), lambda: flow.compensate("a")(nothing), lambda: flow.pause("p")):
        with pytest.raises(ValueError, match="declare all of its steps before"):
            late()


def test_a_condition_decides_at_once() -> None:
    async def later(results: dict[str, Any]) -> bool:
        return False

    with pytest.raises(InvalidValue, match="plain function"):
        Workflow("w").step("a", when=later)(nothing)


@pytest.mark.clause("SB-12")
async def test_an_old_definition_beside_a_new_one_finishes_its_runs(hf: Holdfast) -> None:
    hf.register(diamond())
    old = await hf.start("diamond", 1, session_id="s")
    await hf.advance()
    hf.register(changed("2"))
    new = await hf.start("diamond", 1, session_id="s")
    await hf.drain()

    assert await hf.result(old.run_id) == {"bottom": [2, 10]}
    assert await hf.result(new.run_id) == {"more": "changed"}


@pytest.mark.clause("SB-9")
async def test_the_graph_of_a_run_needs_no_definition(hf: Holdfast) -> None:
    run = await started(hf, diamond(), 1)
    await hf.advance()
    await hf.advance()
    hf._workflows.clear()

    seen = await hf.graph(run.run_id)

    assert seen is not None
    assert {node.id: node.state for node in seen.nodes} == {
        "top": "completed",
        "left": "pending",
        "right": "pending",
        "bottom": "waiting",
    }
    assert {edge.id: edge.state for edge in seen.edges} == {
        "top->left": "selected",
        "top->right": "selected",
        "left->bottom": "pending",
        "right->bottom": "pending",
    }
    assert seen.to_dict()["nodes"][0]["kind"] == "step"


@pytest.mark.clause("SB-9")
async def test_the_graph_as_a_picture(hf: Holdfast) -> None:
    run = await started(hf, diamond(), 1)
    await hf.advance()
    await hf.advance()
    (claim,) = await hf.claim_next()

    seen = await hf.graph(run.run_id)
    await hf.release(claim)

    assert seen is not None
    lines = seen.to_mermaid().splitlines()
    assert lines[0] == "flowchart TD"
    assert '    n0["top"]:::completed' in lines
    assert "    n0 --> n1" in lines
    assert sum(":::running" in line for line in lines) == 1
    assert await hf.graph("unknown") is None


async def test_a_run_without_a_definition_shows_what_it_did(hf: Holdfast) -> None:
    @hf.flow("plain")
    async def flow(ctx: Any, input: Any) -> None:
        await ctx.step("one", lambda: 1)
        await ctx.step("one", lambda: 2)
        await ctx.run("diamond", key="k", input=1)

    hf.register(diamond())
    run = await hf.start(flow, session_id="s")
    await hf.drain()

    seen = await hf.graph(run.run_id)
    assert seen is not None
    assert [(node.id, node.kind, node.state) for node in seen.nodes] == [
        ("one", "step", "completed"),
        ("one#1", "step", "completed"),
        ("diamond/k", "child", "completed"),
    ]
