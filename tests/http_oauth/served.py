"""The runtime that a served process of the canary test loads: `tests.http_oauth.served:make`.

Its clog is careless with everything it knows: it tells all of it in errors and in the log. What its claims are called
is noted in a file for the test, which could not know it otherwise.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from holdfast import Clog, Context, Done, Holdfast, Retry, ToolFailed
from holdfast.redaction import logger
from holdfast.runtime.claims import Claims, Taken

USER = "ada"
log = logger("holdfast.canary")


def make() -> Holdfast:
    hf = Holdfast(os.environ["HOLDFAST_DATABASE_URL"], schema=os.environ["HOLDFAST_SCHEMA"])
    hf.register(careless(hf))
    note_claim_tokens(Path(os.environ["TEST_DIARY"]))
    return hf


def careless(hf: Holdfast) -> Clog:
    clog = Clog("careless")

    @clog.on_advance
    async def advance(given: Any, ctx: Context) -> Done | Retry:
        access_token = await hf.credentials.access_token("openai", USER)
        provider_key = await hf.settings.provider_key("openai", USER)
        told = f"{access_token} and {provider_key} and {os.environ['CANARY_PASSWORD']}"
        log.warning("attempt %d with %s", ctx.attempt, told)

        def refuse(args: Any) -> None:
            raise PermissionError(f"401 for Authorization: Bearer {access_token}")

        try:
            await ctx.tool("ask", {"model": "small"}, refuse)
        except (PermissionError, ToolFailed) as error:
            log.error("the model refused", exc_info=error)
        if ctx.attempt == 0:
            return Retry(f"cannot go on with {told}", after=0.01)
        await ctx.emit("final", {"content": "nothing to tell"})
        return Done({"attempts": ctx.attempt + 1})

    return clog


def note_claim_tokens(diary: Path) -> None:
    take = Claims.take

    async def noting(self: Claims, *args: Any, **options: Any) -> list[Taken]:
        taken = await take(self, *args, **options)
        with diary.open("a") as lines:
            lines.writelines(f"{item.claim.token}\n" for item in taken)
        return taken

    Claims.take = noting  # type: ignore[method-assign]
