"""Is this graph one that can be run? Every culprit is named, all of them at once."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from graphlib import CycleError, TopologicalSorter
from typing import Any

from holdfast.protocol.graphs import UNDO, Node

RESERVED = frozenset({"ctx", "input", "error"})
"""What steps are called with beside their parents' results."""


def check(
    workflow: str,
    nodes: Sequence[Node],
    functions: Mapping[str, Callable[..., Any] | None],
    undos: Mapping[str, Callable[..., Any]],
) -> None:
    """Raise `ValueError` with everything that is wrong."""
    wrong = [*_problems(nodes, functions, undos)]
    if wrong:
        raise ValueError(f"workflow {workflow} cannot be run: " + "; ".join(wrong))


def _problems(
    nodes: Sequence[Node],
    functions: Mapping[str, Callable[..., Any] | None],
    undos: Mapping[str, Callable[..., Any]],
) -> Iterator[str]:
    names = [node.name for node in nodes]
    routes = {node.on_error for node in nodes if node.on_error is not None}
    if not nodes:
        yield "it has no steps; declare at least one"
    for name in dict.fromkeys(names):
        if names.count(name) > 1:
            yield f"step {name!r} is declared {names.count(name)} times; names are unique"
        if name in RESERVED or name.startswith(UNDO):
            yield f"{name!r} cannot be a step's name, it has a meaning of its own; choose another"
    for node in nodes:
        yield from _links(node, set(names), routes)
    yield from (f"{step!r} has a compensation and is not declared" for step in undos if step not in names)
    yield from _cycles(nodes)
    for node in nodes:
        function = functions.get(node.name)
        if function is not None:
            yield from _parameters(node, function, is_route=node.name in routes)


def _links(node: Node, names: set[str], routes: set[str]) -> Iterator[str]:
    for parent in node.after:
        if parent not in names:
            yield f"step {node.name!r} comes after {parent!r}, which is not declared"
    if node.kind == "map" and (node.over is None or node.over not in node.after):
        yield f"map {node.name!r} goes over {node.over!r}, which is none of its parents"
    if node.on_error is not None and node.on_error not in names:
        yield f"step {node.name!r} goes to {node.on_error!r} on error, which is not declared"
    if node.name in routes and node.after:
        yield f"step {node.name!r} is an error route and comes after {node.after[0]!r}; it can be one of the two"


def _cycles(nodes: Sequence[Node]) -> Iterator[str]:
    """Waiting for each other; an error route counts as coming after whatever fails into it."""
    order: TopologicalSorter[str] = TopologicalSorter()
    for node in nodes:
        order.add(node.name, *node.after)
        if node.on_error is not None:
            order.add(node.on_error, node.name)
    try:
        order.prepare()
    except CycleError as error:
        yield f"steps wait for each other: {' → '.join(error.args[1])}"


def _parameters(node: Node, function: Callable[..., Any], *, is_route: bool) -> Iterator[str]:
    """A step with parents is called by their names, so it must not ask for anything else."""
    if node.kind == "map" or not (node.after or is_route):
        return
    given = {*node.after, "input", *(["error"] if is_route else [])}
    for parameter in wanted(function)[1:]:
        if parameter.default is parameter.empty and parameter.kind in _NAMED and parameter.name not in given:
            yield f"step {node.name!r} asks for {parameter.name!r}, which is none of its parents {sorted(node.after)}"


_NAMED = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)


def wanted(function: Callable[..., Any]) -> list[inspect.Parameter]:
    return list(inspect.signature(function).parameters.values())


def accepted(function: Callable[..., Any], given: Mapping[str, Any]) -> dict[str, Any]:
    """Of what could be given, what the function takes by name."""
    parameters = wanted(function)[1:]
    if any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters):
        return dict(given)
    names = {parameter.name for parameter in parameters if parameter.kind in _NAMED}
    return {name: value for name, value in given.items() if name in names}
