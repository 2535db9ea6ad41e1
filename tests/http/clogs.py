"""Clogs that say what tests want them to say."""

from __future__ import annotations

import asyncio
from typing import Any

from holdfast import Clog, Context, Done, Fail, Holdfast, Ok, Retry


def register(hf: Holdfast) -> None:
    hf.register(_chat(), _slow(), _counter(), _moody(), _asker())


def _chat() -> Clog:
    """Answers what it is told, in words and at the end in one."""
    chat = Clog("chat")

    @chat.on_advance
    async def advance(input: Any, ctx: Context) -> Done:
        for word in str(input["text"]).split():
            ctx.stream("text", word)
        found = await ctx.tool("count", {"text": input["text"]}, lambda args: len(args["text"].split()))
        await ctx.emit("final", {"content": f"{found} words: {input['text']}"})
        return Done({"words": found})

    return chat


def _slow() -> Clog:
    """Says a number every moment, as often as it is told."""
    slow = Clog("slow")

    @slow.on_advance
    async def advance(input: Any, ctx: Context) -> Done:
        for number in range(int(input["times"])):
            await ctx.emit("number", {"number": number})
            await asyncio.sleep(float(input.get("pace_s", 0.02)))
        await ctx.emit("final", {"content": "done counting"})
        return Done()

    return slow


def _counter() -> Clog:
    """Says many things at once."""
    counter = Clog("counter")

    @counter.on_advance
    async def advance(input: Any, ctx: Context) -> Done:
        size = int(input.get("size", 10))
        for first in range(0, int(input["times"]), 100):
            await ctx.emit_many([("number", {"number": first + n, "pad": "x" * size}) for n in range(100)])
        return Done()

    return counter


def _moody() -> Clog:
    """Ends as it is told."""
    moody = Clog("moody")

    @moody.on_advance
    async def advance(input: Any, ctx: Context) -> Any:
        if input["end"] == "fail":
            return Fail("it did not work")
        if input["end"] == "retry" and ctx.attempt == 0:
            await ctx.emit("final", {"content": "half an answer"})
            return Retry("not yet", after=0)
        await ctx.emit("final", {"content": "whole answer"})
        return Ok()

    return moody


def _asker() -> Clog:
    """Rests until somebody asks it something else."""
    asker = Clog("asker")

    @asker.on_advance
    async def advance(input: Any, ctx: Context) -> Ok:
        await ctx.emit("final", {"content": f"heard {input}"})
        return Ok()

    return asker
