"""Creation requests as facts: every argument checked before anything is written."""

from __future__ import annotations

from typing import Any

from holdfast.errors import InvalidValue
from holdfast.identity import check_id, check_name
from holdfast.protocol import facts
from holdfast.protocol.backoff import RetryPolicy
from holdfast.protocol.commands import Create
from holdfast.protocol.outcomes import UNSET
from holdfast.protocol.values import clean, fingerprint, whole_number

MODES = ("session", "single")


def creation(
    *,
    session_id: str,
    clog_id: str,
    input: Any = UNSET,
    retry: RetryPolicy | None = None,
    key: str | None = None,
    queue: str = "default",
    lane: str | None = None,
    priority: int = 0,
    mode: str = "session",
    user_id: str = "local",
    max_deliveries: int = 5,
    metadata: dict[str, Any] | None = None,
    resumable: bool = True,
) -> Create:
    """The command that creates this run, or `InvalidValue` that names the argument at fault."""
    policy = RetryPolicy() if retry is None else retry
    if not isinstance(policy, RetryPolicy):
        raise InvalidValue(f"retry must be a RetryPolicy, got a {type(policy).__name__}")
    if metadata is not None and not isinstance(metadata, dict):
        raise InvalidValue(f"metadata must be an object (dict), got a {type(metadata).__name__}")
    has_input = input is not UNSET
    value, repaired = clean(input if has_input else None)
    notes, repaired_notes = clean(metadata) if metadata else ({}, False)
    if mode not in MODES:
        raise InvalidValue(f"mode is {mode!r}; use one of {', '.join(MODES)}")
    fact = facts.RunCreated(
        session_id=check_id(session_id, "session_id"),
        clog_id=check_id(clog_id, "clog_id"),
        user_id=check_id(user_id, "user_id"),
        queue=check_id(queue, "queue"),
        lane=None if lane is None else check_id(lane, "lane"),
        mode=mode,
        priority=whole_number(priority, "priority", -(1 << 15), (1 << 15) - 1),
        max_attempts=whole_number(policy.max_attempts, "max_attempts", 1, 1 << 30),
        backoff_us=whole_number(policy.backoff_ms, "backoff_ms", 0, 1 << 40) * 1_000,
        backoff_max_us=whole_number(policy.backoff_max_ms, "backoff_max_ms", 0, 1 << 40) * 1_000,
        max_deliveries=whole_number(max_deliveries, "max_deliveries", 1, 1 << 30),
        resumable=bool(resumable),
        has_input=has_input,
        input=value,
        metadata=notes,
        repaired=repaired or repaired_notes,
    )
    if key is None:
        return Create(fact=fact)
    body_digest = fingerprint(fact)
    keyed = {"key": check_name(key, "key"), "key_digest": body_digest}
    return Create(fact=facts.from_value("run_created", _plain(fact, keyed)), **keyed)  # type: ignore[arg-type]


def _plain(fact: facts.RunCreated, extra: dict[str, str]) -> dict[str, Any]:
    return {**{name: getattr(fact, name) for name in fact.__struct_fields__}, **extra}
