"""Retention forgets whole keys, and only those that are over."""

from __future__ import annotations

from datetime import timedelta

import pytest

from holdfast import Holdfast
from tests.audit.builders import REQUEST, complete, count, refused, request, say
from tests.conftest import FakeClock


@pytest.mark.clause("H-P10", "P-36")
async def test_what_nothing_was_added_to_for_long_enough_is_forgotten_whole(hf: Holdfast, clock: FakeClock) -> None:
    await say(hf.audit, "old", "a")
    await say(hf.audit, "edited", "a")
    await request(hf.audit, "over")
    await complete(hf.audit, "over")
    await request(hf.audit, "open")
    for name in ("denied", "pending"):
        await hf.audit.record_edit_proposed(name, diffs_json=[])
    await hf.audit.record_edit_decision("denied", "denied", actor="ada")
    clock.advance(3_600)
    await say(hf.audit, "edited", "b")

    assert await hf.audit.gc(timedelta(minutes=30)) == {"turns": 1, "tool_calls": 1, "proposals": 1}

    assert await hf.audit.gc(1_800) == {"turns": 0, "tool_calls": 0, "proposals": 0}
    assert [turn.id for turn in await hf.audit.list_conversation_since(0)] == ["edited"]
    assert await count(hf, "turns") == 2
    assert await hf.audit.get_tool_call(REQUEST, "over") is None
    assert await hf.audit.get_tool_call(REQUEST, "open") is not None
    assert [found.request_id for found in await hf.audit.list_edit_proposals()] == ["pending"]
    await refused(hf.audit.gc(-1), "invalid_value")
    await refused(hf.as_user("ada").audit.gc(1), "not_allowed")
