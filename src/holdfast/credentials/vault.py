"""The vault: which columns hold secrets, what each secret is bound to, and the move to another key."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import AsyncIterator
from functools import cached_property
from typing import Any, NamedTuple

import msgspec

from holdfast.credentials.environment import Environment, told
from holdfast.credentials.keyring import VARIABLE, KeyRing, kid_of
from holdfast.errors import SealError
from holdfast.protocol.state import RunState
from holdfast.redaction import Redaction
from holdfast.store import Row, Store

PAGE = 100


class Column(NamedTuple):
    """A column of secrets, and the key of its table."""

    table: str
    name: str
    key: tuple[str, ...]

    def bound_to(self, *key: str, user_id: str) -> str:
        """What a secret in this row is bound to. No id holds a `|`, so no two places read the same."""
        return "|".join((self.table, self.name, *key, user_id))


ACCESS_TOKEN = Column("credentials", "access_token", ("user_id", "provider"))
REFRESH_TOKEN = Column("credentials", "refresh_token", ("user_id", "provider"))
CODE_VERIFIER = Column("oauth_states", "code_verifier", ("state_hash",))
OPENAI_API_KEY = Column("settings", "openai_api_key", ("user_id",))
ANTHROPIC_API_KEY = Column("settings", "anthropic_api_key", ("user_id",))
COLUMNS = (ACCESS_TOKEN, REFRESH_TOKEN, CODE_VERIFIER, OPENAI_API_KEY, ANTHROPIC_API_KEY)


class Rotation(msgspec.Struct, frozen=True, kw_only=True):
    """What a move to the first key did. `remaining` counts secrets that are still under other keys."""

    kid: str
    resealed: int
    remaining: dict[str, int]
    unreadable: int


class Vault:
    """Seals and opens under this host's keys, which are read from the environment when they are first needed."""

    def __init__(self, store: Store[RunState], redaction: Redaction, environment: Environment | None = None) -> None:
        self._store = store
        self._redaction = redaction
        self._environment = environment

    @cached_property
    def ring(self) -> KeyRing:
        text = told(VARIABLE, self._environment)
        # From now on no log of this process shows them.
        self._redaction.hide(*(part.partition(":")[2] for part in re.split(r"[,\s]+", text or "")))
        return KeyRing.of_environment(self._environment)

    def seal(self, text: str, column: Column, *key: str, user_id: str) -> str:
        """The secret as it is kept in this column of this row. Whoever has it in hand does not find it in a log."""
        self._redaction.hide_for_now(text)
        return self.ring.seal(text, column.bound_to(*key, user_id=user_id))

    def open(self, sealed: str, column: Column, *key: str, user_id: str) -> str:
        text = self.ring.open(sealed, column.bound_to(*key, user_id=user_id))
        self._redaction.hide_for_now(text)
        return text

    async def check(self) -> None:
        """Raise `SealError` if anything is kept under a key that we do not have. For the start of a server."""
        kept = await self.kids()
        missing = sorted(set(kept) - set(self.ring.kids)) if kept else []
        if missing:
            raise SealError(
                f"secrets are sealed with {', '.join(missing)}, which the key ring does not have; put them back",
                code="encryption_key_unknown",
            )

    async def kids(self) -> dict[str, int]:
        """How many secrets are kept under which key; `?` for texts that were damaged."""
        counted: Counter[str] = Counter()
        for column in COLUMNS:
            async for row in self._rows(column, ""):
                counted[kid_of(row[-1]) or "?"] += 1
        return dict(sorted(counted.items()))

    async def rotate(self) -> Rotation:
        """Seal everything anew with the first key, a row at a time; safe beside everybody who works.

        A secret that someone replaces meanwhile is left as they put it. What cannot be opened is left and counted.
        """
        resealed = unreadable = 0
        for column in COLUMNS:
            async for row in self._rows(column, f"v1.{self.ring.first}."):
                moved = await self._reseal(column, row)
                resealed += moved is True
                unreadable += moved is None
        remaining = {kid: count for kid, count in (await self.kids()).items() if kid != self.ring.first}
        return Rotation(kid=self.ring.first, resealed=resealed, remaining=remaining, unreadable=unreadable)

    async def _reseal(self, column: Column, row: Row) -> bool | None:
        *key, user_id, sealed = row
        bound_to = column.bound_to(*key, user_id=user_id)
        try:
            anew = self.ring.seal(self.ring.open(sealed, bound_to), bound_to)
        except SealError:
            return None
        same = " AND ".join(f"{name} = ${place}" for place, name in enumerate(column.key, start=3))
        sql = f"UPDATE {{s}}{column.table} SET {column.name} = $1 WHERE {column.name} = $2 AND {same} RETURNING 1"
        return bool(await self._store.change(sql, anew, sealed, *key))

    async def _rows(self, column: Column, but: str) -> AsyncIterator[Row]:
        """Every row of a column with its key, user and sealed text; without those that begin with `but`."""
        key = ", ".join(column.key)
        after: tuple[Any, ...] = ("",) * len(column.key)
        marks = ", ".join(f"${place}" for place in range(1, len(after) + 1))
        sql = f"""
            SELECT {key}, user_id, {column.name}
            FROM {{s}}{column.table}
            WHERE ({key}) > ({marks}) AND {column.name} IS NOT NULL
              AND ({len(but)} = 0 OR substr({column.name}, 1, {len(but)}) <> CAST(${len(after) + 1} AS text))
            ORDER BY {key}
            LIMIT {PAGE}
        """
        while rows := await self._store.fetch(sql, *after, but):
            for row in rows:
                yield row
            after = tuple(rows[-1][: len(column.key)])
