"""`RunGraph`: a run as nodes and edges with their states, and as a picture. Pure, and only for looking."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, cast

import msgspec

from holdfast.protocol.facts import WorkflowStarted
from holdfast.protocol.flows import OURS
from holdfast.protocol.graphs import UNDO, Graph, Node
from holdfast.protocol.state import Runnable, RunState

_SHAPES = {
    "wait": ("(", ")"),
    "approval": ("{{", "}}"),
    "pause": ("{{", "}}"),
    "map": ("[[", "]]"),
    "child": ("([", "])"),
}
_COLOURS = {
    "completed": "fill:#d3f2dc,stroke:#2f855a,color:#1a3a2a",
    "running": "fill:#d6e8fb,stroke:#2b6cb0,color:#1a2f4a",
    "retrying": "fill:#fdebc8,stroke:#b7791f,color:#4a3410",
    "paused": "fill:#eadcfb,stroke:#6b46c1,color:#2f1f52",
    "failed": "fill:#fbd9d9,stroke:#c53030,color:#4a1515",
    "pending": "fill:#eef1f5,stroke:#718096,color:#2d3748",
    "waiting": "fill:#ffffff,stroke:#a0aec0,color:#4a5568",
    "skipped": "fill:#ffffff,stroke:#cbd5e0,color:#a0aec0,stroke-dasharray:4",
}
_LINES = {"selected": "-->", "pending": "-.->", "skipped": "-.->", "blocked": "-.-x"}


class GraphNode(msgspec.Struct, frozen=True, kw_only=True):
    """One step. `state` is waiting, pending, running, retrying, paused, completed, skipped or failed.

    A map says how many of its `items` have a result.
    """

    id: str
    kind: str
    state: str
    attempt: int = 0
    items: int | None = None
    items_done: int | None = None


class GraphEdge(msgspec.Struct, frozen=True, kw_only=True):
    """What comes after what (`dependency`), where a failure goes (`error`), what undoes what (`compensation`)."""

    id: str
    source: str
    target: str
    kind: str
    state: str
    conditional: bool = False


class RunGraph(msgspec.Struct, frozen=True, kw_only=True):
    """A run's steps. Without a definition there are nodes alone."""

    run_id: str
    clog_id: str
    status: str
    rev: int
    version: str | None
    fingerprint: str | None
    nodes: tuple[GraphNode, ...]
    edges: tuple[GraphEdge, ...]

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON values."""
        return cast(dict[str, Any], msgspec.json.decode(msgspec.json.encode(self)))

    def to_mermaid(self) -> str:
        """A flowchart in Mermaid's words."""
        names = {node.id: f"n{place}" for place, node in enumerate(self.nodes)}
        lines = ["flowchart TD"]
        lines += [f"    {names[node.id]}{_box(node)}:::{node.state}" for node in self.nodes]
        lines += [
            f"    {names[edge.source]} {_line(edge)} {names[edge.target]}"
            for edge in self.edges
            if edge.source in names and edge.target in names
        ]
        used = dict.fromkeys(node.state for node in self.nodes)
        lines += [f"    classDef {state} {_COLOURS[state]}" for state in used]
        return "\n".join(lines) + "\n"


def run_graph(state: RunState, definition: WorkflowStarted | None) -> RunGraph:
    """What a whole state shows."""
    graph = definition.graph if definition else Graph(nodes=())
    return RunGraph(
        run_id=state.run_id,
        clog_id=state.clog_id,
        status=state.status,
        rev=state.rev,
        version=definition.version if definition else None,
        fingerprint=definition.fingerprint if definition else None,
        nodes=tuple(_nodes(state, graph)),
        edges=tuple(_edges(state, graph)),
    )


