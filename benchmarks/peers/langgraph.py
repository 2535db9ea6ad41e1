"""LangGraph with its checkpointers. It has no queue: a run is a thread that is invoked, and checkpointed as it goes."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, TypedDict

from langgraph.checkpoint.postgres.aio import AsyncPostgresSaver
from langgraph.checkpoint.sqlite.aio import AsyncSqliteSaver
from langgraph.graph import END, START, StateGraph
from psycopg.rows import dict_row
from psycopg_pool import AsyncConnectionPool

from benchmarks.peers.driving import STEPS, Job, Pipe, callers, main

POOL = 16
THREADS = 16
"""More at once only take turns."""


class State(TypedDict):
    value: int


async def node(state: State) -> State:
    return {"value": 1}


def graph(saver: Any, kind: str) -> Any:
    """A line of nodes: one, or three for three durable steps."""
    names = ("one", "two", "three") if kind == STEPS else ("one",)
    made: Any = StateGraph(State)
    for name in names:
        made.add_node(name, node)
    for first, second in zip((START, *names), (*names, END), strict=True):
        made.add_edge(first, second)
    return made.compile(checkpointer=saver)


@asynccontextmanager
async def saving(job: Job) -> AsyncIterator[Any]:
    if not job.url.startswith("postgresql"):
        async with AsyncSqliteSaver.from_conn_string(job.url) as saver:
            await saver.conn.execute("PRAGMA synchronous = FULL")
            yield saver
        return
    options = {"autocommit": True, "prepare_threshold": 0, "row_factory": dict_row}
    async with AsyncConnectionPool(job.url, min_size=POOL, max_size=POOL, kwargs=options) as pool:
        yield AsyncPostgresSaver(pool)


async def setup(job: Job, pipe: Pipe) -> None:
    async with saving(job) as saver:
        await saver.setup()


async def fill(job: Job, pipe: Pipe) -> None:
    """Nothing waits anywhere; the worker invokes what it runs."""


async def work(job: Job, pipe: Pipe) -> None:
    async with saving(job) as saver:
        compiled = graph(saver, job.kind)

        async def invoke() -> None:
            thread = {"configurable": {"thread_id": str(uuid.uuid4())}}
            await compiled.ainvoke({"value": 0}, thread, durability="sync")

        await asyncio.to_thread(pipe.ready)
        await pipe.until_told(callers(invoke, THREADS))


ROLES: dict[str, Any] = {"setup": setup, "fill": fill, "work": work}

if __name__ == "__main__":
    main(ROLES)
