"""Windows: the instants at which a schedule means its runs to start, and which of them to start now. Pure.

Cron texts are read as Debian's cron reads them. Where clocks are put forward, a fixed time that does not exist is
started right after the gap; where they are put back, a fixed time that comes twice is started the first time only. A
text whose minute or hour begins with `*` follows the clock on the wall: through a gap it has fewer windows, and it has
those of the hour that comes twice both times.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from itertools import islice
from typing import Literal, NamedTuple, get_args
from zoneinfo import ZoneInfo

import msgspec
from cronsim import CronSim, CronSimError

from holdfast.errors import InvalidValue
from holdfast.moments import from_us, to_us

Missed = Literal["latest", "all", "skip"]
MISSED: tuple[str, ...] = get_args(Missed)
FIELDS = 5
AT_ONCE_MAX = 100
"""How many missed windows of one schedule are started in one sweep; the next sweep goes on with the rest."""
LATE_US = 60_000_000
"""A window is missed once it is later than this: `skip` starts no older one."""
SPAN_US = 3_600_000_000


class Timing(msgspec.Struct, frozen=True, kw_only=True):
    """When a schedule has its windows: by a cron text on the clocks of a time zone, or once, at an instant."""

    cron: str | None = None
    timezone: str | None = None
    at: int | None = None

    def after(self, moment: int) -> int | None:
        """The first window later than this instant; None if there is none any more."""
        return next(self._later(moment), None)

    def newest(self, first: int, now: int) -> int:
        """The last window up to now of those that begin with `first`, found without looking at all of them."""
        newest, span = first, SPAN_US
        while True:
            since = max(first, now - span)
            for window in self._up_to(since, now):
                newest = window
            if newest > first or since == first:
                return newest
            span *= 2

    def _up_to(self, since: int, now: int) -> Iterator[int]:
        for window in self._later(since):
            if window > now:
                return
            yield window

    def _later(self, moment: int) -> Iterator[int]:
        if self.at is not None:
            if self.at > moment:
                yield self.at
            return
        assert self.cron is not None
        reached = moment
        try:
            for local in CronSim(self.cron, from_us(moment).astimezone(zone(self.timezone or "UTC"))):
                window = to_us(local.astimezone(UTC))
                # Times that a change of clocks moves to one instant are one window.
                if window > reached:
                    reached = window
                    yield window
        except OverflowError:
            # The calendar ends before the next one.
            return
        except CronSimError as error:
            raise _unreadable(self.cron, error) from error


class Due(NamedTuple):
    """The windows to start now, oldest first, and the one that comes after what is settled with them."""

    windows: tuple[int, ...]
    next_at: int | None


def due(timing: Timing, missed: str, first: int, now: int) -> Due:
    """What to start of the windows from `first`, which is due, up to now."""
    if missed == "all":
        windows = (first, *islice(timing._up_to(first, now), AT_ONCE_MAX - 1))
        return Due(windows, timing.after(windows[-1]))
    newest = timing.newest(first, now)
    is_started = missed == "latest" or now - newest <= LATE_US
    return Due((newest,) if is_started else (), timing.after(newest))


def checked(*, cron: str | None, timezone: str | None, at: datetime | None) -> Timing:
    """The timing that these arguments mean, or `InvalidValue` that says what is wrong with them."""
    if (cron is None) == (at is None):
        raise InvalidValue("a schedule has either a cron text or an instant; give one of cron= and at=")
    if at is not None:
        if timezone is not None:
            raise InvalidValue("at= is an instant and has its own time zone; leave timezone= out")
        return Timing(at=instant(at, "at"))
    chosen = "UTC" if timezone is None else timezone
    zone(chosen)
    return Timing(cron=_readable(cron), timezone=chosen)


def instant(moment: object, name: str) -> int:
    """The instant that an aware datetime means, or `InvalidValue` that names the argument."""
    if isinstance(moment, datetime) and moment.tzinfo is not None:
        return to_us(moment)
    raise InvalidValue(f"{name}= must be an aware datetime, for example with tzinfo=UTC")


def zone(name: str) -> ZoneInfo:
    """The time zone of this name, or `InvalidValue`."""
    try:
        return ZoneInfo(name)
    except (KeyError, TypeError, ValueError, OSError) as error:
        raise InvalidValue(
            f"there is no time zone {name!r} here; use a name like Europe/Berlin or UTC", code="invalid_timezone"
        ) from error


def check_missed(missed: str) -> str:
    if missed not in MISSED:
        raise InvalidValue(f"missed is {missed!r}; use one of {', '.join(MISSED)}")
    return missed


def _readable(cron: object) -> str:
    text = " ".join(cron.split()) if isinstance(cron, str) else ""
    try:
        if len(text.split()) != FIELDS:
            raise CronSimError("it needs five fields: minute, hour, day of month, month, day of week")
        has_window = next(CronSim(text, from_us(0)), None) is not None
    except (CronSimError, AssertionError) as error:
        raise _unreadable(cron, error) from error
    if not has_window:
        raise InvalidValue(f"the cron text {cron!r} names no day that ever comes", code="invalid_cron")
    return text


def _unreadable(cron: object, error: Exception) -> InvalidValue:
    return InvalidValue(f"the cron text {cron!r} cannot be read: {error}", code="invalid_cron")
