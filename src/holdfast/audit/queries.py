"""The readers: every one of them can look at any instant, and finds what it looks for by an index."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, cast

from holdfast.audit.instants import At, Validity, instant
from holdfast.audit.records import (
    ConversationTurn,
    EditProposal,
    Pair,
    call_record,
    proposal_record,
    turn_record,
)
from holdfast.audit.statements import AnyFact, fact_of
from holdfast.errors import Conflict, InvalidValue
from holdfast.identity import UUID, check_name
from holdfast.journal.conversation import Message, conversations
from holdfast.moments import to_us
from holdfast.protocol.audit import Proposal, ToolCall, Turn
from holdfast.protocol.state import RunState
from holdfast.protocol.values import whole_number
from holdfast.store import FACTS, Row, Store

LIMIT_MAX = 1 << 31
MS_MAX = 1 << 52
_READS = re.compile(r"\s*(?:select|with|values|explain)\b", re.IGNORECASE)
_WRITES = re.compile(r"\b(?:insert|update|delete|replace|merge|drop|alter|create|attach|pragma)\b", re.IGNORECASE)

# A key's first fact stands for it; beside it, its latest fact at the instant. $1 is the instant, $2 the limit.
_SNAPSHOT = """
    SELECT {firsts}, {lasts}
    FROM {{s}}{table} b
    JOIN {{s}}{table} l ON {same} AND l.asserted = 1 AND l.validity = (
        SELECT max(x.validity) FROM {{s}}{table} x WHERE {inner} AND x.validity <= $1
    )
    WHERE b.validity = b.created AND b.asserted = 1 AND b.created <= $1 {conditions}
    ORDER BY {order}
    LIMIT $2
"""
FILTERS = {
    "pending+errored": ("pending", "failed", "stale"),
    "pending": ("pending",),
    "approved": ("approved", "applied"),
    "errored": ("failed",),
    "stale": ("stale",),
    "all": (),
}
"""Which proposals people want to see: those that need them, or others, by their statuses; none means whatever it is."""
# Facts of a status that nothing had superseded at the instant, the youngest first.
_BY_STATUS = """
    SELECT {firsts}, {lasts}
    FROM {{s}}{table} l
    JOIN {{s}}{table} b ON {same} AND b.validity = l.created AND b.asserted = 1
    WHERE l.status = {status} AND l.validity <= $1 AND l.asserted = 1 {conditions}
      AND NOT EXISTS (
          SELECT 1 FROM {{s}}{table} x WHERE {later} AND x.validity > l.validity AND x.validity <= $1
      )
    ORDER BY l.validity DESC, {keys}
    LIMIT $2
"""
_CONFIDENT = """
    SELECT l.request_id
    FROM {s}proposals l
    WHERE l.status = 'pending' AND l.confidence >= $1 AND (CAST($2 AS text) IS NULL OR l.user_id = $2)
      AND NOT EXISTS (
          SELECT 1 FROM {s}proposals x WHERE x.request_id = l.request_id AND x.validity > l.validity
      )
    ORDER BY l.validity, l.request_id
    LIMIT $3
