"""How long the outbox waits before the next try. The caller of the protocol decides; the store only keeps the time."""

from __future__ import annotations

from holdfast import ambient
from holdfast.protocol.backoff import Backoff
from holdfast.protocol.values import whole_number

BASE_S = 60
MAX_S = 3_600
JITTER = 0.3
_SECOND = 1_000_000


def calculate_backoff_with_jitter(
    retry_count: int, base_seconds: int = BASE_S, max_seconds: int = MAX_S, jitter_factor: float = JITTER
) -> int:
    """Whole seconds, at least one: `min(base · 2^retry, max)`, then ± up to the jitter's share of it.

    `retry_count` is the new count, so the first retry waits twice the base.
    """
    # One more, because a policy counts its doublings from the first retry.
    attempt = whole_number(retry_count, "retry_count", 0, 1 << 31) + 1
    policy = Backoff(int(base_seconds * _SECOND), int(max_seconds * _SECOND), jitter_factor)
    spread = ambient.jitter(2.0) - 1.0 if jitter_factor else 0.0
    return max(1, policy.delay_us(attempt, spread=spread) // _SECOND)