def _nodes(state: RunState, graph: Graph) -> Iterator[GraphNode]:
    for node in graph.nodes:
        yield _node(state, node.name, node.kind)
    for item in _in_order(state.runnables.values()):
        if item.key not in graph.by_name and not item.map_key:
            yield _node(state, item.key, "compensation" if item.key.startswith(UNDO) else "step")
    for (name, number), step in sorted(state.steps.items(), key=lambda each: each[1].rev):
        if not name.startswith(OURS):
            word = {"done": "completed", "retry": "retrying", "begun": "running"}.get(step.status, step.status)
            yield GraphNode(id=f"{name}#{number}" if number else name, kind="step", state=word, attempt=step.attempt)
    for child in sorted(state.children.values(), key=lambda each: each.started_rev):
        word = {None: "running", "done": "completed"}.get(child.status, "failed")
        yield GraphNode(id=f"{child.clog_id}/{child.child_key}", kind="child", state=word)


def _node(state: RunState, key: str, kind: str) -> GraphNode:
    runnable, work = state.runnables.get(key), state.work.get(key)
    return GraphNode(
        id=key,
        kind=kind,
        state=_word(state, key),
        attempt=work.attempt if work else 0,
        items=runnable.items if runnable else None,
        items_done=(runnable.items or 0) - runnable.remaining if runnable and runnable.items is not None else None,
    )


def _word(state: RunState, key: str) -> str:
    runnable, work = state.runnables.get(key), state.work.get(key)
    if runnable is None:
        return "waiting"
    if state.boundary and state.boundary.step == key:
        return "paused"
    if work and work.claim:
        return "running"
    words = {
        "completed": "skipped" if runnable.skipped else "completed",
        "failed": "failed",
        "mapping": "waiting" if state.terminal else "running",
        "retry_scheduled": "retrying",
        "withdrawn": "skipped",
    }
    return words.get(runnable.status, "waiting" if state.terminal else "pending")


def _edges(state: RunState, graph: Graph) -> Iterator[GraphEdge]:
    for node in graph.nodes:
        for parent in node.after:
            yield _edge(parent, node.name, "dependency", _way(state, parent, node), conditional=node.conditional)
        if node.on_error is not None:
            yield _edge(node.name, node.on_error, "error", _error_way(state, node))
    for key in state.runnables:
        if key.startswith(UNDO):
            yield _edge(key.removeprefix(UNDO), key, "compensation", "selected")
    for child in state.children.values():
        if child.step in state.runnables:
            target = f"{child.clog_id}/{child.child_key}"
            yield _edge(state.runnables[child.step].step, target, "child", "selected")


def _edge(source: str, target: str, kind: str, state: str, *, conditional: bool = False) -> GraphEdge:
    return GraphEdge(
        id=f"{source}->{target}", source=source, target=target, kind=kind, state=state, conditional=conditional
    )


def _way(state: RunState, parent: str, node: Node) -> str:
    runnable = state.runnables.get(node.name)
    if runnable is not None:
        return "skipped" if runnable.skipped else "selected"
    before = state.runnables.get(parent)
    lost = before is not None and before.status in ("failed", "withdrawn")
    return "blocked" if lost or state.terminal else "pending"


def _error_way(state: RunState, node: Node) -> str:
    runnable = state.runnables.get(node.name)
    if runnable is not None and runnable.status == "failed":
        return "selected"
    over = state.terminal or (runnable is not None and runnable.applied_rev is not None)
    return "skipped" if over else "pending"


def _in_order(items: Iterable[Runnable]) -> list[Runnable]:
    return sorted(items, key=lambda item: item.planned_rev or item.scheduled_rev or 0)


def _box(node: GraphNode) -> str:
    left, right = _SHAPES.get(node.kind, ("[", "]"))
    label = node.id.replace('"', "#quot;")
    if node.items is not None:
        label += f" {node.items_done}/{node.items}"
    return f'{left}"{label}"{right}'


def _line(edge: GraphEdge) -> str:
    line = _LINES[edge.state]
    return line if edge.kind in ("dependency", "child") else f"{line}|{edge.kind}|"
