"""`Workflow`: what the steps of a graph are, which one comes after which, and what each of them calls."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from datetime import timedelta
from functools import cached_property
from typing import Any, Literal, TypeVar

import msgspec

from holdfast.errors import InvalidValue
from holdfast.identity import check_id
from holdfast.protocol.backoff import RetryPolicy
from holdfast.protocol.decisions import microseconds
from holdfast.protocol.graphs import Graph, Kind, Node
from holdfast.protocol.values import whole_number
from holdfast.workflow.checking import check

Function = Callable[..., Any]
F = TypeVar("F", bound=Function)
Condition = Callable[[dict[str, Any]], Any]
Details = dict[str, Any] | Callable[[dict[str, Any]], dict[str, Any]]
ITEMS_MAX = 1 << 20


class Code(msgspec.Struct, frozen=True, kw_only=True):
    """What a step calls. It is looked up by the step's name; a run remembers names only."""

    function: Function | None = None
    when: Condition | None = None
    details: Details | None = None
    timeout: float | None = None


class Workflow:
    """A graph of steps under a name and a version.

    Steps are declared, then the workflow is registered, which checks it; what is declared later counts no more. A run
    follows the definition it began with: change the version with the steps, and keep the old definition registered
    until its runs are over. `input` is the type of what runs are started with: anything that msgspec converts to.
    """

    def __init__(self, name: str, *, version: str | int = "1", input: Any = None) -> None:
        self.name = check_id(name, "workflow name")
        self.version = str(version)
        self.input = input
        self.code: dict[str, Code] = {}
        self.undos: dict[str, Function] = {}
        self._nodes: list[Node] = []

    def step(
        self,
        name: str | None = None,
        *,
        after: Sequence[str] = (),
        retry: RetryPolicy | None = None,
        when: Condition | None = None,
        on_error: str | None = None,
        irreversible: bool = False,
        timeout: float | None = None,
    ) -> Callable[[F], F]:
        """A step that calls the function: with `(ctx, input)` at the beginning, else with its parents' results.

        `when` decides from those whether it runs at all. A step that failed for good goes on with the step `on_error`
        names; without one the run fails.
        """

        def add(function: F) -> F:
            made = self._node(name or function.__name__, "step", after, retry=retry, when=when, on_error=on_error)
            self._add(msgspec.structs.replace(made, irreversible=irreversible), function, when, timeout)
            return function

        return add

    def map(
        self,
        name: str,
        *,
        over: str,
        after: Sequence[str] = (),
        limit: int | None = None,
        retry: RetryPolicy | None = None,
        when: Condition | None = None,
        on_error: str | None = None,
        timeout: float | None = None,
    ) -> Callable[[F], F]:
        """Call the function with `(ctx, item)` for each item of a step's list; the result is the list of results.

        At most `limit` items are open at once. One that fails for good fails the map.
        """

        def add(function: F) -> F:
            parents = (over, *(parent for parent in _names(after) if parent != over))
            made = self._node(name, "map", parents, retry=retry, when=when, on_error=on_error)
            most = 0 if limit is None else whole_number(limit, f"limit of {name}", 1, ITEMS_MAX)
            self._add(msgspec.structs.replace(made, over=over, limit=most), function, when, timeout)
            return function

        return add

    def wait(self, name: str, *, seconds: float | timedelta, after: Sequence[str] = ()) -> None:
        """Nothing happens for so long. Whatever comes after it gets None."""
        made = self._node(name, "wait", after)
        self._add(msgspec.structs.replace(made, delay_us=microseconds(seconds)))

    def approval(
        self,
        name: str,
        *,
        after: Sequence[str] = (),
        details: Details | None = None,
        expires: float | timedelta | None = None,
        on_expiry: Literal["reject", "approve"] = "reject",
        when: Condition | None = None,
        on_error: str | None = None,
    ) -> None:
        """Ask a person; the result is their `Decision`. A rejection is a failure of this step (`rejected`).

        `details` is what they are shown, as a dict or made from the parents' results. A question that nobody
        answered before it `expires` counts as `on_expiry` says; one that is not wanted by `when` is not asked.
        """
        if on_expiry not in ("reject", "approve"):
            raise InvalidValue(f"on_expiry of {name} must be 'reject' or 'approve', got {on_expiry!r}")
        made = self._node(name, "approval", after, when=when, on_error=on_error)
        limit = None if expires is None else microseconds(expires)
        self._add(msgspec.structs.replace(made, expires_us=limit, on_expiry=on_expiry), when=when, details=details)

    def pause(
        self,
        name: str,
        *,
        after: Sequence[str] = (),
        details: Details | None = None,
        when: Condition | None = None,
    ) -> None:
        """Stop until someone resumes the run."""
        self._add(self._node(name, "pause", after, when=when), when=when, details=details)

    def compensate(self, step: str) -> Callable[[F], F]:
        """What undoes a step: called with `(ctx, result)` if the run fails later, the latest step first."""

        def add(function: F) -> F:
            self._check_open()
            if step in self.undos:
                raise ValueError(f"workflow {self.name}: {step!r} has a compensation already; a step has one")
            self.undos[step] = function
            return function

        return add

    @cached_property
    def graph(self) -> Graph:
        """The declared steps as data. Raises `ValueError` that names every culprit."""
        nodes = tuple(msgspec.structs.replace(node, has_undo=node.name in self.undos) for node in self._nodes)
        check(self.name, nodes, {name: code.function for name, code in self.code.items()}, self.undos)
        return Graph(nodes=nodes)

    def given(self, value: Any) -> Any:
        """What steps get as their input. A value that does not fit its type raises `InvalidValue`."""
        if self.input is None:
            return value
        try:
            return msgspec.convert(value, self.input)
        except msgspec.ValidationError as error:
            raise InvalidValue(f"this is no input of workflow {self.name}: {error}", code="invalid_input") from error

    @cached_property
    def fingerprint(self) -> str:
        return self.graph.fingerprint(self.version)

    def _node(
        self,
        name: str,
        kind: Kind,
        after: Sequence[str],
        *,
        retry: RetryPolicy | None = None,
        when: Condition | None = None,
        on_error: str | None = None,
    ) -> Node:
        policy = retry or RetryPolicy()
        return Node(
            name=check_id(name, "step"),
            kind=kind,
            after=_names(after),
            conditional=when is not None,
            max_attempts=policy.max_attempts,
            backoff_us=policy.backoff_ms * 1_000,
            backoff_max_us=policy.backoff_max_ms * 1_000,
            on_error=on_error,
        )

    def _add(
        self,
        node: Node,
        function: Function | None = None,
        when: Condition | None = None,
        timeout: float | None = None,
        details: Details | None = None,
    ) -> None:
        self._add_node(node, Code(function=function, when=when, details=details, timeout=timeout))

    def _add_node(self, node: Node, code: Code) -> None:
        self._check_open()
        check_id(node.name, "step")
        if inspect.iscoroutinefunction(code.when):
            raise InvalidValue(f"when of {node.name} must be a plain function; it decides from results, at once")
        self._nodes.append(node)
        self.code[node.name] = code

    def _check_open(self) -> None:
        if "graph" in self.__dict__:
            text = f"workflow {self.name} was registered or read already; declare all of its steps before that"
            raise ValueError(text)

    def __repr__(self) -> str:
        return f"Workflow({self.name!r}, version={self.version!r})"


def _names(after: Sequence[str]) -> tuple[str, ...]:
    return (after,) if isinstance(after, str) else tuple(after)
