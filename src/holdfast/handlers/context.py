"""`Context`: what a handler receives, and all it may do to the world."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from holdfast.handlers.clogs import address
from holdfast.handlers.ticks import Tick
from holdfast.handlers.tools import Function, OnUnknown, tool_key
from holdfast.protocol.audit import LOCAL
from holdfast.protocol.outcomes import UNSET
from holdfast.runtime import RunInfo

Call = Callable[[Tick, str, str, Any], Awaitable[Any]]
"""Call an endpoint of a clog inside a tick."""

StartChild = Callable[[Tick, str, str, dict[str, Any]], Awaitable[RunInfo]]


class Context:
    """One handler's view of its tick. Storage and budgets are those of `clog_id`, everything else is the tick's."""

    def __init__(
        self,
        tick: Tick,
        clog_id: str,
        *,
        call: Call,
        start_child: StartChild,
    ) -> None:
        self._tick = tick
        self._call = call
        self._start_child = start_child
        self.run_id = tick.state.run_id
        self.session_id = tick.state.session_id
        self.user_id = tick.state.user_id
        self.tick_id = tick.tick_id
        self.clog_id = clog_id
        self.attempt = tick.attempt
        self.deliveries = tick.deliveries
        self.signal = tick.signal
        self.parent = tick.parent

    @property
    def tick(self) -> Tick:
        """The tick itself, for handlers that the library supplies."""
        return self._tick

    @property
    def cancelled(self) -> bool:
        """Someone wants the run to stop; the handler is also cancelled at its next await."""
        return self._tick.cancelled

    async def emit(self, type: str, data: Any = None) -> int:
        """Show something to whoever watches; answers its seq once it is on disk."""
        return (await self._tick.emit([(type, data)]))[0]

    async def emit_many(self, events: Sequence[tuple[str, Any]]) -> list[int]:
        """Several events in one commit; answers their seqs."""
        return await self._tick.emit(list(events))

    def stream(self, type: str, text: str) -> None:
        """Add a piece of text to the stream. Returns at once; it is stored within 50 ms and before anything later."""
        self._tick.stream(type, text)

    async def read(self, *plans: Any) -> list[Any]:
        """The rows of these plans, in order; once for each clog and tick."""
        self._tick.check()
        return await self._tick.storage.read(self.clog_id, plans)

    async def write(self, *ops: Any) -> int:
        """Stage these operations on rows that were read in this tick; once for each clog and tick."""
        self._tick.check()
        return await self._tick.storage.write(self.clog_id, ops)

    async def call(self, target: str, method: str | None = None, payload: Any = None) -> Any:
        """Call an endpoint of a clog in this tick; `target` may be `clog.<id>.<method>`."""
        self._tick.check()
        return await self._call(self._tick, *address(target, method), payload)

    async def outbox(self, target_space: str, payload: Any, *, key: str | None = None) -> str:
        """Stage a delivery to the outside; it leaves once the outcome is on disk. Answers its outbox id."""
        return await self._tick.enqueue(target_space, payload, key)

    @property
    def tool_key(self) -> str | None:
        """The key of the tool that is just running: the same however often this call is begun."""
        return tool_key.get()

    async def tool(
        self,
        name: str,
        args: Any,
        fn: Function,
        *,
        on_unknown: OnUnknown = "retry",
        vendor: str = LOCAL,
        parent_id: str | None = None,
        persist_payloads: bool | None = None,
    ) -> Any:
        """Run `fn(args)`, or `fn(args, key)`, through the ledger; a call that was answered is not run again.

        Where a worker died between asking and answering, `on_unknown` decides: `retry` with the same key, `fail`,
        `ask` a person, or a function of (args, key) that answers the result it found or raises.
        """
        return await self._tick.use_tool(
            name,
            args,
            fn,
            on_unknown=on_unknown,
            vendor=vendor,
            parent_id=parent_id,
            persist_payloads=persist_payloads,
        )

    async def child(self, clog_id: str, *, key: str, input: Any = UNSET, **options: Any) -> RunInfo:
        """Start a child run with the outcome; the same clog and key is the same child, however often it is asked.

        It is cancelled with this run, unless `on_cancel="abandon"` leaves it to itself.
        """
        return await self._start_child(self._tick, clog_id, key, {"input": input, **options})


class BlockingContext:
    """The same context for a `def` handler, which runs in a thread: what is awaited elsewhere blocks here.

    A `def` that only wraps an `async def` hands this to it; back on the event loop nothing blocks, all is awaited.
    """

    def __init__(self, context: Context, loop: asyncio.AbstractEventLoop) -> None:
        self._context = context
        self._loop = loop

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._context, name)
        if not inspect.iscoroutinefunction(found) or self._is_on_its_loop():
            return found

        def blocking(*args: Any, **options: Any) -> Any:
            self._check()
            return asyncio.run_coroutine_threadsafe(found(*args, **options), self._loop).result()

        return blocking

    def stream(self, type: str, text: str) -> None:
        if self._is_on_its_loop():
            self._context.stream(type, text)
            return

        # A stream's timer belongs to the event loop, so the delta is handed over there.
        async def hand_over() -> None:
            self._context.stream(type, text)

        self._check()
        asyncio.run_coroutine_threadsafe(hand_over(), self._loop).result()

    def _is_on_its_loop(self) -> bool:
        try:
            return asyncio.get_running_loop() is self._loop
        except RuntimeError:
            return False

    def _check(self) -> None:
        """A thread cannot be cancelled from outside, so it is at its next call."""
        if self._context.cancelled:
            raise asyncio.CancelledError(f"someone wants run {self._context.run_id} to stop")
