"""Parts of JSON values by path: keys of objects and places in lists. The value that is given is never changed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from holdfast.errors import InvalidValue

Path = Sequence[str | int]


def get_json_path(value: Any, path: Path, default: Any = None) -> Any:
    """What stands there, or the default if nothing does."""
    for step in path:
        if not _has(value, step):
            return default
        value = value[step]
    return value


def set_json_path(value: Any, path: Path, new: Any) -> Any:
    """The value with this in that place. Objects that are missing on the way are made; lists grow by one at the end."""
    if not path:
        return new
    step, *rest = path
    if value is None:
        value = {} if isinstance(step, str) else []
    if isinstance(value, dict) and isinstance(step, str):
        return {**value, step: set_json_path(value.get(step), rest, new)}
    if isinstance(value, list) and isinstance(step, int) and 0 <= step <= len(value):
        inside = value[step] if step < len(value) else None
        return [*value[:step], set_json_path(inside, rest, new), *value[step + 1 :]]
    raise InvalidValue(f"{step!r} is no place in a {type(value).__name__}; correct the path")


def remove_json_path(value: Any, path: Path) -> Any:
    """The value without what stands there; unchanged if nothing does."""
    if not path or not _has(value, path[0]):
        return value
    step, *rest = path
    if rest:
        return set_json_path(value, [step], remove_json_path(value[step], rest))
    if isinstance(value, dict):
        return {key: item for key, item in value.items() if key != step}
    assert isinstance(step, int)
    return [*value[:step], *value[step + 1 :]]


def _has(value: Any, step: str | int) -> bool:
    if isinstance(value, dict):
        return isinstance(step, str) and step in value
    return isinstance(value, list) and isinstance(step, int) and 0 <= step < len(value)
