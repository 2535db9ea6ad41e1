"""When facts hold: validity, and the instants that readers look at."""

from __future__ import annotations

from datetime import UTC, datetime

import msgspec

from holdfast.errors import InvalidValue
from holdfast.moments import from_us, to_us
from holdfast.protocol.values import whole_number

END = (1 << 62) - 1
"""The logical end of time. The store gives validities, none of them to come, so `NOW` shows as much."""


class Validity(msgspec.Struct, frozen=True, order=True):
    """From when a fact holds, in microseconds, and whether it asserts or retracts."""

    at: int
    asserted: bool = True

    @property
    def at_ms(self) -> int:
        return self.at // 1_000


At = str | datetime | int | Validity
"""`NOW`, `END`, a text of RFC 3339, an aware datetime, microseconds since the epoch, or the validity of a fact."""


def instant(at: At) -> int:
    """The microsecond that a reader means."""
    if isinstance(at, Validity):
        return at.at
    if isinstance(at, datetime):
        return _aware(at)
    if not isinstance(at, str):
        return whole_number(at, "at", 0, END)
    if at.upper() in ("NOW", "END"):
        return END
    try:
        # RFC 3339 lets its two letters be small.
        return _aware(datetime.fromisoformat(at.upper()))
    except ValueError as error:
        if isinstance(error, InvalidValue):
            raise
        text = f"at must be NOW, END, a time like 2026-11-16T12:00:00Z, a datetime or microseconds; got {at!r}"
        raise InvalidValue(text) from error


def caller_us(moment: datetime | int | None, name: str) -> int | None:
    """A time that a caller measured: an aware datetime or milliseconds since the epoch."""
    if moment is None:
        return None
    if isinstance(moment, datetime):
        return _aware(moment)
    return whole_number(moment, name, 0, END // 1_000) * 1_000


def format_timestamp(validity: Validity | int) -> str:
    """The instant as RFC 3339, to the microsecond."""
    return from_us(to_int(validity)).astimezone(UTC).isoformat(timespec="microseconds").replace("+00:00", "Z")


def to_int(validity: Validity | int) -> int:
    """The microseconds of a validity."""
    return validity.at if isinstance(validity, Validity) else validity


def to_bool(validity: Validity) -> bool:
    """Does the fact assert? One that does not takes back what was asserted before."""
    return validity.asserted


def _aware(moment: datetime) -> int:
    if moment.tzinfo is None:
        raise InvalidValue("the time has no timezone; add one, as in 2026-11-16T12:00:00Z, or use tzinfo=UTC")
    return to_us(moment)