"""


def snapshot_text(table: str, conditions: Sequence[str] = (), *, newest_first: bool = True) -> str:
    """The text of a snapshot; conditions speak of the first fact, `b`, and number their values from $3."""
    key = FACTS[table].key[:-2]
    word = "DESC" if newest_first else "ASC"
    return _SNAPSHOT.format(
        **_columns(table),
        table=table,
        same=_same("l", "b", key),
        inner=_same("x", "b", key),
        conditions="".join(f"AND {condition} " for condition in conditions),
        order=", ".join(f"b.{name} {word}" for name in ("created", *key)),
    )


def status_text(table: str, conditions: Sequence[str] = (), *, status: str = "$3") -> str:
    """The text that finds keys by their status; $3 is the status, conditions number their values from $4."""
    key = FACTS[table].key[:-2]
    return _BY_STATUS.format(
        status=status,
        **_columns(table),
        table=table,
        same=_same("b", "l", key),
        later=_same("x", "l", key),
        conditions="".join(f"AND {condition} " for condition in conditions),
        keys=", ".join(f"l.{name}" for name in key),
    )


def statuses_text(table: str, count: int, conditions: Sequence[str] = ()) -> str:
    """The same for several statuses, from $3 on: each by the index and in its order, all in one snapshot."""
    names = FACTS[table].names
    parts = [status_text(table, conditions, status=f"${number}") for number in range(3, 3 + count)]
    found = " UNION ALL ".join(f"SELECT * FROM ({part}) s{number}" for number, part in enumerate(parts))
    places = [len(names) + names.index(name) + 1 for name in ("validity", *FACTS[table].key[:-2])]
    return f"{found} ORDER BY {places[0]} DESC, {', '.join(map(str, places[1:]))} LIMIT $2"


def _columns(table: str) -> dict[str, str]:
    names = FACTS[table].names
    return {"firsts": ", ".join(f"b.{name}" for name in names), "lasts": ", ".join(f"l.{name}" for name in names)}


def _same(one: str, other: str, key: Sequence[str]) -> str:
    return " AND ".join(f"{one}.{name} = {other}.{name}" for name in key)


class Readers:
    """Typed questions about turns, tool calls and proposals, and a raw one for whoever looks for something else."""

    _store: Store[RunState]
    _user_id: str | None

    async def get_conversation_turn(self, id: str | UUID, *, at: At = "NOW") -> ConversationTurn | None:
        found = await self._snapshot("turns", {"id": _text(id, "id")}, 1, at)
        return next((turn_record(cast(Turn, last)) for _, last in found), None)

    async def list_conversation_since(
        self, since_ms: int = 0, limit: int = 100, *, thread_id: str | UUID | None = None, at: At = "NOW"
    ) -> list[ConversationTurn]:
        """Turns that were first said at this millisecond or later, the oldest first. An edit does not move a turn.

        Of a session (its thread) also what its runs were asked and what they answered.
        """
        since_us = whole_number(since_ms, "since_ms", 0, MS_MAX) * 1_000
        same = {} if thread_id is None else {"thread_id": _text(thread_id, "thread_id")}
        found = await self._snapshot("turns", same, limit, at, since_us=since_us, newest_first=False)
        recorded = [turn_record(cast(Turn, last)) for _, last in found]
        said = [turn for turn in await self._said(same, at) if to_us(turn.created_at) >= since_us]
        return sorted([*recorded, *said], key=lambda turn: turn.created_at)[:limit]

    async def list_conversation(
        self,
        limit: int = 100,
        *,
        thread_id: str | UUID | None = None,
        message_id: str | UUID | None = None,
        at: At = "NOW",
    ) -> list[ConversationTurn]:
        """Turns by thread, by message, or all of them, the newest first; of a session also those of its runs."""
        given = {"thread_id": thread_id, "message_id": message_id}
        same = {name: _text(value, name) for name, value in given.items() if value is not None}
        recorded = [turn_record(cast(Turn, last)) for _, last in await self._snapshot("turns", same, limit, at)]
        said = [turn for turn in await self._said(same, at) if same.get("message_id") in (None, turn.message_id)]
        return sorted([*recorded, *reversed(said)], key=lambda turn: turn.created_at, reverse=True)[:limit]

    async def get_tool_call(self, request_id: str | UUID, call_id: str, *, at: At = "NOW") -> Pair | None:
        """The request, and the end if it had come by then."""
        same = {"request_id": _text(request_id, "request_id"), "call_id": check_name(call_id, "call_id")}
        return next(iter(_calls(await self._snapshot("tool_calls", same, 1, at))), None)

    async def list_tool_calls_by_parent(self, parent_id: str | UUID, limit: int = 100, *, at: At = "NOW") -> list[Pair]:
        """The calls that one message or run brought about, the newest first."""
        same = {"parent_id": _text(parent_id, "parent_id")}
        return _calls(await self._snapshot("tool_calls", same, limit, at))

    async def list_tool_calls(
        self,
        *,
        request_id: str | UUID | None = None,
        status: str | None = None,
        tool_name: str | None = None,
        vendor: str | None = None,
        since_ms: int = 0,
        limit: int = 100,
        at: At = "NOW",
    ) -> list[Pair]:
        """Calls by request, status, tool, vendor and time of their request, the newest first."""
        given = {"request_id": request_id, "tool_name": tool_name, "vendor": vendor}
        same = {name: _text(value, name) for name, value in given.items() if value is not None}
        since_us = whole_number(since_ms, "since_ms", 0, MS_MAX) * 1_000
        return _calls(await self._snapshot("tool_calls", same, limit, at, since_us=since_us, status=status))

    async def get_edit_proposal(self, request_id: str | UUID, *, at: At = "NOW") -> EditProposal | None:
        found = await self._snapshot("proposals", {"request_id": _text(request_id, "request_id")}, 1, at)
        return next((proposal_record(cast(Proposal, last)) for _, last in found), None)

    async def list_edit_proposals(
        self, *, status: str | None = None, filter: str | None = None, limit: int = 100, at: At = "NOW"
    ) -> list[EditProposal]:
        """Proposals, all or those of a status, the newest first.

        `filter` names several at once: `pending+errored` (what needs people), `pending`, `approved` (and applied),
        `errored`, `stale` or `all`.
        """
        if filter is None:
            found = await self._snapshot("proposals", {}, limit, at, status=status)
            return [proposal_record(cast(Proposal, last)) for _, last in found]
        if status is not None or filter not in FILTERS:
            raise InvalidValue(f"choose a status, or one of these as filter: {', '.join(FILTERS)}; got {filter!r}")
        found = await self._snapshot("proposals", {}, limit, at, status=FILTERS[filter] or None)
        return [proposal_record(cast(Proposal, last)) for _, last in found]

    async def _confident(self, min_confidence: float, limit: int) -> list[str]:
        """The ids of pending proposals with this confidence or more, the oldest first."""
        rows = await self._store.fetch(_CONFIDENT, min_confidence, self._user_id, limit)
        return [row[0] for row in rows]

    async def raw_query(self, sql: str, params: Sequence[Any] = ()) -> list[Row]:
        """Rows by SQL of your own, for looking only: `{s}` before the names of tables, `$1` for values."""
        if self._user_id is not None:
            raise Conflict("a raw query sees everyone's facts; ask on hf itself, not for one user", code="not_allowed")
        if not _READS.match(sql) or _WRITES.search(sql):
            raise InvalidValue("a raw query begins with SELECT, WITH, VALUES or EXPLAIN and changes nothing")
        return await self._store.fetch(sql, *params)

    async def _said(self, same: Mapping[str, str], at: At) -> list[ConversationTurn]:
        """What the runs of a session say, the oldest first: their journals keep it, and nobody else does."""
        session_id = same.get("thread_id")
        if session_id is None:
            return []
        sql = "SELECT user_id FROM {s}sessions WHERE session_id = $1"
        owners = await self._store.fetch(sql, session_id)
        if not owners or self._user_id not in (None, owners[0][0]):
            return []
        told = await conversations(self._store, [session_id], until_us=instant(at))
        return [_turn(each) for each in told[session_id] if each.tool is None]

    async def _snapshot(
        self,
        table: str,
        same: dict[str, str],
        limit: int,
        at: At,
        *,
        since_us: int = 0,
        status: str | Sequence[str] | None = None,
        newest_first: bool = True,
    ) -> list[tuple[AnyFact, AnyFact]]:
        """First and latest fact of each key that is asserted at the instant."""
        values: list[Any] = [instant(at), whole_number(limit, "limit", 0, LIMIT_MAX)]
        statuses = [] if status is None else [status] if isinstance(status, str) else status
        values += [check_name(each, "status") for each in statuses]
        conditions = []
        if self._user_id is not None:
            same = {**same, "user_id": self._user_id}
        for name, value in same.items():
            values.append(value)
            conditions.append(f"b.{name} = ${len(values)}")
        if since_us:
            values.append(since_us)
            conditions.append(f"b.created >= ${len(values)}")
        text = snapshot_text(table, conditions, newest_first=newest_first)
        if statuses:
            text = (
                statuses_text(table, len(statuses), conditions) if len(statuses) > 1 else status_text(table, conditions)
            )
        width = len(FACTS[table].names)
        rows = await self._store.fetch(text, *values)
        return [(_fact(table, row[:width]), _fact(table, row[width:])) for row in rows]


def _fact(table: str, row: Row) -> AnyFact:
    found = fact_of(table, row)
    assert found is not None
    return found


def _turn(message: Message) -> ConversationTurn:
    return ConversationTurn(
        id=f"{message.run_id}:{message.seq}",
        message_id=message.run_id,
        kind=message.role,
        content=message.content,
        parent_id=None,
        thread_id=message.session_id,
        validity=Validity(to_us(message.at)),
        created_at=message.at,
    )


def _calls(found: Sequence[tuple[AnyFact, AnyFact]]) -> list[Pair]:
    return [call_record(cast(ToolCall, first), cast(ToolCall, last)) for first, last in found]


def _text(value: str | UUID, name: str) -> str:
    return check_name(str(value) if isinstance(value, UUID) else value, name)
