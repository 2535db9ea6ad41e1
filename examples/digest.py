"""A digest that never ends: fetch, summarise, notify, sleep; each step is a tick, and no process waits while it sleeps.

python examples/digest.py [database url] [--every SECONDS] [--rounds N]
"""

from __future__ import annotations

import argparse
import asyncio
from typing import Any

from holdfast import Clog, Context, Continue, Done, Holdfast, Wait

digest = Clog("digest")


@digest.on_advance
async def advance(input: Any, ctx: Context) -> Continue | Wait | Done:
    """The input says which step is next; nothing else has to be remembered while it sleeps."""
    (state,) = await ctx.read(("run",))
    match input:
        case {"step": "summarise", "stories": stories}:
            return Continue({"step": "notify", "text": f"{len(stories)} stories, first: {stories[0]}"})
        case {"step": "notify", "text": text}:
            await ctx.outbox("email:ada", {"text": text})  # leaves once this tick is on disk, and only then
            await ctx.emit("notified", {"text": text})
            state["rounds"] -= 1
            await ctx.write(("run.set", state))
            return Wait(seconds=state["every"]) if state["rounds"] else Done("the last digest is out")
        case {"every": _, "rounds": _}:
            await ctx.write(("run.set", input))
        case None:
            await ctx.emit("woke_up")
    return Continue({"step": "summarise", "stories": fetch()})


def fetch() -> list[str]:
    """In place of the network."""
    return ["Durable execution without a server", "SQLite in production", "What a lease is"]


async def main(url: str, every: float, rounds: int) -> None:
    async with Holdfast(url) as hf:
        hf.register(digest)
        run = await hf.create_run(session_id="digest", clog_id="digest", input={"every": every, "rounds": rounds})
        worker = hf.worker()
        working = asyncio.create_task(worker.run())
        async for event in hf.events(run.run_id, follow=True):
            if event.type in ("notified", "run_waiting", "woke_up", "done"):
                print(f"{event.at:%H:%M:%S}  {event.type:<12} {event.data or ''}", flush=True)
        worker.stop()
        await working


if __name__ == "__main__":
    arguments = argparse.ArgumentParser(description="A digest that sleeps between ticks.")
    arguments.add_argument("url", nargs="?", default="digest.db")
    arguments.add_argument("--every", type=float, default=8 * 3600.0)
    arguments.add_argument("--rounds", type=int, default=3)
    chosen = arguments.parse_args()
    asyncio.run(main(chosen.url, chosen.every, chosen.rounds))
