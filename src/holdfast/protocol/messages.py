"""Which facts are messages of their session's conversation: what was asked, what tools did, what was answered."""

from __future__ import annotations

from holdfast.protocol import facts
from holdfast.protocol.facts import Fact

FINAL = "final"
"""The event that is an answer."""


def is_message(fact: Fact) -> bool:
    """Whether the fact says something in the conversation. A tool that is tried again was already asked for."""
    match fact:
        # First, because there are the most of them.
        case facts.Event():
            return fact.type == FINAL
        case facts.RunCreated():
            # What a parent gives its child nobody has said.
            return fact.parent is None and _is_text(fact)
        case facts.SignalReceived():
            return _is_text(fact)
        case facts.ToolRequested():
            return fact.tries == 0
        case _:
            return isinstance(fact, facts.ToolAnswered)


def _is_text(fact: facts.RunCreated | facts.SignalReceived) -> bool:
    return fact.has_input and isinstance(fact.input, dict) and isinstance(fact.input.get("text"), str)
