"""Events of the library in words: what `tail` says to people."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

Data = dict[str, Any]
INSTANT_MAX_US = 253_402_300_799_000_000
"""The end of the year 9999, after which no calendar goes."""


def words(type: str, data: Any) -> str | None:
    """What an event of this type says, or None if it is a handler's and speaks for itself."""
    speak = _WORDS.get(type)
    # A handler may use our names for data of its own.
    return speak(data) if speak is not None and isinstance(data, dict) else None


def _waits(data: Data) -> str:
    awaits, until, delay = data.get("awaits"), _number(data.get("until_us")), _number(data.get("delay_us"))
    waits = [_awaited(*str(what).partition(":")[::2]) for what in (awaits if isinstance(awaits, list) else ())]
    if until is not None:
        waits.append(f"until {datetime.fromtimestamp(until // 1_000_000, UTC):%Y-%m-%d %H:%M:%S} UTC")
    elif delay is not None:
        waits.append(f"for {_span(delay)}")
    return f"waits {' or '.join(waits) or 'for a signal'}"


def _awaited(kind: str, name: str) -> str:
    named = {"child": f"for child run {name}", "approval": f"for an answer to {name!r}"}
    return named.get(kind) or (f"for signal {name!r}" if name else "for a signal")


def _step(data: Data) -> str:
    name, error = data.get("step_id"), data.get("error")
    match data.get("status"):
        case "completed":
            return f"step {name!r} is done"
        case "retrying":
            return f"step {name!r} failed: {error}; it is tried again"
        case _:
            return f"step {name!r} failed: {error}"


def _resolved(data: Data) -> str:
    done = {"approve": "approved", "reject": "rejected", "resume": "resumed"}.get(str(data.get("action")), "answered")
    return f"{data.get('actor') or 'somebody'} {done} {data.get('step')!r}{_because(data.get('comment'))}"


def _asks(data: Data) -> str:
    details = data.get("metadata")
    return f"asks for approval of {data.get('step')!r}{_because(details)}"


def _ended(data: Data) -> str:
    match data.get("run_status"):
        case "failed":
            return f"failed{_because(data.get('error'))}"
        case "cancelled":
            return "was cancelled"
        case _:
            return f"is done{_because(data.get('output'))}"


def _started(data: Data) -> str:
    attempt = _number(data.get("attempt"))
    return f"is worked on, try {attempt + 1}" if attempt else "is worked on"


def _retries(data: Data) -> str:
    return f"failed: {data.get('error')}; it is tried again in {_span(_number(data.get('delay_us')) or 0)}"


def _stops(data: Data) -> str:
    return f"{data.get('actor') or 'somebody'} wants it to stop{_because(data.get('reason'))}"


def _number(value: Any) -> int | None:
    return value if isinstance(value, int) and 0 <= value <= INSTANT_MAX_US else None


def _because(said: Any) -> str:
    return f": {said}" if said not in (None, "", {}) else ""


def _span(microseconds: int) -> str:
    return str(timedelta(microseconds=microseconds)) if microseconds >= 1_000_000 else f"{microseconds // 1_000} ms"


_WORDS: dict[str, Callable[[Data], str]] = {
    "run_queued": lambda data: f"is queued for clog {data.get('clog_id')} on queue {data.get('queue')}",
    "run_started": _started,
    "run_waiting": _waits,
    "run_retrying": _retries,
    "run_idle": lambda data: "rests",
    "run_paused": lambda data: f"is paused at {data.get('step')!r}{_because(data.get('metadata'))}",
    "step_start": lambda data: f"step {data.get('step_id')!r} begins",
    "step_complete": _step,
    "approval_requested": _asks,
    "approval_resolved": _resolved,
    "approval_expired": lambda data: f"nobody answered {data.get('step')!r} in time",
    "child_started": lambda data: f"started child run {data.get('child_run_id')} of {data.get('clog_id')}",
    "child_finished": lambda data: f"child run {data.get('child_run_id')} is {data.get('status')}",
    "signal_received": lambda data: "got " + (f"signal {data['name']!r}" if data.get("name") else "a signal"),
    "cancel_requested": _stops,
    "tick_abandoned": lambda data: f"a try ended early; what it said from entry {data.get('from_seq')} on is dropped",
    "anomaly": lambda data: f"refused a {data.get('entry_kind')}: {data.get('reason')}",
    "done": _ended,
}
