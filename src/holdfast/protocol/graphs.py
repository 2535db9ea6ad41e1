"""The graph of a workflow as plain data: what a run remembers of the definition it began with."""

from __future__ import annotations

from functools import cached_property
from typing import Annotated, Literal

import msgspec

from holdfast.protocol.values import fingerprint

Duration = Annotated[int, msgspec.Meta(ge=0, le=1 << 56)]
"""Microseconds; the bound (over two thousand years) keeps every sum with an instant inside 63 bits."""
Count = Annotated[int, msgspec.Meta(ge=0, le=(1 << 31) - 1)]
Kind = Literal["step", "wait", "approval", "pause", "map"]

CHANGED = "workflow_changed"
"""Why a run fails whose definition is not known: its steps go nowhere from there, not even to an error route."""
UNDO = "undo:"
"""What the key of a compensation begins with; the rest names the step that it undoes."""


class Node(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One step. It is ready once every step in `after` has a result; an error route once a step failed into it."""

    name: str
    kind: Kind = "step"
    after: tuple[str, ...] = ()
    over: str | None = None
    """A map only: the step whose list it goes over."""
    limit: Count = 0
    """A map only: how many of its items are open at once; 0 is as many as a run may have."""
    delay_us: Duration = 0
    expires_us: Duration | None = None
    on_expiry: Literal["reject", "approve"] = "reject"
    conditional: bool = False
    max_attempts: Count = 3
    backoff_us: Duration = 1_000_000
    backoff_max_us: Duration = 60_000_000
    on_error: str | None = None
    has_undo: bool = False
    irreversible: bool = False


class Graph(msgspec.Struct, frozen=True, kw_only=True, dict=True):
    """The steps of a workflow, in the order in which they were declared."""

    nodes: tuple[Node, ...]

    @cached_property
    def by_name(self) -> dict[str, Node]:
        return {node.name: node for node in self.nodes}

    @cached_property
    def routes(self) -> frozenset[str]:
        """Steps that others fail into: they begin no run, and nobody waits for them."""
        return frozenset(node.on_error for node in self.nodes if node.on_error is not None)

    @cached_property
    def leaves(self) -> tuple[str, ...]:
        """The steps that no other step comes after: their results are the run's output."""
        parents = {parent for node in self.nodes for parent in node.after}
        return tuple(node.name for node in self.nodes if node.name not in parents)

    @cached_property
    def has_undo(self) -> bool:
        return any(node.has_undo for node in self.nodes)

    def successors(self, name: str) -> tuple[Node, ...]:
        return tuple(node for node in self.nodes if name in node.after)

    def fingerprint(self, version: str) -> str:
        """Two definitions are the same exactly if this is equal."""
        # Every field, said or left at its default: the same step must not look different by how it was declared.
        return fingerprint([version, [msgspec.structs.astuple(node) for node in self.nodes]])


def item_key(map_key: str, index: int) -> str:
    return f"{map_key}[{index}]"


def map_of(key: str) -> str:
    """The key of the map whose item this is; empty for anything else."""
    return key.rpartition("[")[0] if key.endswith("]") else ""


def index_of(key: str) -> int:
    return int(key.rpartition("[")[2][:-1])


def step_of(key: str) -> str:
    """The step that a work item belongs to, whether it is the step itself, an item of it, or its compensation."""
    return (map_of(key) or key).removeprefix(UNDO)
