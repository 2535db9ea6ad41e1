"""Sinks: who delivers what. A sink is a function of yours, for one target space or for all that begin alike."""

from __future__ import annotations

import asyncio
import hashlib
import inspect
from collections.abc import Awaitable, Callable, Iterator
from typing import Any

from holdfast import ambient
from holdfast.errors import DeliveryFailed, InvalidValue
from holdfast.identity import check_name
from holdfast.outbox.backoff import BASE_S, JITTER, MAX_S, calculate_backoff_with_jitter
from holdfast.protocol.values import whole_number
from holdfast.store.outbox_rows import ClaimTerms

Deliver = Callable[..., Any]
Call = Callable[..., Awaitable[Any]]
"""How a function of either kind is called: `await call(function, *args, **options)`."""
CONCURRENCY = 16
_EXTRAS = ("idempotency_key", "target_space", "outbox_id")


def delivery_key(target_space: str, payload_sha: str) -> str:
    """What a receiver can tell repeats by: the same for every try, of this row and of its twins."""
    return hashlib.sha256((target_space + payload_sha).encode()).hexdigest()


class Sink:
    """A function that delivers, how many of its deliveries run at once, how many begin in a second, and its retries."""

    def __init__(
        self,
        pattern: str,
        deliver: Deliver,
        *,
        concurrency: int = CONCURRENCY,
        rate: float | None = None,
        timeout: float | None = None,
        max_retries: int | None = None,
        base_seconds: int = BASE_S,
        max_seconds: int = MAX_S,
        jitter_factor: float = JITTER,
    ) -> None:
        self.pattern = check_name(pattern, "target_space")
        self.is_prefix = pattern.endswith(":*")
        self.name = pattern.removesuffix("*") if self.is_prefix else pattern
        if "*" in self.name:
            raise InvalidValue(f"{pattern!r} is no target space; use an exact name, or a prefix such as 'mail:*'")
        if rate is not None and not rate > 0:
            raise InvalidValue("rate is how many deliveries may begin in a second; it must be above 0")
        self.concurrency = whole_number(concurrency, "concurrency", 1, 10_000)
        self.max_retries = max_retries
        self._deliver = deliver
        self._extras = _accepted(deliver)
        self._timeout = timeout
        self._backoff = (base_seconds, max_seconds, jitter_factor)
        self._rate = rate
        self._full_until = 0.0
        self._slots = asyncio.Semaphore(self.concurrency)
        self._given = 0
        self._begun = 0

    def takes(self, target_space: str) -> bool:
        return target_space.startswith(self.name) if self.is_prefix else target_space == self.name

    def backoff_s(self, retry_count: int) -> int:
        return calculate_backoff_with_jitter(retry_count, *self._backoff)

    @property
    def free(self) -> int:
        """How many more rows it can take now: slots, and what its rate lets begin within a second."""
        free = self.concurrency - self._given
        if self._rate is None:
            return max(free, 0)
        waiting = self._given - self._begun
        ahead = min(ambient.monotonic() + 1.0 - self._full_until, 1.0)
        return max(min(free, max(int(ahead * self._rate), int(ahead >= 1.0)) - waiting), 0)

    @property
    def opens_in_s(self) -> float | None:
        """When its rate lets it take another row; None where the rate is not what keeps it from that."""
        if self._rate is None or self._given >= self.concurrency or self.free:
            return None
        # Once those that wait for it have begun; with none of them a second before, as much as that is worth a row.
        early_s = 0.0 if self._given > self._begun else max(1.0 - 1.0 / self._rate, 0.0)
        return max(self._full_until - early_s - ambient.monotonic(), 0.0)

    @property
    def is_half_free(self) -> bool:
        return 2 * self._given <= self.concurrency

    def take(self) -> None:
        """A row is on its way to this sink."""
        self._given += 1

    def done(self) -> None:
        self._given -= 1

    async def deliver(self, call: Call, payload: Any, **extras: Any) -> Any:
        """Call the function, when a slot is free and the rate allows it."""
        wanted = {name: extras[name] for name in self._extras}
        async with self._slots:
            await self._keep_the_rate()
            self._begun += 1
            try:
                if self._timeout is None:
                    return await call(self._deliver, payload, **wanted)
                async with asyncio.timeout(self._timeout):
                    return await call(self._deliver, payload, **wanted)
            finally:
                self._begun -= 1

    async def _keep_the_rate(self) -> None:
        if self._rate is None:
            return
        now = ambient.monotonic()
        begin = max(now, self._full_until)
        self._full_until = begin + 1 / self._rate
        if begin > now:
            await asyncio.sleep(begin - now)


class Sinks:
    """The sinks of this process. The most exact one delivers: a whole name first, then the longest prefix."""

    def __init__(self) -> None:
        self._sinks: list[Sink] = []

    def __bool__(self) -> bool:
        return bool(self._sinks)

    def __iter__(self) -> Iterator[Sink]:
        return iter(self._sinks)

    def add(self, sink: Sink) -> None:
        if any(other.pattern == sink.pattern for other in self._sinks):
            raise InvalidValue(f"{sink.pattern} has a sink already; a row is delivered by one")
        self._sinks = sorted([*self._sinks, sink], key=lambda each: (each.is_prefix, -len(each.name), each.name))

    def of(self, target_space: str) -> Sink:
        return next(sink for sink in self._sinks if sink.takes(target_space))

    def all_terms(self) -> ClaimTerms:
        """Everything that some sink here delivers."""
        return _terms(self._sinks, [])

    def terms(self, sink: Sink) -> ClaimTerms:
        """What this sink delivers, and no more exact one does."""
        return _terms([sink], self._sinks[: self._sinks.index(sink)] if sink.is_prefix else [])


def _terms(sinks: list[Sink], but: list[Sink]) -> ClaimTerms:
    return ClaimTerms(
        *("", 0, "", "", 0),
        spaces=tuple(sink.name for sink in sinks if not sink.is_prefix),
        prefixes=tuple(sink.name for sink in sinks if sink.is_prefix),
        but_spaces=tuple(sink.name for sink in but if not sink.is_prefix),
        but_prefixes=tuple(sink.name for sink in but if sink.is_prefix),
    )


def error_kind(error: BaseException) -> str:
    """The error in one word: `connection_error`, `api_error:<status>`, or the name of its class."""
    status = getattr(error, "status", None) or getattr(error, "status_code", None)
    if isinstance(status, int):
        return f"api_error:{status}"
    if isinstance(error, OSError):
        # Python's timeouts are among them.
        return "connection_error"
    return type(error).__name__


def retry_after_s(error: BaseException) -> float | None:
    """When the receiver wants to be asked again, if it said so."""
    after = error.retry_after if isinstance(error, DeliveryFailed) else None
    return None if after is None else max(float(after), 0.0)


def _accepted(deliver: Deliver) -> tuple[str, ...]:
    """Which of what we can tell the function wants to be told."""
    parameters = inspect.signature(deliver).parameters.values()
    if any(each.kind is inspect.Parameter.VAR_KEYWORD for each in parameters):
        return _EXTRAS
    named = {each.name for each in parameters if each.kind is not inspect.Parameter.POSITIONAL_ONLY}
    return tuple(name for name in _EXTRAS if name in named)
