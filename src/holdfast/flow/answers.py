"""What a flow's body gets or is stopped by: decisions of people, failures of steps, and the two ends of a tick."""

from __future__ import annotations

from datetime import datetime
from typing import Any

import msgspec

from holdfast.errors import HoldfastError
from holdfast.moments import from_us
from holdfast.protocol import facts
from holdfast.protocol.facts import Fact


class Suspended(BaseException):
    """The body waits for something; its tick ends here. No handler of a user's catches this by accident."""


class FlowChanged(BaseException):
    """The code is not the code that this run began with. As hard to catch by accident as a suspension."""


class StepFailed(HoldfastError):
    """A step failed for good. `kind` is the code or class of what it raised."""

    code = "step_failed"

    def __init__(self, name: str, message: str, kind: str) -> None:
        super().__init__(f"step {name} failed: {message}")
        self.name = name
        self.message = message
        self.kind = kind


class Decision(msgspec.Struct, frozen=True, kw_only=True):
    """What a person answered, or that nobody did in time."""

    approved: bool
    actor: str | None = None
    comment: str | None = None
    at: datetime | None = None
    edited: Any = None
    expired: bool = False


def decision_of(fact: Fact, at: int) -> Decision:
    """The answer that this fact, entered at this instant, records."""
    assert isinstance(fact, facts.ManualStepResolved)
    return Decision(
        approved=fact.action in ("approve", "resume"),
        actor=fact.actor,
        comment=fact.comment,
        at=from_us(at),
        edited=fact.edited,
        expired=fact.action == "expire",
    )
