"""The run machine as a table: every change of status that can happen, and what causes it.

`evolve` computes a status from what is open; this table is the law that its answers are checked against, and the
source of the diagram in the documentation.
"""

from __future__ import annotations

from holdfast.protocol import facts
from holdfast.protocol.facts import Fact
from holdfast.protocol.state import TERMINAL

NEW = "new"
"""Before the first entry."""

_LIVE = ("idle", "pending", "active", "waiting", "paused")

TRANSITIONS: frozenset[tuple[str, str, str]] = frozenset(
    {
        (NEW, "create", "idle"),
        (NEW, "create", "pending"),
        ("idle", "signal", "pending"),
        ("waiting", "signal", "pending"),
        ("pending", "claim", "active"),
        ("waiting", "claim", "active"),
        ("active", "ok", "idle"),
        ("active", "ok", "pending"),
        ("active", "ok", "waiting"),
        ("active", "continue", "pending"),
        ("active", "wait", "waiting"),
        ("active", "wait", "pending"),
        ("active", "retry", "pending"),
        ("active", "abandon", "pending"),
        ("idle", "schedule", "pending"),
        ("idle", "schedule", "waiting"),
        ("waiting", "schedule", "pending"),
        ("active", "complete", "idle"),
        ("active", "complete", "pending"),
        ("active", "complete", "waiting"),
        ("active", "fail_step", "idle"),
        ("active", "fail_step", "pending"),
        ("active", "fail_step", "waiting"),
        *(("active", "expand", status) for status in ("idle", "pending", "waiting")),
        *((status, "compensate", "idle") for status in ("pending", "waiting")),
        ("pending", "compensate", "waiting"),
        ("active", "fork", "pending"),
        *((status, "pause", "paused") for status in _LIVE if status != "paused"),
        *(("paused", "resolve", status) for status in _LIVE if status != "paused"),
        *((status, "end", terminal) for status in _LIVE for terminal in sorted(TERMINAL)),
    }
)

_CAUSES: dict[type[Fact], str] = {
    facts.RunCreated: "create",
    facts.SignalReceived: "signal",
    facts.AttemptClaimed: "claim",
    facts.TickAbandoned: "abandon",
    facts.AttemptScheduled: "schedule",
    facts.AttemptCompleted: "complete",
    facts.AttemptFailed: "fail_step",
    facts.MapExpanded: "expand",
    facts.CompensationBegun: "compensate",
    facts.RunForked: "fork",
    facts.ManualStepPaused: "pause",
    facts.ManualStepResolved: "resolve",
    facts.RunTerminal: "end",
}


def cause(fact: Fact) -> str | None:
    """The word under which this fact stands in the table, or None if it never moves a status."""
    if isinstance(fact, facts.TickSettled):
        return fact.outcome
    return _CAUSES.get(type(fact))


def diagram() -> str:
    """The table as a Mermaid state diagram."""
    lines = ["stateDiagram-v2"]
    lines += [
        f"    {'[*]' if source == NEW else source} --> {target}: {why}" for source, why, target in sorted(TRANSITIONS)
    ]
    lines += [f"    {status} --> [*]" for status in sorted(TERMINAL)]
    return "\n".join(lines) + "\n"
