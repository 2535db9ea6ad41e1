"""Messages: which facts have a part in the conversation, and how a run remembers that it has spoken."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from holdfast.protocol import facts
from holdfast.protocol.facts import Fact
from holdfast.protocol.messages import is_message
from holdfast.protocol.outcomes import Done
from tests.protocol.builders import Run, active, ended, fence, idle

ASKED = facts.ToolRequested(
    **fence("c1"),
    slot="|a",
    tool_key="t",
    call_id="t",
    name="search",
    args_sha256="a",
    vendor="local",
)
FINAL = facts.Event(tick_id="c1", claim_token_hash=fence("c1")["claim_token_hash"], type="final", data="so")


@pytest.mark.parametrize("input", [{"text": "hi"}, {"text": "", "more": 1}], ids=repr)
def test_a_text_from_outside_makes_a_run_one_that_has_spoken(input: Any) -> None:
    rested, over = idle(), ended()

    rested.signal("m1", input)
    over.signal("m1", input)

    assert Run(has_input=True, input=input).state.spoken
    assert rested.state.spoken
    assert over.state.spoken


@pytest.mark.parametrize("input", [1, None, "text", {"text": 5}, {"content": "hi"}, [{"text": "hi"}]], ids=repr)
def test_other_inputs_say_nothing(input: Any) -> None:
    run = Run(has_input=True, input=input)

    run.signal("m1", input)
    run.claim()
    run.emit(("text", {"text": "hi"}))
    run.settle(Done({"text": "hi"}))

    assert not run.state.spoken
    assert not any(is_message(fact) for fact, _ in run.entries)


def test_what_a_parent_gives_its_child_nobody_has_said() -> None:
    parent = facts.Parent(run_id="p1", child_key="k")

    assert not Run(has_input=True, input={"text": "hi"}, parent=parent).state.spoken


@pytest.mark.parametrize("fact", [ASKED, FINAL], ids=["tool", "final"])
def test_a_tool_and_an_answer_make_a_run_one_that_has_spoken(fact: Fact) -> None:
    run = active()
    assert not run.state.spoken

    assert run.put(fact) is None

    assert run.state.spoken


@pytest.mark.parametrize("fact", [ASKED, FINAL], ids=["tool", "final"])
def test_who_does_not_hold_the_claim_says_nothing(fact: Fact) -> None:
    run = active()

    assert run.put(replace(fact, claim_token_hash="another")) == "stale_claim"

    assert not run.state.spoken


def test_a_tool_that_is_tried_again_was_already_asked_for() -> None:
    assert is_message(ASKED)
    assert not is_message(replace(ASKED, tries=1))
