"""The same calls, blocking, for code without an event loop: one loop in one thread carries them out."""

from __future__ import annotations

import asyncio
import inspect
import threading
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from typing import Any, Self

from holdfast.errors import HoldfastError

END_S = 10.0


class Calls:
    """Every method of an object as a blocking one; async iterators become plain ones."""

    def __init__(self, target: Any, thread: LoopThread) -> None:
        self._target = target
        self._thread = thread

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._target, name)
        if inspect.isasyncgenfunction(found):
            return lambda *args, **options: self._iterate(found(*args, **options))
        if inspect.iscoroutinefunction(found):
            return lambda *args, **options: self._thread.wait(lambda: found(*args, **options))
        if callable(found):
            return lambda *args, **options: self._entered(found(*args, **options))
        return Calls(found, self._thread) if _has_coroutines(type(found)) else found

    def _entered(self, answer: Any) -> Any:
        """What is meant for `async with` becomes something for `with`."""
        return Block(answer, self._thread) if hasattr(answer, "__aenter__") else answer

    def _iterate(self, items: AsyncIterator[Any]) -> Iterator[Any]:
        try:
            while True:
                try:
                    yield self._thread.wait(items.__anext__)
                except StopAsyncIteration:
                    return
        finally:
            # Whoever left early, or this thread's collector of garbage, does not wait for it.
            self._thread.begin(items.aclose)  # type: ignore[attr-defined]


class Block(Calls):
    """A block of statements, such as a transaction of the audit, as a plain context manager with blocking methods."""

    def __enter__(self) -> Self:
        self._thread.wait(self._target.__aenter__)
        return self

    def __exit__(self, *raised: object) -> bool | None:
        answer: bool | None = self._thread.wait(lambda: self._target.__aexit__(*raised))
        return answer


class Blocking(Calls):
    """A runtime for code without an event loop; `sync.journal` and the like block too.

    It opens the runtime in a thread of its own with the first call and closes it with `close`, or as a context
    manager. Inside a running event loop it refuses: the loop would stand still, and with it whatever it waits for.
    """

    def __init__(self, target: Any, beside: Blocking | None = None) -> None:
        super().__init__(target, beside._thread if beside else LoopThread(target))

    def __enter__(self) -> Self:
        return self.open()

    def __exit__(self, *_: object) -> None:
        self.close()

    def open(self) -> Self:
        """Open the runtime now, not with the first call."""
        self._thread.started()
        return self

    def close(self) -> None:
        """Close the runtime and end the thread."""
        self._thread.close()

    def as_user(self, user_id: str) -> Blocking:
        """The same blocking calls for one user, in the same thread."""
        return Blocking(self._target.as_user(user_id), beside=self)


class LoopThread:
    """The event loop that a runtime lives on while it is used without one."""

    def __init__(self, runtime: Any) -> None:
        self._runtime = runtime
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self._starting = threading.Lock()

    def wait(self, call: Callable[[], Any]) -> Any:
        """What the call answers; the first one opens the runtime."""
        loop = self.started()
        return asyncio.run_coroutine_threadsafe(_awaited(call), loop).result()

    def begin(self, call: Callable[[], Any]) -> None:
        """Have it called if there is still a loop, and do not wait."""
        loop = self._loop
        if loop is not None:
            asyncio.run_coroutine_threadsafe(_awaited(call), loop)

    def started(self) -> asyncio.AbstractEventLoop:
        _refuse_inside_a_loop()
        with self._starting:
            if self._loop is None:
                loop = asyncio.new_event_loop()
                self._thread = threading.Thread(target=_run, args=(loop,), name="holdfast-sync", daemon=True)
                self._thread.start()
                try:
                    asyncio.run_coroutine_threadsafe(self._runtime.open(), loop).result()
                except BaseException:
                    self._end(loop)
                    raise
                self._loop = loop
            return self._loop

    def close(self) -> None:
        with self._starting:
            loop, self._loop = self._loop, None
            if loop is not None:
                try:
                    asyncio.run_coroutine_threadsafe(self._runtime.close(), loop).result()
                finally:
                    self._end(loop)

    def _end(self, loop: asyncio.AbstractEventLoop) -> None:
        loop.call_soon_threadsafe(loop.stop)
        if self._thread is not None:
            self._thread.join(END_S)


def _has_coroutines(kind: type[Any]) -> bool:
    return any(inspect.iscoroutinefunction(member) for _, member in inspect.getmembers(kind))


async def _awaited(call: Callable[[], Any]) -> Any:
    return await call()


def _run(loop: asyncio.AbstractEventLoop) -> None:
    asyncio.set_event_loop(loop)
    loop.run_forever()
    pending: list[asyncio.Task[Any]] = list(asyncio.all_tasks(loop))
    for task in pending:
        task.cancel()
    ending: Coroutine[Any, Any, Any] = _gathered(pending)
    loop.run_until_complete(ending)
    loop.run_until_complete(loop.shutdown_asyncgens())
    loop.close()


async def _gathered(tasks: list[asyncio.Task[Any]]) -> None:
    await asyncio.gather(*tasks, return_exceptions=True)


def _refuse_inside_a_loop() -> None:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return
    raise HoldfastError(
        "hf.sync blocks, and this thread runs an event loop; await the same call on hf instead", code="running_loop"
    )
