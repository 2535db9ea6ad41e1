"""The audit without an event loop: the same recorders, the same transactions, blocking."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from holdfast import Conflict, Holdfast


@pytest.fixture
def hf(database_url: str, schema: str) -> Iterator[Holdfast]:
    """A runtime that nobody opened."""
    holdfast = Holdfast(database_url, schema=schema)
    yield holdfast
    report = holdfast.sync.fsck()
    holdfast.sync.close()
    assert report.ok, report.problems


def say(where: Any, turn_id: str, content: str = "hello") -> Any:
    return where.upsert_conversation_turn(turn_id, message_id=f"m-{turn_id}", kind="user", content=content)


def turns(hf: Holdfast) -> list[Any]:
    found: list[Any] = hf.sync.audit.list_conversation_since(0)
    return found


@pytest.mark.clause("P-35", "P-02")
def test_what_is_said_in_one_block_enters_together(hf: Holdfast) -> None:
    with hf.sync.audit.transaction() as tx:
        say(tx, "1")
        say(tx, "2")
        tx.record_edit_proposed("p", diffs_json=[])
        assert turns(hf) == []

    assert [turn.id for turn in turns(hf)] == ["1", "2"]
    assert len({turn.validity for turn in turns(hf)}) == 1
    assert hf.sync.audit.get_edit_proposal("p") is not None


@pytest.mark.clause("P-35")
def test_abort_and_a_block_that_raises_say_nothing(hf: Holdfast) -> None:
    def break_off() -> None:
        with hf.sync.audit.transaction() as tx:
            say(tx, "2")
            raise RuntimeError("as told")

    with hf.sync.audit.transaction() as tx:
        say(tx, "1")
        tx.abort()
    with pytest.raises(RuntimeError, match="as told"):
        break_off()

    assert turns(hf) == []
    with pytest.raises(Conflict) as caught:
        say(tx, "3")
    assert caught.value.code == "transaction_ended"


@pytest.mark.clause("P-35")
def test_it_can_be_committed_by_hand_and_for_one_user(hf: Holdfast) -> None:
    tx = hf.sync.as_user("ada").audit.transaction()
    say(tx, "1")

    said = tx.commit()

    assert said == turns(hf)[0].validity
    assert [turn.id for turn in hf.sync.as_user("ada").audit.list_conversation_since(0)] == ["1"]
    assert hf.sync.as_user("bob").audit.list_conversation_since(0) == []
