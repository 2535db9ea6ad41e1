"""Facts to begin with, and questions about them."""

from __future__ import annotations

from collections.abc import Awaitable
from typing import Any

import pytest

from holdfast import Holdfast, HoldfastError

REQUEST = "6f1c2d9e-0d2b-4c40-8a52-2f1f6f0c9a01"
PARENT = "c0a8f7b2-5a75-4f0c-9c2c-6c7f1f2f3a02"


async def request(hf: Any, call_id: str = "call-1", **options: Any) -> Any:
    told = {"parent_id": PARENT, "vendor": "openai", "tool_name": "search", "arguments_json": {"q": "x"}, **options}
    return await hf.record_tool_call_requested(REQUEST, call_id, **told)


async def complete(hf: Any, call_id: str = "call-1", **options: Any) -> Any:
    return await hf.record_tool_call_done(REQUEST, call_id, **{"status": "completed", "outcome_json": [1], **options})


async def say(hf: Any, id: str, content: str, **options: Any) -> Any:
    told = {"message_id": f"m-{id}", "kind": "user", **options}
    return await hf.upsert_conversation_turn(id, content=content, **told)


async def count(hf: Holdfast, table: str) -> int:
    ((found,),) = await hf.audit.raw_query(f"SELECT count(*) FROM {{s}}{table}")
    return int(found)


async def refused(call: Awaitable[Any], code: str) -> None:
    with pytest.raises(HoldfastError) as caught:
        await call
    assert caught.value.code == code, caught.value
