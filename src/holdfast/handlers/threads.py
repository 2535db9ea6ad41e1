"""Functions that block, away from the event loop."""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import inspect
import threading
from collections.abc import Callable
from types import FunctionType
from typing import Any


def is_async(function: Callable[..., Any]) -> bool:
    """Does calling it answer a coroutine? Also true of an object whose `__call__` is `async def`."""
    if type(function) is FunctionType and function.__code__.co_flags & inspect.CO_COROUTINE:
        # Most are no more than this, and are asked for each step.
        return True
    return inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(type(function).__call__)


async def call(function: Callable[..., Any], *args: Any, **options: Any) -> Any:
    """Call a function of either kind: a coroutine function here, any other in a thread."""
    if is_async(function):
        return await function(*args, **options)
    result = await in_thread(lambda: function(*args, **options))
    return await result if inspect.isawaitable(result) else result


async def in_thread(function: Callable[..., Any], *args: Any) -> Any:
    """Run in a thread of its own, which dies with the process: a handler that hangs must not keep it alive."""
    loop = asyncio.get_running_loop()
    done: asyncio.Future[Any] = loop.create_future()
    variables = contextvars.copy_context()

    def deliver(result: Any, error: BaseException | None) -> None:
        if done.done():
            # Nobody waits any more, so nobody would begin on what it answered.
            if inspect.iscoroutine(result):
                result.close()
            return
        if error is not None:
            done.set_exception(error)
        else:
            done.set_result(result)

    def run() -> None:
        result: Any = None
        error: BaseException | None = None
        try:
            result = variables.run(function, *args)
        except StopIteration as raised:
            # No future can carry it.
            error = RuntimeError(f"the handler raised StopIteration: {raised}")
        except BaseException as raised:
            error = raised
        with contextlib.suppress(RuntimeError):
            # A loop that is closed waits for nobody.
            loop.call_soon_threadsafe(deliver, result, error)

    threading.Thread(target=run, name="holdfast-handler", daemon=True).start()
    return await done
