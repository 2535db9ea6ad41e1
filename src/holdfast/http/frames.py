"""Events as frames of a stream: LF framing, one line of JSON, and an id that a reader can come back with."""

from __future__ import annotations

from typing import Any, NamedTuple

from holdfast.moments import to_us
from holdfast.protocol.values import canonical
from holdfast.runtime import Event

RETRY_MS = 1_000
COMMENT = b": still here\n\n"
OPENING = f": stream open\nretry: {RETRY_MS}\n\n".encode()
_ONE_LINE = {10: " ", 13: " ", 0: " "}


class Frame(NamedTuple):
    """One event of a run, encoded once for all who follow the run; its id is its seq."""

    run_id: str
    seq: int
    whole: bytes
    is_end: bool

    def told(self, id: str) -> bytes:
        """The same with another id, for a stream whose cursor is not of one run alone."""
        return b"id: " + id.encode() + self.whole[self.whole.index(b"\n") :]


def frame(run_id: str, event: Event, *, is_end: bool) -> Frame:
    text = _text(event.type, event_data(run_id, event))
    return Frame(run_id, event.seq, b"id: %d\n%b" % (event.seq, text), is_end)


def event_data(run_id: str, event: Event) -> dict[str, Any]:
    """The event's own data with what every event has; data that is no object goes under `value`."""
    own = event.data if isinstance(event.data, dict) else {"value": event.data}
    return {
        **own,
        "type": event.type,
        "seq": event.seq,
        "ts": to_us(event.at) // 1_000,
        "run_id": run_id,
        "tick_id": event.tick_id,
        "attempt": event.attempt,
    }


def reset(**data: Any) -> bytes:
    """Tell a reader that its cursor means nothing here. It has no id: nobody can come back with it."""
    return _text("reset", {"type": "reset", **data})


def farewell(retry_ms: int) -> bytes:
    """The last words of a stream that ends before its run: come back, elsewhere, in a moment."""
    return f": stream ends here, come back\nretry: {retry_ms}\n\n".encode()


def _text(type: str, data: dict[str, Any]) -> bytes:
    return f"event: {type.translate(_ONE_LINE)}\ndata: {canonical(data)}\n\n".encode()
