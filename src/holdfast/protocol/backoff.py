"""How long to wait before the next try: one policy for runs, steps and the outbox."""

from __future__ import annotations

import msgspec


class Backoff(msgspec.Struct, frozen=True):
    """Doubling delays with a cap. `jitter` spreads them by ± that share, applied after the cap."""

    base_us: int
    cap_us: int
    jitter: float = 0.0
    first_exponent: int = 0

    def delay_us(self, attempt: int, *, spread: float = 0.0) -> int:
        """The delay before try number `attempt` (1 = the first retry). `spread` is in −1…1 and comes from outside."""
        exponent = min(self.first_exponent + max(attempt - 1, 0), 62)
        delay = min(self.base_us << exponent, self.cap_us)
        return max(delay + int(delay * self.jitter * spread), 0)


class RetryPolicy(msgspec.Struct, frozen=True):
    """How often one input is tried, and how long between tries (1 s, 2 s, 4 s … never above the maximum)."""

    max_attempts: int = 3
    backoff_ms: int = 1_000
    backoff_max_ms: int = 60_000
