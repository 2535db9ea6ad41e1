"""The same calls, blocking, for code without an event loop: one loop in one thread carries them out."""

from __future__ import annotations

import asyncio
import inspect
import threading
from collections.abc import AsyncIterator, Coroutine, Iterator
from typing import Any, Self

from holdfast.errors import HoldfastError


class Blocking:
    """Every method of its runtime as a blocking one; async iterators become plain ones.

    It opens the runtime in its own thread with the first call and closes it with `close`, or as a context manager.
    Inside a running event loop it refuses: the loop would stand still, and with it whatever the call waits for.
    """

    def __init__(self, target: Any) -> None:
        self._target = target
        self._loop: asyncio.AbstractEventLoop | None = None
        self._starting = threading.Lock()

    def __enter__(self) -> Self:
        self._started()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the runtime and end the thread."""
        with self._starting:
            loop, self._loop = self._loop, None
        if loop is not None:
            asyncio.run_coroutine_threadsafe(self._target.close(), loop).result()
            loop.call_soon_threadsafe(loop.stop)

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._target, name)
        if inspect.isasyncgenfunction(found):
            return lambda *args, **options: self._iterate(found(*args, **options))
        if not inspect.iscoroutinefunction(found):
            return found
        return lambda *args, **options: self._wait(lambda: found(*args, **options))

    def _wait(self, call: Any) -> Any:
        loop = self._started()
        return asyncio.run_coroutine_threadsafe(_awaited(call), loop).result()

    def _iterate(self, items: AsyncIterator[Any]) -> Iterator[Any]:
        try:
            while True:
                try:
                    yield self._wait(items.__anext__)
                except StopAsyncIteration:
                    return
        finally:
            self._wait(items.aclose)  # type: ignore[attr-defined]

    def _started(self) -> asyncio.AbstractEventLoop:
        _refuse_inside_a_loop()
        with self._starting:
            if self._loop is None:
                loop = asyncio.new_event_loop()
                threading.Thread(target=_run, args=(loop,), name="holdfast-sync", daemon=True).start()
                try:
                    asyncio.run_coroutine_threadsafe(self._target.open(), loop).result()
                except BaseException:
                    loop.call_soon_threadsafe(loop.stop)
                    raise
                self._loop = loop
            return self._loop


async def _awaited(call: Any) -> Any:
    return await call()


def _run(loop: asyncio.AbstractEventLoop) -> None:
    asyncio.set_event_loop(loop)
    loop.run_forever()
    pending: list[asyncio.Task[Any]] = list(asyncio.all_tasks(loop))
    for task in pending:
        task.cancel()
    ending: Coroutine[Any, Any, Any] = _gathered(pending)
    loop.run_until_complete(ending)
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
