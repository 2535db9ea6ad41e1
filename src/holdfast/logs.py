"""What a process writes about its work: lines for people, or JSON with what each line is about.

A library configures nobody's loggers; the command line does, with `write_logs`.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Mapping
from contextvars import ContextVar
from typing import Any, Protocol

import msgspec

from holdfast import tracing
from holdfast.moments import from_us
from holdfast.redaction import hide_secrets, logger

FIELDS = ("run_id", "session_id", "user_id", "worker_id", "attempt", "request_id")
"""What a line may be about, in their order; `trace_id` and `span_id` follow where somebody collects spans."""
_FOR_PEOPLE = "%(asctime)s %(levelname)s %(name)s %(message)s"


class Subject(Protocol):
    """What lines are about while it is worked on. Asked only when a line is written."""

    @property
    def about(self) -> Mapping[str, Any]: ...


subject: ContextVar[Subject | None] = ContextVar("holdfast_subject", default=None)
"""The tick that is running, or its worker. Tasks and threads that they start have it too."""

request_id: ContextVar[str | None] = ContextVar("holdfast_request_id", default=None)
"""The request that is being answered."""


class JsonLines(logging.Formatter):
    """One JSON object for each line."""

    def format(self, record: logging.LogRecord) -> str:
        told: dict[str, Any] = {
            "at": from_us(int(record.created * 1e6)).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
            **_about(record),
            **tracing.current_ids(),
        }
        if record.exc_text:
            told["error"] = record.exc_text
        elif record.exc_info:
            told["error"] = self.formatException(record.exc_info)
        return msgspec.json.encode(told).decode()


def _about(record: logging.LogRecord) -> dict[str, Any]:
    """What the line says of itself comes first, then what is being worked on."""
    current = subject.get()
    known = {"request_id": request_id.get(), **(current.about if current else {})}
    found = {name: getattr(record, name, None) for name in FIELDS}
    told = {name: known.get(name) if value is None else value for name, value in found.items()}
    return {name: value for name, value in told.items() if value is not None}


def write_logs(*, as_json: bool, everything: bool = False) -> None:
    """From now on what the library and its server say goes to stderr; with `everything`, what the program says too.

    A program that has handlers of its own for everything keeps them.
    """
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonLines() if as_json else logging.Formatter(_FOR_PEOPLE))
    if everything:
        hide_secrets(handler)
        logging.basicConfig(level=logging.INFO, handlers=[handler])
        return
    for told, level in ((logger("holdfast"), logging.INFO), (logger("uvicorn"), logging.WARNING)):
        told.addHandler(handler)
        told.setLevel(level)
        told.propagate = False
