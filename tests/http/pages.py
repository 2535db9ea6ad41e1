"""Conversations that a page has to show right: `tests.http.pages:clog` and `:flow` each have a `chat` of their own."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

from holdfast import Clog, Context, Done, Fail, Holdfast
from holdfast.flow import FlowContext

LEASE_MS = 1_000
KNOWN = "I thought about it, looked, and this is the answer."
"""What the whole of the first conversation comes to."""


def runtime() -> Holdfast:
    return Holdfast(os.environ["HOLDFAST_DATABASE_URL"], lease_ms=LEASE_MS)


def clog() -> Holdfast:
    """A plain clog: what it said in a tick that was lost is said again, what its tools answered is not asked again."""
    hf = runtime()
    chat = Clog("chat")

    @chat.on_advance
    async def advance(input: Any, ctx: Context) -> Done | Fail:
        match input["text"]:
            case "everything":
                return await everything(ctx)
            case "fail":
                return Fail("the model is <b>away</b>")
            case _:
                return await die_in_the_middle(ctx)

    hf.register(chat)
    return hf


def flow() -> Holdfast:
    """A flow: what a finished step said stands, and is not said again."""
    hf = runtime()

    @hf.flow("chat")
    async def chat(ctx: FlowContext, input: Any) -> None:
        await ctx.step("speak", speak, ctx)
        die_once()
        await ctx.step("end", speak_on, ctx)

    return hf


async def everything(ctx: Context) -> Done:
    """All that a page knows how to show, and much that it does not."""
    await ctx.emit("compaction_start", {"reason": "context"})
    await ctx.emit("reasoning", {"content": "First I think, "})
    await ctx.emit("reasoning", {"content": "then I look."})
    await ctx.emit("llm.retry", {"failure_kind": "rate", "next_attempt": 2})
    await ctx.emit("text", {"content": "Let me"})
    await ctx.emit("text", {"content": " look."})
    await ctx.emit("step_start", {"step_id": "1", "title": "look", "step_number": 1})
    await ctx.tool("look", {"at": "<i>it</i>"}, lambda args: f"saw {args['at']}")
    await ctx.emit("step_complete", {"step_id": "1", "status": "completed", "duration_ms": 1})
    await ctx.emit("text", {"content": "I saw"})
    await ctx.emit("text", {"content": " it."})
    await ctx.emit("of a later version", ["no object", {"content": "nor is this"}])
    await ctx.emit("final", {"content": KNOWN})
    return Done()


async def die_in_the_middle(ctx: Context) -> Done:
    await ctx.emit("reasoning", {"content": "Hm. "})
    await ctx.emit("text", {"content": "Looking. "})
    await ctx.tool("look", {}, lambda args: "seen")
    await ctx.emit("text", {"content": "It is"})
    die_once()
    await ctx.emit("text", {"content": " there."})
    return Done()


async def speak(ctx: FlowContext) -> None:
    for word in ("These ", "words ", "stand"):
        await ctx.emit("text", {"content": word})


async def speak_on(ctx: FlowContext) -> None:
    await ctx.emit("text", {"content": ", and these follow."})


def die_once() -> None:
    """As a machine would that lost its power, but only the first to come here."""
    mark = Path(f"{os.environ['HOLDFAST_DATABASE_URL']}.died")
    if not mark.exists():
        mark.touch()
        os.kill(os.getpid(), signal.SIGKILL)
