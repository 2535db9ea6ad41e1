"""Spans of OpenTelemetry where somebody collects them, and nothing where nobody does.

The names are those of the GenAI conventions, which are still in development: what changes there changes here alone.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import lru_cache
from importlib import import_module
from typing import Any

INVOKE_AGENT = "invoke_agent"
EXECUTE_TOOL = "execute_tool"

OPERATION = "gen_ai.operation.name"
AGENT_NAME = "gen_ai.agent.name"
CONVERSATION_ID = "gen_ai.conversation.id"
TOOL_NAME = "gen_ai.tool.name"
TOOL_TYPE = "gen_ai.tool.type"
TOOL_CALL_ID = "gen_ai.tool.call.id"
ERROR_TYPE = "error.type"

RUN_ID = "holdfast.run_id"
PARENT_RUN_ID = "holdfast.parent_run_id"
TICK_ID = "holdfast.tick_id"
STEP = "holdfast.step"
QUEUE = "holdfast.queue"
ATTEMPT = "holdfast.attempt"
DELIVERIES = "holdfast.deliveries"
OUTCOME = "holdfast.outcome"
STATUS = "holdfast.status"

RELEASED = "released"
"""The outcome of an attempt that ended without one."""

_TRACEPARENT = re.compile(r"00-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})")


def _found() -> Any:
    try:
        return import_module("opentelemetry.trace")
    except ModuleNotFoundError:
        return None


_trace = _found()
_ELSEWHERE = object()


class Span:
    """A span that is open. No value of a program becomes an attribute: values hold secrets, spans are for people."""

    def __init__(self, span: Any) -> None:
        self._span = span

    @property
    def traceparent(self) -> str | None:
        """What a later span needs to point back at this one; None if nobody will ever see this one."""
        context = self._span.get_span_context()
        if not context.is_valid or not context.trace_flags.sampled:
            return None
        return f"00-{context.trace_id:032x}-{context.span_id:016x}-{int(context.trace_flags):02x}"

    def tell(self, attributes: Mapping[str, Any]) -> None:
        self._span.set_attributes(attributes)

    def fail(self, kind: str) -> None:
        """It ended in an error of this kind. Its text is not for spans."""
        self._span.set_attribute(ERROR_TYPE, kind)
        self._span.set_status(_trace.Status(_trace.StatusCode.ERROR, kind))


def is_on() -> bool:
    """Has this process a provider of tracers? Without one no span is made, nor anything that one would need."""
    return _provider() is not None


def current_ids() -> dict[str, str]:
    """The trace and span that are open here, for lines of the log; nothing where nobody collects them."""
    if not is_on():
        return {}
    context = _trace.get_current_span().get_span_context()
    return {"trace_id": f"{context.trace_id:032x}", "span_id": f"{context.span_id:016x}"} if context.is_valid else {}


@contextmanager
def span(name: str, attributes: Mapping[str, Any]) -> Iterator[None]:
    """What happens inside is one span of whatever is going on, which ends in error if it raises."""
    provider = _provider()
    if provider is None:
        yield
        return
    with _opened(provider, name, attributes):
        yield


@contextmanager
def root(name: str, attributes: Mapping[str, Any], *, after: str | None) -> Iterator[Span]:
    """A span that is part of no other. `after` is the traceparent of the one it follows: a link, however long ago.

    For a process that has a provider; ask `is_on` first.
    """
    context = _context_of(after)
    links = [] if context is None else [_trace.Link(context)]
    # Whoever happens to run it is not its cause.
    nobody = _trace.set_span_in_context(_trace.INVALID_SPAN)
    with _opened(_provider(), name, attributes, links=links, context=nobody) as current:
        yield current


@contextmanager
def _opened(provider: Any, name: str, attributes: Mapping[str, Any], **options: Any) -> Iterator[Span]:
    quiet = {"record_exception": False, "set_status_on_exception": False}
    tracer = _tracer(provider)
    with tracer.start_as_current_span(name, attributes=dict(attributes), **quiet, **options) as opened:
        current = Span(opened)
        try:
            yield current
        except Exception as error:
            current.fail(type(error).__name__)
            raise


def _provider() -> Any:
    if _trace is None:
        return None
    # Asked at every tick, and the public question reads the environment each time. A version that keeps its provider
    # elsewhere is asked in public.
    provider = getattr(_trace, "_TRACER_PROVIDER", _ELSEWHERE)
    if provider is None:
        return None
    if provider is _ELSEWHERE:
        provider = _trace.get_tracer_provider()
    return None if isinstance(provider, (_trace.NoOpTracerProvider, _trace.ProxyTracerProvider)) else provider


@lru_cache(maxsize=1)
def _tracer(provider: Any) -> Any:
    return provider.get_tracer("holdfast")


def _context_of(traceparent: str | None) -> Any:
    found = _TRACEPARENT.fullmatch(traceparent or "")
    if found is None:
        return None
    trace_id, span_id, flags = (int(part, 16) for part in found.groups())
    context = _trace.SpanContext(trace_id, span_id, is_remote=True, trace_flags=_trace.TraceFlags(flags))
    return context if context.is_valid else None
