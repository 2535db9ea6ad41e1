"""Ids: how they are made (UUIDv7, in this one place) and which ones are accepted."""

from __future__ import annotations

import hashlib
import re
from uuid import UUID as UUID

from holdfast import ambient
from holdfast.errors import InvalidValue

_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.:@-]{0,127}")
_KEY = re.compile(r"[A-Za-z0-9_.:@/#\[\]-]{0,255}")
_VARIANT = {digit: "89ab"[int(digit, 16) % 4] for digit in "0123456789abcdef"}
_FORBIDDEN = re.compile("[\x00\ud800-\udfff]")


def new_id() -> str:
    """A UUIDv7: unique, and ordered by the time it was made, so indexes grow at one end."""
    return new_ids(1)[0]


def new_ids(count: int) -> list[str]:
    """As many of them at once."""
    time = f"{ambient.wall_us() // 1_000 & (1 << 48) - 1:012x}"
    begin = f"{time[:8]}-{time[8:]}-7"
    chance = ambient.random_bytes(10 * count).hex()
    return [_after(begin, chance[place : place + 20]) for place in range(0, 20 * count, 20)]


def _after(begin: str, chance: str) -> str:
    """A UUIDv7 of this time from twenty random digits, the first of which gives the two bits beside its variant."""
    return f"{begin}{chance[1:4]}-{_VARIANT[chance[0]]}{chance[4:7]}-{chance[7:19]}"


def random_uuid() -> UUID:
    """A UUIDv4: nothing but chance."""
    return UUID(int=ambient.random_bits(128), version=4)


def child_id(parent_run_id: str, step: str, clog_id: str, child_key: str) -> str:
    """The id of a child: the same parent, step, clog and key always mean the same run."""
    return _derived(parent_run_id, step, clog_id, child_key)


def window_id(user_id: str, schedule: str, window_us: int) -> str:
    """The id of the run that a schedule starts for a window, whatever else about the schedule may change."""
    return _derived("@window", user_id, schedule, str(window_us))


def trigger_id(user_id: str, schedule: str, key: str) -> str:
    """The id of the run that someone starts by hand: the same schedule and key always mean the same run."""
    return _derived("@trigger", user_id, schedule, key)


def _derived(*parts: str) -> str:
    """A UUIDv8 from what it stands for."""
    chosen = int.from_bytes(hashlib.sha256("\n".join(parts).encode()).digest()[:16]) & ~(0xF << 76 | 3 << 62)
    return _dashed(f"{chosen | 8 << 76 | 2 << 62:032x}")


def _dashed(digits: str) -> str:
    """32 digits as a UUID is written. Ids are made for every claim, and `UUID` would check what we know."""
    return f"{digits[:8]}-{digits[8:12]}-{digits[12:16]}-{digits[16:20]}-{digits[20:]}"


def check_id(value: object, name: str) -> str:
    """The id itself, or `InvalidValue` (`invalid_id`) that names the argument and the rule."""
    if isinstance(value, str) and _ID.fullmatch(value):
        return value
    raise InvalidValue(
        f"{name} must be 1 to 128 letters, digits or _ . : @ - and begin with a letter or digit; got {_shown(value)}",
        code="invalid_id",
    )


def check_runnable_key(value: object) -> str:
    """Keys of work items. The empty key is the run's own tick."""
    if isinstance(value, str) and _KEY.fullmatch(value):
        return value
    raise InvalidValue(
        f"runnable_key may hold letters, digits and _ . : @ / # [ ] - only; got {_shown(value)}", code="invalid_id"
    )


def check_name(value: object, name: str, *, longest: int = 256) -> str:
    """Free names (signals, steps, keys, threads): any text of a sane length without NUL or lone surrogates."""
    if isinstance(value, str) and 0 < len(value) <= longest and not _FORBIDDEN.search(value):
        return value
    raise InvalidValue(
        f"{name} must be 1 to {longest} characters without NUL or lone surrogates; got {_shown(value)}",
        code="invalid_id",
    )


def hash_token(token: str) -> str:
    """What the journal and the tables know of a claim token."""
    return hashlib.sha256(token.encode()).hexdigest()


def _shown(value: object) -> str:
    text = ascii(value)
    return text if len(text) <= 80 else f"{text[:77]}..."
