"""`Clog`: the code that handles runs, by name. Runs outlive processes, so what they refer to is the name."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from holdfast.errors import NotFound
from holdfast.identity import check_id, check_name

Handler = Callable[..., Any]
H = TypeVar("H", bound=Handler)


class Clog:
    """One `on_advance`, called with the input of each tick, and endpoints that anyone may call by name.

    Handlers may be `async def` or `def`; a `def` runs in a thread. With `resumable=False` a run whose worker was lost
    fails instead of being tried again.
    """

    def __init__(self, name: str, *, resumable: bool = True) -> None:
        self.name = check_id(name, "clog name")
        self.resumable = resumable
        self.advance_handler: Handler | None = None
        self.handlers: tuple[str, ...] = (self.name,)
        """What of its work can be claimed here: what needs the clog alone, and what needs a version of a flow."""
        self.endpoints: dict[str, Handler] = {}

    def on_advance(self, handler: H) -> H:
        """The handler of this clog's ticks. It returns an outcome; an exception means `Retry`."""
        if self.advance_handler is not None:
            raise ValueError(f"clog {self.name} has an on_advance already; a clog has one")
        self.advance_handler = handler
        return handler

    def endpoint(self, method: str) -> Callable[[H], H]:
        """A function that `call_clog` and `ctx.call` reach by this name."""
        check_name(method, "endpoint", longest=128)

        def add(handler: H) -> H:
            if method in self.endpoints:
                raise ValueError(f"clog {self.name} has an endpoint {method!r} already; choose another name")
            self.endpoints[method] = handler
            return handler

        return add

    def __repr__(self) -> str:
        return f"Clog({self.name!r})"


class Registry:
    """The clogs that this process knows."""

    def __init__(self) -> None:
        self._clogs: dict[str, Clog] = {}

    def add(self, clog: Clog) -> None:
        if self._clogs.setdefault(clog.name, clog) is not clog:
            raise ValueError(f"another clog is registered as {clog.name!r}; names are unique in a process")

    @property
    def names(self) -> tuple[str, ...]:
        """What work can be claimed here, as work items name it."""
        return tuple(sorted(name for clog in self._clogs.values() for name in clog.handlers))

    def knows(self, name: str) -> bool:
        return name in self._clogs

    def clog(self, name: str) -> Clog:
        if name not in self._clogs:
            raise NotFound(f"no clog {name!r} is registered here; known are {sorted(self._clogs)}", code="UNKNOWN_CLOG")
        return self._clogs[name]

    def options(self, name: str) -> dict[str, Any]:
        """What a run of this clog is created with, unless its creator says otherwise."""
        return {"resumable": self._clogs[name].resumable} if name in self._clogs else {}

    def endpoint(self, name: str, method: str) -> Handler:
        handler = self.clog(name).endpoints.get(method)
        if handler is None:
            raise NotFound(f"clog {name!r} has no endpoint {method!r}", code="UNKNOWN_ENDPOINT")
        return handler


def address(target: str, method: str | None) -> tuple[str, str]:
    """Clog and endpoint, also from the form `clog.<id>.<method>`."""
    if method is not None:
        return target, method
    kind, _, rest = target.partition(".")
    name, _, endpoint = rest.rpartition(".")
    if kind != "clog" or not name or not endpoint:
        raise NotFound(f"{target!r} is no address; use clog.<id>.<method>", code="UNKNOWN_ENDPOINT")
    return name, endpoint
