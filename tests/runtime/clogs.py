"""Small clogs for tests: ones that note what they are given, ones that follow a script."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Callable
from typing import Any, NamedTuple

import pytest

from holdfast import Clog, Context, Event, Holdfast, Ok

shared = pytest.mark.parametrize("configuration", ["file", "postgres"], indirect=True)
"""For tests with several instances on one database."""


class Seen(NamedTuple):
    """What a handler was called with."""

    run_id: str
    tick_id: str
    input: Any
    attempt: int
    deliveries: int
    signal: Any


def on_advance(hf: Holdfast, handler: Callable[..., Any], name: str = "chat", **options: Any) -> Clog:
    """A registered clog with this handler."""
    clog = Clog(name, **options)
    clog.on_advance(handler)
    hf.register(clog)
    return clog


def answering(hf: Holdfast, *answers: Any, name: str = "chat") -> list[Seen]:
    """A registered clog that gives these answers in turn, then `Ok()`; what it was called with is in the list.

    An exception is raised, a function is called with (input, ctx), anything else is returned.
    """
    left = list(answers)
    seen: list[Seen] = []

    async def advance(given: Any, ctx: Context) -> Any:
        seen.append(Seen(ctx.run_id, ctx.tick_id, given, ctx.attempt, ctx.deliveries, ctx.signal))
        answer = left.pop(0) if left else Ok()
        if isinstance(answer, BaseException):
            raise answer
        if inspect.isfunction(answer):
            answer = answer(given, ctx)
        return await answer if inspect.isawaitable(answer) else answer

    on_advance(hf, advance, name)
    return seen


def inputs(seen: list[Seen]) -> list[Any]:
    return [each.input for each in seen]


async def events(hf: Holdfast, run_id: str, after: int = 0) -> list[Event]:
    return [event async for event in hf.events(run_id, after)]


async def said(hf: Holdfast, run_id: str) -> list[tuple[str, Any]]:
    """What handlers emitted, in order, without what the library adds of its own."""
    return [(event.type, event.data) for event in await events(hf, run_id) if event.type not in LIBRARY]


async def until(holds: Callable[[], Awaitable[Any]]) -> None:
    """Wait, a little at a time and never for ever, for what another thread or a timer brings about."""
    for _ in range(1_000):
        if await holds():
            return
        await asyncio.sleep(0.01)
    raise TimeoutError("it never came about")


LIBRARY = frozenset(
    {
        *("run_queued", "run_started", "run_idle", "run_waiting", "run_retrying", "tick_abandoned", "done", "error"),
        *("signal_received", "cancel_requested", "child_started", "child_finished", "anomaly"),
    }
)
