"""Lists of runs: newest first, page by page, and without anything that a run was given, said or failed with."""

from __future__ import annotations

import binascii
from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import Sequence
from datetime import datetime
from typing import Any, Generic, TypeVar, get_args

import msgspec

from holdfast.errors import InvalidValue
from holdfast.moments import from_us
from holdfast.protocol.state import Status
from holdfast.protocol.values import whole_number
from holdfast.store import Row

T = TypeVar("T")
LIMIT_MAX = 100
STATUSES: tuple[str, ...] = get_args(Status)
_INSTANT_MAX = 1 << 62


class ListedRun(msgspec.Struct, frozen=True, kw_only=True):
    """A run as a list shows it: no input, output, error, claim or key."""

    run_id: str
    session_id: str
    clog_id: str
    status: str
    queue: str
    lane: str | None
    priority: int
    mode: str
    attempt: int
    max_attempts: int
    wake_at: datetime | None
    cancel_requested_at: datetime | None
    created_at: datetime
    started_at: datetime | None
    updated_at: datetime
    finished_at: datetime | None
    parent_run_id: str | None
    rev: int


class Page(msgspec.Struct, Generic[T], frozen=True):
    """Some of a list. `next` is the cursor of what follows, None at the end."""

    items: list[T]
    next: str | None


class Question(msgspec.Struct, frozen=True, kw_only=True):
    """Which runs are wanted, every part checked; `text` and `values` ask the database for one more than a page."""

    equal: tuple[tuple[str, str], ...]
    statuses: tuple[str, ...] | None
    before: tuple[int, str] | None
    limit: int

    @property
    def text(self) -> str:
        places = iter(range(1, 1 << 16))
        conditions = [f"{column} = ${next(places)}" for column, _ in self.equal]
        if self.statuses is not None:
            conditions.append(f"status IN ({', '.join(f'${next(places)}' for _ in self.statuses)})")
        if self.before is not None:
            conditions.append(f"(created_at, run_id) < (${next(places)}, ${next(places)})")
        # By creation, not by id: callers may choose ids, and those say nothing about age.
        return f"""
            SELECT {", ".join(_COLUMNS)}
            FROM {{s}}runs
            {"WHERE " + " AND ".join(conditions) if conditions else ""}
            ORDER BY created_at DESC, run_id DESC
            LIMIT {self.limit + 1}
        """

    @property
    def values(self) -> tuple[Any, ...]:
        return (*(value for _, value in self.equal), *(self.statuses or ()), *(self.before or ()))

    def page(self, rows: Sequence[Row]) -> Page[ListedRun]:
        items = [_listed(row) for row in rows[: self.limit]]
        following = len(rows) > self.limit
        last = dict(zip(_COLUMNS, rows[self.limit - 1], strict=True)) if following else {}
        return Page(items, cursor_at(last["created_at"], last["run_id"]) if last else None)


def question(
    equal: dict[str, str | None], status: str | Sequence[str] | None, limit: int, cursor: str | None
) -> Question:
    """The question in checked parts, or `InvalidValue` that names the argument at fault."""
    return Question(
        equal=tuple((column, value) for column, value in equal.items() if value is not None),
        statuses=None if status is None else _statuses(status),
        before=None if cursor is None else place_of(cursor),
        limit=min(whole_number(limit, "limit", 1, 1 << 31), LIMIT_MAX),
    )


def _statuses(status: str | Sequence[str]) -> tuple[str, ...]:
    words = (status,) if isinstance(status, str) else tuple(status)
    for word in words:
        if word not in STATUSES:
            raise InvalidValue(f"status is {word!r}; use one or several of {', '.join(STATUSES)}")
    return tuple(dict.fromkeys(words))


def cursor_at(created_at: int, run_id: str) -> str:
    """What stands for everything after this run in a list."""
    return urlsafe_b64encode(f"{created_at}/{run_id}".encode()).decode().rstrip("=")


def place_of(cursor: str) -> tuple[int, str]:
    """The run after which a page begins; `InvalidValue` for a cursor that no list has made."""
    try:
        text = urlsafe_b64decode(f"{cursor}{'=' * (-len(cursor) % 4)}".encode("ascii")).decode("ascii")
        created_at, _, run_id = text.partition("/")
        place = int(created_at), run_id
    except (TypeError, ValueError, binascii.Error) as error:
        raise _bad_cursor() from error
    if not 0 <= place[0] <= _INSTANT_MAX or not run_id or "\x00" in run_id:
        raise _bad_cursor()
    return place


def _bad_cursor() -> InvalidValue:
    return InvalidValue(
        "this cursor was not made by a list; pass on the `next` of the last page", code="invalid_cursor"
    )


_COLUMNS = tuple("at" if name == "updated_at" else name for name in ListedRun.__struct_fields__)
_MOMENTS = frozenset({"at", *(name for name in _COLUMNS if name.endswith("_at"))})


def _listed(row: Row) -> ListedRun:
    values: list[Any] = [
        from_us(value) if column in _MOMENTS and value is not None else value
        for column, value in zip(_COLUMNS, row, strict=True)
    ]
    return ListedRun(**dict(zip(ListedRun.__struct_fields__, values, strict=True)))
