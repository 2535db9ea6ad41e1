"""What a served process writes: lines for people, or JSON with what each line is about."""

from __future__ import annotations

import logging
import sys
from typing import Any

import msgspec

from holdfast.http.edge import request_id
from holdfast.moments import from_us
from holdfast.redaction import logger

_ABOUT = ("run_id", "session_id", "user_id", "worker_id", "request_id")


class JsonLines(logging.Formatter):
    """One JSON object for each line."""

    def format(self, record: logging.LogRecord) -> str:
        told: dict[str, Any] = {
            "at": from_us(int(record.created * 1e6)).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        for name in _ABOUT:
            value = getattr(record, name, None) or (request_id.get() if name == "request_id" else None)
            if value:
                told[name] = value
        if record.exc_text:
            told["error"] = record.exc_text
        elif record.exc_info:
            told["error"] = self.formatException(record.exc_info)
        return msgspec.json.encode(told).decode()


def write_logs(*, as_json: bool) -> None:
    """From now on what the library and its server say goes to stderr."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(
        JsonLines() if as_json else logging.Formatter("%(asctime)s %(levelname)s %(name)s %(message)s")
    )
    for told, level in ((logger("holdfast"), logging.INFO), (logger("uvicorn"), logging.WARNING)):
        told.addHandler(handler)
        told.setLevel(level)
        told.propagate = False
