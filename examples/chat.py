"""A chat that lives for weeks: one run per conversation, one signal per message, at rest in between.

    python examples/chat.py [database url]

Run it twice with the same database: the second process finds the conversation where the first one left it.
"""

from __future__ import annotations

import asyncio
import sys
from typing import Any

from holdfast import Clog, Context, Holdfast, Ok

chat = Clog("chat")


@chat.on_advance
async def answer(message: dict[str, Any], ctx: Context) -> Ok:
    """One message is one tick. What it remembers commits together with its outcome."""
    (history,) = await ctx.read(("run",))
    said = [*(history or []), message["text"]]
    for word in reply(said).split():
        ctx.stream("text", f"{word} ")  # stored and shown at once, merged where words come fast
    await ctx.write(("run.set", said))
    return Ok()


def reply(said: list[str]) -> str:
    """In place of a model."""
    return f"You said {said[-1]!r}, and {len(said) - 1} things before that."


async def main(url: str) -> None:
    async with Holdfast(url) as hf:
        hf.register(chat)
        worker = hf.worker()
        working = asyncio.create_task(worker.run())
        run = await hf.create_run(session_id="ada", clog_id="chat", key="the one conversation")
        seen = run.rev
        for text in ("hello", "what is a clog?"):
            await hf.signal(run.run_id, {"text": text})
            print(f"> {text}")
            seen = await show_answer(hf, run.run_id, seen)
        worker.stop()
        await working


async def show_answer(hf: Holdfast, run_id: str, after: int) -> int:
    """Print what the run says until it rests again; the seq to go on from."""
    async for event in hf.events(run_id, after=after, follow=True):
        if event.type == "text":
            print(event.data["content"], end="")
        if event.type == "run_idle":
            print()
            return event.seq
    raise RuntimeError("a conversation does not end")


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1] if len(sys.argv) > 1 else "chat.db"))
