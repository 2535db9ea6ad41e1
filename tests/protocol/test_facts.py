"""Facts as bodies: what is written comes back, and what cannot be read is never taken for a fact."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given

from holdfast.errors import InvalidEntry
from holdfast.protocol import facts
from holdfast.protocol.facts import Fact
from tests.protocol.strategies import POOLS, any_fact, law

REQUIRED = {
    "run_created": {"session_id", "clog_id"},
    "attempt_claimed": {"claim_id", "claim_token_hash", "owner_id", "lease_us"},
    "attempt_heartbeat": {"claim_id", "claim_token_hash", "lease_us"},
    "tick_settled": {"claim_id", "claim_token_hash", "outcome", "result_digest"},
    "tick_abandoned": {"tick_id", "from_seq", "reason"},
    "run_terminal": {"status"},
    "signal_received": {"signal_id"},
    "cancel_requested": set(),
    "manual_step_paused": {"step", "kind"},
    "manual_step_resolved": {"step", "action"},
    "child_run_started": {"child_run_id", "clog_id", "child_key"},
    "child_run_finished": {"child_run_id", "status"},
    "runnable_planned": {"runnable_key", "step"},
    "attempt_scheduled": {"runnable_key", "step", "idempotency_key"},
    "attempt_completed": {"claim_id", "claim_token_hash", "result_digest"},
    "attempt_failed": {"claim_id", "claim_token_hash", "error", "result_digest"},
    "runnable_applied": {"runnable_key", "result_digest"},
    "workflow_started": {"version", "fingerprint", "graph"},
    "map_expanded": {"claim_id", "claim_token_hash", "items", "result_digest"},
    "compensation_begun": {"step"},
    "live_wakeup_emitted": set(),
    "anomaly": {"reason", "entry_kind"},
    "event": {"type"},
    "run_forked": {"source_run_id", "at_rev"},
    "storage_written": {"tick_id", "clog_id", "writes"},
    "outbox_enqueued": {"tick_id", "outbox_id", "target_space", "payload_sha"},
    "tick_begun": {"tick_id"},
    "endpoint_called": {"tick_id", "clog_id", "method"},
    "lane_entered": set(),
    "step_recorded": {"claim_id", "claim_token_hash", "name"},
    "signal_taken": {"claim_id", "claim_token_hash", "seq", "step"},
    "tool_requested": {"claim_id", "claim_token_hash", "slot", "tool_key", "call_id", "name", "args_sha256"},
    "tool_answered": {"claim_id", "claim_token_hash", "slot", "call_id", "name", "args_sha256", "status"},
    "run_deleted": set(),
}


def test_the_laws_draw_every_field_of_every_fact() -> None:
    assert set(POOLS) == {name for cls in facts.KINDS.values() for name in cls.__struct_fields__}


@law
@given(any_fact)
def test_a_fact_comes_back_from_its_body(fact: Fact) -> None:
    assert facts.decode(fact.kind, facts.encode(fact)) == fact


@law
@given(any_fact)
def test_a_fact_comes_back_from_its_plain_value(fact: Fact) -> None:
    assert facts.from_value(fact.kind, json.loads(facts.encode(fact))) == fact


def test_a_body_carries_its_version_and_no_defaults() -> None:
    assert facts.encode(facts.Event(type="text")) == '{"type":"text","v":1}'


@pytest.mark.clause("SB-2")
def test_the_required_fields_are_a_table() -> None:
    assert {kind: set(facts.required_fields(kind)) for kind in facts.KINDS} == REQUIRED


@pytest.mark.clause("SB-2")
@pytest.mark.parametrize("kind", sorted(kind for kind, fields in REQUIRED.items() if fields))
def test_an_entry_without_its_fields_is_refused_with_their_names(kind: str) -> None:
    given: dict[str, Any] = dict.fromkeys(facts.required_fields(kind))

    for data in ({}, given):
        with pytest.raises(InvalidEntry) as caught:
            facts.from_value(kind, data)

        assert str(caught.value) == f"this {kind} lacks {', '.join(facts.required_fields(kind))}"


@pytest.mark.clause("SB-2")
@pytest.mark.parametrize(
    ("kind", "data", "complaint"),
    [
        ("breakfast", {}, "unknown kind 'breakfast'; a run's thread takes anomaly, attempt_claimed,"),
        ("event", ["type"], "must be an object, got list"),
        ("event", None, "must be an object, got NoneType"),
        ("event", {"type": 7}, "does not fit: Expected `str`"),
        ("event", {"type": "x", 7: 7}, "does not fit"),
        ("event", {"type": "x", "attempt": -1}, "does not fit: Expected `int` >= 0"),
        ("event", {"type": "x", "v": 2}, "version 2, known is 1"),
        ("run_created", {"session_id": "s", "clog_id": "c", "backoff_us": (1 << 56) + 1}, "does not fit"),
        ("run_created", {"session_id": "s", "clog_id": "c", "priority": 40_000}, "does not fit"),
    ],
)
def test_an_entry_that_does_not_fit_is_refused_with_a_reason(kind: str, data: Any, complaint: str) -> None:
    with pytest.raises(InvalidEntry, match=r".") as caught:
        facts.from_value(kind, data)

    assert complaint in str(caught.value)
    assert caught.value.code == "invalid_entry"


@pytest.mark.clause("S-10")
@pytest.mark.parametrize(
    "body",
    [
        "",
        "null",
        "[]",
        '{"type":"x"',
        '{"type":null}',
        '{"typ":"x"}',
        '{"type":"x","data":NaN}',
        '{"type":"x","data":1e400}',
        '{"type":"x","data":"\ud800"}',
        '{"type":"x","data":"\\ud800"}',
        '{"type":"x","v":2}',
        '{"type":"x","v":null}',
        '{"type":"x","data":' + "[" * 100_000 + "]" * 100_000 + "}",
        '{"type":"x","data":' + "9" * 5_000 + "}",
    ],
    ids=lambda body: ascii(body[:30]),
)
def test_a_body_that_cannot_be_read_is_an_error_and_never_a_fact(body: str) -> None:
    with pytest.raises(InvalidEntry, match="event"):
        facts.decode("event", body)


@pytest.mark.clause("S-10")
def test_an_unknown_kind_is_an_error() -> None:
    with pytest.raises(InvalidEntry, match="unknown kind 'breakfast'"):
        facts.decode("breakfast", "{}")
