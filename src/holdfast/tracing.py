"""Spans of OpenTelemetry where it is installed, and nothing where it is not."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from importlib import import_module
from typing import Any


def _found() -> Any:
    try:
        return import_module("opentelemetry.trace")
    except ModuleNotFoundError:
        return None


_trace = _found()


@contextmanager
def span(name: str, attributes: Mapping[str, Any]) -> Iterator[None]:
    """What happens inside is one span, which ends in error if it raises. No value of a program becomes an attribute."""
    if _trace is None:
        yield
        return
    tracer = _trace.get_tracer("holdfast")
    options = {"attributes": dict(attributes), "record_exception": False, "set_status_on_exception": False}
    with tracer.start_as_current_span(name, **options) as current:
        try:
            yield
        except Exception as error:
            # The text of an error may hold secrets, and a span is for people.
            current.set_status(_trace.Status(_trace.StatusCode.ERROR, type(error).__name__))
            raise
