"""Several statements, one instant, all or none."""

from __future__ import annotations

import pytest

from holdfast import Holdfast
from tests.audit.builders import REQUEST, complete, count, refused, request, say


@pytest.mark.clause("P-02", "P-35", "H-P1")
async def test_everything_in_a_transaction_has_one_timestamp(hf: Holdfast) -> None:
    async with hf.audit.transaction() as tx:
        await say(tx, "1", "a")
        await say(tx, "2", "b")
        await request(tx)
        await tx.record_edit_proposed("p", diffs_json=[])
        assert await count(hf, "turns") == 0

    instants = [
        row
        for table in ("turns", "tool_calls", "proposals")
        for row in await hf.audit.raw_query(f"SELECT validity FROM {{s}}{table}")
    ]
    assert len(instants) == 4
    assert len(set(instants)) == 1


@pytest.mark.clause("P-35", "H-P9")
async def test_a_refused_statement_ends_the_transaction_and_nothing_of_it_stays(hf: Holdfast) -> None:
    tx = hf.audit.transaction()
    await say(tx, "1", "a")

    await refused(complete(tx), "not_requested")

    await refused(say(tx, "2", "b"), "transaction_ended")
    await refused(tx.commit(), "transaction_ended")
    assert await count(hf, "turns") == 0


@pytest.mark.clause("P-35")
async def test_after_commit_or_abort_nothing_more_can_be_said(hf: Holdfast) -> None:
    kept, dropped = hf.audit.transaction(), hf.audit.transaction()
    await say(kept, "1", "a")
    await say(dropped, "2", "b")

    await kept.commit()
    await dropped.abort()

    await refused(say(kept, "3", "c"), "transaction_ended")
    await refused(say(dropped, "3", "c"), "transaction_ended")
    assert [turn.id for turn in await hf.audit.list_conversation_since(0)] == ["1"]


@pytest.mark.clause("P-35")
async def test_a_block_that_raises_says_nothing(hf: Holdfast) -> None:
    async def break_off() -> None:
        async with hf.audit.transaction() as tx:
            await say(tx, "1", "a")
            raise RuntimeError("as told")

    with pytest.raises(RuntimeError, match="as told"):
        await break_off()

    assert await count(hf, "turns") == 0


@pytest.mark.clause("P-35", "P-21", "H-P4")
async def test_a_call_that_begins_and_ends_in_one_transaction_is_one_fact(hf: Holdfast) -> None:
    async with hf.audit.transaction() as tx:
        await request(tx, persist_payloads=True)
        await complete(tx)

    found = await hf.audit.get_tool_call(REQUEST, "call-1")

    assert found is not None
    assert (found[0].arguments_json, found[0].status) == ({"q": "x"}, "completed")
    assert found[1] is not None
    assert found[1].latency_ms == 0
    assert await count(hf, "tool_calls") == 1


@pytest.mark.clause("P-35", "H-P9")
async def test_what_changed_before_the_commit_is_judged_again(hf: Holdfast) -> None:
    await request(hf.audit)
    tx = hf.audit.transaction()
    await complete(tx, outcome_json=["mine"])
    await say(tx, "1", "a")
    await complete(hf.audit, outcome_json=["theirs"])

    await refused(tx.commit(), "conflicting_completion")

    assert await count(hf, "turns") == 0
