"""JSON values as the journal keeps them: cleaned before they are serialised, canonical, with a digest.

`clean` repairs what a model may utter (NUL, lone surrogates) and refuses what no database reads back
(non-finite numbers, endless nesting, objects). `canonical` gives equal values equal text on both databases.
"""

from __future__ import annotations

import hashlib
import math
import re
from typing import Any

import msgspec

from holdfast.errors import InvalidValue

DEPTH_MAX = 64
DIGITS_MAX = 64
_UNSTORABLE = re.compile("[\x00\ud800-\udfff]")
_INTEGER_MAX = 10**DIGITS_MAX
_encoder = msgspec.json.Encoder(order="sorted")


def clean(value: Any) -> tuple[Any, bool]:
    """The value as it will be stored, and whether it had to be repaired. Raises `InvalidValue` otherwise."""
    cleaner = _Cleaner()
    return cleaner.clean(value, depth=0), cleaner.repaired


def is_storable(text: str) -> bool:
    """Can every database keep this text? NUL and lone surrogates it cannot."""
    return _UNSTORABLE.search(text) is None


def whole_number(value: object, name: str, low: int, high: int) -> int:
    """The number itself, or `InvalidValue` that names the argument and its bounds. True and False are no numbers."""
    if isinstance(value, int) and not isinstance(value, bool) and low <= value <= high:
        return int(value)
    shown = f"a {type(value).__name__}" if not isinstance(value, int | float) or abs(value) > 1 << 64 else repr(value)
    raise InvalidValue(f"{name} must be a whole number from {low} to {high}, got {shown}")


def canonical(value: Any) -> str:
    """Sorted keys, no spaces, UTF-8: one text per value. Only for values that `clean` let through."""
    return _encoder.encode(value).decode()


def digest(*parts: str) -> bytes:
    """SHA-256 over the parts, each closed by a newline. A canonical body holds none, so its beginning is certain."""
    return hashlib.sha256(("\n".join(parts) + "\n").encode()).digest()


def fingerprint(value: Any) -> str:
    """The digest of a cleaned value, as text: how two bodies are compared."""
    return hashlib.sha256(_encoder.encode(value)).hexdigest()


class _Cleaner:
    def __init__(self) -> None:
        self.repaired = False

    def clean(self, value: Any, depth: int) -> Any:
        if value is None or value is True or value is False:
            return value
        if isinstance(value, str):
            return self._text(value)
        if isinstance(value, int):
            return self._integer(value)
        if isinstance(value, float):
            return self._number(value)
        if depth >= DEPTH_MAX:
            raise InvalidValue(f"the value is nested deeper than {DEPTH_MAX} levels; flatten it or store a reference")
        if isinstance(value, dict):
            return self._object(value, depth)
        if isinstance(value, list | tuple):
            return [self.clean(item, depth + 1) for item in value]
        raise InvalidValue(
            f"a {type(value).__name__} is not JSON; send None, bool, int, float, str, list or dict (bytes as text)"
        )

    def _text(self, value: str) -> str:
        if is_storable(value):
            return str.__str__(value)  # an enum's own text, not the name it prints
        self.repaired = True
        return _UNSTORABLE.sub("\ufffd", value)

    def _integer(self, value: int) -> int:
        if -_INTEGER_MAX < value < _INTEGER_MAX:
            return int(value)
        raise InvalidValue(
            f"an integer of more than {DIGITS_MAX} digits cannot be read back everywhere; send it as text"
        )

    def _number(self, value: float) -> float:
        if math.isfinite(value):
            return float(value)
        raise InvalidValue(f"{value} is not a JSON number; send None or text instead")

    def _object(self, value: dict[Any, Any], depth: int) -> dict[str, Any]:
        cleaned: dict[str, Any] = {}
        for key, item in value.items():
            if not isinstance(key, str):
                raise InvalidValue(f"object keys must be text, got {type(key).__name__}")
            name = self._text(key)
            if name in cleaned:
                raise InvalidValue(f"two keys of one object are both stored as {name!r}; rename one")
            cleaned[name] = self.clean(item, depth + 1)
        return cleaned
