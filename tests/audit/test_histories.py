"""Time travel: at every instant of a random history the audit shows what whoever looked then saw."""

from __future__ import annotations

import asyncio
import contextlib
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from holdfast import Conflict, Holdfast
from holdfast.audit import Audit
from holdfast.audit.recorders import Recorders
from tests.audit.builders import PARENT, REQUEST
from tests.conftest import IN_PROCESS, FakeClock
from tests.contract.builders import assert_sound

IDS = ("a", "b", "c")
_ids = st.sampled_from(IDS)
_turns = st.tuples(st.just("say"), _ids, st.sampled_from(["x", "y", "z"]))
_retractions = st.tuples(st.just("retract"), _ids)
_requests = st.tuples(st.just("request"), _ids, st.sampled_from([1, 2]))
_ends = st.tuples(st.just("end"), _ids, st.sampled_from(["completed", "failed"]), st.sampled_from([1, 2]))
_proposals = st.tuples(st.sampled_from(["propose", "approve", "deny", "apply", "revert"]), _ids)
_statements = st.one_of(_turns, _retractions, _requests, _ends, _proposals)
_commits = st.tuples(
    st.lists(_statements, min_size=1, max_size=4),
    st.sampled_from([0, 0, 0.000001, 0.0005, 1.0]),
)
histories = st.lists(_commits, min_size=1, max_size=12)


async def play(audit: Recorders, statement: tuple[Any, ...]) -> None:
    """Carry out one statement; whether it is allowed is for the audit to say."""
    match statement:
        case ("say", id, content):
            await audit.upsert_conversation_turn(id, message_id=id, kind="user", content=content)
        case ("retract", id):
            await audit.retract_conversation_turn(id)
        case ("request", id, args):
            await audit.record_tool_call_requested(
                REQUEST, id, parent_id=PARENT, tool_name="t", arguments_json=args, persist_payloads=True
            )
        case ("end", id, "completed", value):
            await audit.record_tool_call_done(REQUEST, id, status="completed", outcome_json=value)
        case ("end", id, _, value):
            await audit.record_tool_call_done(REQUEST, id, status="failed", error_kind=f"e{value}")
        case ("propose", id):
            await audit.record_edit_proposed(id, diffs_json=[id])
        case ("approve" | "deny" as word, id):
            await audit.record_edit_decision(id, {"approve": "approved", "deny": "denied"}[word], actor="ada")
        case ("apply", id):
            await audit.record_edit_applied(id)
        case _:
            await audit.record_edit_reverted(statement[1])


async def look(audit: Audit, at: Any = "NOW") -> Any:
    """Everything there is to see."""
    return (
        await audit.list_conversation_since(0, at=at),
        await audit.list_conversation(at=at),
        await audit.list_tool_calls_by_parent(PARENT, at=at),
        await audit.list_tool_calls(status="requested", at=at),
        await audit.list_edit_proposals(at=at),
        await audit.list_edit_proposals(status="approved", at=at),
        [await audit.get_tool_call(REQUEST, id, at=at) for id in IDS],
        [await audit.get_conversation_turn(id, at=at) for id in IDS],
    )


async def commit(audit: Audit, statements: list[tuple[Any, ...]]) -> None:
    """One transaction, or one call; a refused one changes nothing."""
    with contextlib.suppress(Conflict):
        if len(statements) == 1:
            await play(audit, statements[0])
            return
        async with audit.transaction() as tx:
            for statement in statements:
                await play(tx, statement)


async def last_instant(hf: Holdfast) -> int:
    tables = ("turns", "tool_calls", "proposals")
    text = " UNION ALL ".join(f"SELECT max(validity) FROM {{s}}{table}" for table in tables)
    return max((row[0] for row in await hf.audit.raw_query(text) if row[0] is not None), default=0)


async def live(url: str, schema: str, history: list[tuple[list[tuple[Any, ...]], float]]) -> None:
    clock = FakeClock()
    async with Holdfast(url, clock=clock, schema=schema) as hf:
        for name in ("turns", "tool_calls", "proposals"):
            await hf.journal.store.execute((f"DELETE FROM {{s}}{name}", ()))
        seen: dict[int, Any] = {}
        for statements, pause_s in history:
            clock.advance(pause_s)
            await commit(hf.audit, statements)
            seen[await last_instant(hf)] = await look(hf.audit)
        instants = sorted(seen)
        for at, then in pairwise(instants):
            assert await look(hf.audit, at) == seen[at] == await look(hf.audit, then - 1)
        assert await look(hf.audit, "END") == seen[instants[-1]]
        await assert_sound(hf)


@pytest.mark.clause("P-01", "P-02", "P-03", "P-04", "P-06", "H-P1")
@pytest.mark.parametrize("configuration", IN_PROCESS, indirect=True)
@settings(max_examples=25, deadline=None, suppress_health_check=list(HealthCheck))
@given(history=histories)
def test_every_instant_shows_what_was_seen_then(
    database_url: str, schema: str, history: list[tuple[list[tuple[Any, ...]], float]]
) -> None:
    asyncio.run(live(database_url, schema, history))
