"""A workflow as plain JSON and back, for editors and files. What a step calls is chosen from a list, never loaded."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast

import msgspec

from holdfast.errors import InvalidValue
from holdfast.protocol.graphs import Node
from holdfast.workflow.definition import Code, Condition, Details, Function, Workflow

WITH_CODE = frozenset({"step", "map"})


class Spec(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a workflow is apart from its code."""

    name: str
    version: str = "1"
    nodes: tuple[Node, ...]


def to_spec(workflow: Workflow) -> dict[str, Any]:
    """The declared steps as JSON values; functions are left out, their steps' names stand for them."""
    spec = Spec(name=workflow.name, version=workflow.version, nodes=workflow.graph.nodes)
    return cast(dict[str, Any], msgspec.json.decode(msgspec.json.encode(spec)))


def from_spec(
    spec: dict[str, Any],
    actions: Mapping[str, Function],
    *,
    conditions: Mapping[str, Condition] | None = None,
    compensations: Mapping[str, Function] | None = None,
    details: Mapping[str, Details] | None = None,
) -> Workflow:
    """The workflow that a spec describes, with functions from these lists by the names of the steps.

    A spec that does not fit, or names a function that is not listed, raises `InvalidValue` that says which.
    """
    try:
        read = msgspec.convert(spec, Spec)
    except msgspec.ValidationError as error:
        raise InvalidValue(f"this is no spec of a workflow: {error}") from error
    flow = Workflow(read.name, version=read.version)
    for node in read.nodes:
        flow._add_node(
            node,
            Code(
                function=_listed(actions, node.name, "action") if node.kind in WITH_CODE else None,
                when=_listed(conditions or {}, node.name, "condition") if node.conditional else None,
                details=(details or {}).get(node.name),
            ),
        )
        if node.has_undo:
            flow.compensate(node.name)(_listed(compensations or {}, node.name, "compensation"))
    return flow


def _listed(functions: Mapping[str, Any], name: str, what: str) -> Any:
    if name not in functions:
        raise InvalidValue(f"no {what} is listed for step {name!r}; listed are {sorted(functions)}")
    return functions[name]
