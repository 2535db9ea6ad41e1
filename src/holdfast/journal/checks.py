"""The last door before anything is decided: every field is what its type says, and every text can be stored.

Values were cleaned at the call. What passes here can be written as facts, and the facts can be read back: a field of
the wrong type would otherwise be found only by the next reader, when the run can no longer be folded.
"""

from __future__ import annotations

from datetime import datetime, timedelta
from functools import cache
from typing import Any

import msgspec

from holdfast.errors import InvalidValue
from holdfast.identity import check_id, check_runnable_key
from holdfast.protocol.commands import Command, Create, Settle
from holdfast.protocol.facts import Fact
from holdfast.protocol.values import is_storable

_NATIVE = (datetime, timedelta)
_NESTED = ("fact", "outcome", "staged", "plan")
_IDS = frozenset(
    {"session_id", "clog_id", "user_id", "queue", "lane", "runnable_key", "owner_id", "claim_id", "claim_token_hash"}
)


def check_command(command: Command) -> None:
    """Raise `InvalidValue` that names the field unless the command can be carried out and remembered."""
    _check(command, command)
    if isinstance(command, Create):
        _check(command, command.fact)
    elif isinstance(command, Settle):
        _check(command, command.outcome)


def check_fact(fact: Fact) -> None:
    """Raise `InvalidValue` (`invalid_id`) unless every id of a hand-made fact is one that we could have made."""
    for name, default in _ids(type(fact)):
        value = getattr(fact, name)
        if value == default:
            continue
        if name == "runnable_key":
            check_runnable_key(value)
        else:
            check_id(value, name)


def _check(command: Command, given: msgspec.Struct) -> None:
    shape, texts = _shape(type(given))
    try:
        msgspec.convert(given, shape, from_attributes=True, builtin_types=_NATIVE)
    except msgspec.ValidationError as error:
        raise InvalidValue(f"{_word(command)} was given a wrong value: {error}; correct it and call again") from error
    for name in texts:
        value = getattr(given, name)
        if isinstance(value, datetime) and value.tzinfo is None:
            raise InvalidValue(f"{name} of {_word(command)} has no timezone; use an aware datetime, as with tzinfo=UTC")
        if isinstance(value, str) and not is_storable(value):
            raise InvalidValue(f"{name} of {_word(command)} holds NUL or a lone surrogate; remove it and call again")


@cache
def _shape(cls: type[msgspec.Struct]) -> tuple[type[msgspec.Struct], tuple[str, ...]]:
    """The fields of a struct whose types can be checked, and those that may hold a text or an instant."""
    fields = [
        (field.name, field.type)
        for field in msgspec.structs.fields(cls)
        if field.type is not Any and field.name not in _NESTED
    ]
    texts = tuple(name for name, wanted in fields if wanted in (str, str | None, datetime | None))
    return msgspec.defstruct(cls.__name__, fields), texts


@cache
def _ids(cls: type[Fact]) -> tuple[tuple[str, Any], ...]:
    """The fields of a fact that name something, each with the default that means nothing."""
    return tuple((field.name, field.default) for field in msgspec.structs.fields(cls) if field.name in _IDS)


def _word(command: Command) -> str:
    return type(command).__name__.lower()
