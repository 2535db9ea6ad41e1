"""What other processes do to a database file while a test looks on. Each function is the whole life of one process."""

from __future__ import annotations

import asyncio
import multiprocessing
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from typing import Any

from holdfast import DatabaseError, Holdfast

NOBODY = 65534


@contextmanager
def process(target: Callable[..., None], *args: Any) -> Iterator[tuple[BaseProcess, Connection]]:
    """A fresh process that is told `args` and a pipe; it is gone at the end, by force if need be."""
    ours, theirs = multiprocessing.Pipe()
    child = multiprocessing.get_context("spawn").Process(target=target, args=(theirs, *args), daemon=True)
    child.start()
    theirs.close()
    try:
        yield child, ours
    finally:
        child.kill()
        child.join()
        ours.close()


def answer(pipe: Connection, timeout_s: float = 60) -> Any:
    """The next word of the other process."""
    assert pipe.poll(timeout_s), "the other process says nothing"
    return pipe.recv()


def create_without_end(pipe: Connection, path: str) -> None:
    """Create runs, several at a time, and name each once it is acknowledged."""

    async def create(hf: Holdfast) -> None:
        while True:
            run = await hf.create_run(session_id="s", clog_id="c", input="x" * 200)
            pipe.send(run.run_id)

    async def main() -> None:
        async with Holdfast(path) as hf:
            await asyncio.gather(*(create(hf) for _ in range(8)))

    asyncio.run(main())


def open_and_create(pipe: Connection, path: str) -> None:
    """Wait for the word, then open a database that may not exist yet and create a run in it."""

    async def main() -> str:
        async with Holdfast(path) as hf:
            return (await hf.create_run(session_id="s", clog_id="c", input=1)).run_id

    pipe.send("ready")
    pipe.recv()
    try:
        pipe.send(asyncio.run(main()))
    except DatabaseError as error:
        pipe.send(f"{error.code}: {error}")


def fork_while_open(pipe: Connection, path: str) -> None:
    """Open, fork, and let the child try to write, to read and to close; then go on as if nothing had happened."""
    loop = asyncio.new_event_loop()
    hf = Holdfast(path)
    loop.run_until_complete(hf.open())
    child = os.fork()
    if child == 0:
        for call in (lambda: hf.create_run(session_id="s", clog_id="c"), lambda: hf.get_run("x"), hf.fsck):
            pipe.send(_code(call))
        os._exit(0)
    os.waitpid(child, 0)
    loop.run_until_complete(hf.create_run(session_id="s", clog_id="c", input=1))
    pipe.send(loop.run_until_complete(hf.fsck()).ok)
    loop.run_until_complete(hf.close())


def open_unprivileged(pipe: Connection, *paths: str) -> None:
    """Try to open files without the powers of root."""
    if os.getuid() == 0:
        os.setgroups([])
        os.setgid(NOBODY)
        os.setuid(NOBODY)
    for path in paths:
        pipe.send(_code(Holdfast(path).open, words=True))


def _code(call: Callable[[], Any], *, words: bool = False) -> str:
    try:
        asyncio.run(call())
    except DatabaseError as error:
        return f"{error.code}: {error}" if words else error.code
    return "no error"
