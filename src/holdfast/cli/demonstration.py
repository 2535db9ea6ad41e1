"""The demonstration clog `chat`: it streams an answer, uses a harmless tool, and asks a person where it should."""

from __future__ import annotations

import asyncio
from typing import Any

from holdfast.facade import Holdfast
from holdfast.flow import FlowContext

PACE_S = 0.03
ASKS = "publish"
ASKED_BY = (ASKS, "approve", "approval")
"""Say one of these, and the clog asks for permission."""


def register_demonstration(hf: Holdfast) -> None:
    """Make `chat` known here. It needs no model and no key."""

    @hf.flow("chat")
    async def chat(ctx: FlowContext, input: Any) -> dict[str, Any]:
        text = str(input.get("text", "")) if isinstance(input, dict) else str(input)
        counted = await ctx.tool("count_words", {"text": text}, _count)
        if any(word in text.lower() for word in ASKED_BY):
            decision = await ctx.approval(ASKS, details={"text": text})
            if not decision.approved:
                answer = "Then I leave it as it is."
                await ctx.emit("final", {"content": answer})
                return {"answer": answer}
        answer = _answer(text, counted["words"])
        await ctx.step("speak", _speak, ctx, answer)
        await ctx.emit("final", {"content": answer})
        return {"answer": answer}


async def _speak(ctx: FlowContext, answer: str) -> int:
    words = answer.split(" ")
    for place, word in enumerate(words):
        ctx.stream("text", word if place == 0 else f" {word}")
        await asyncio.sleep(PACE_S)
    return len(words)


def _count(args: dict[str, Any]) -> dict[str, int]:
    return {"words": len(args["text"].split())}


def _answer(text: str, words: int) -> str:
    return (
        f"You said “{text}”, which is {words} word{'' if words == 1 else 's'}. "
        f"Every part of this answer was stored before you saw it: stop the server in the middle, start it again, "
        f"and it goes on. Say “{ASKS}” and I ask you first."
    )
