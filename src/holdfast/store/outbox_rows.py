"""The outbox's rows: taking, keeping and settling them, alone or many at once, through all that can go wrong.

A holder whose answer was lost finds its claim's id on the row, and with it what became of the row.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Any, NamedTuple

import msgspec

from holdfast.errors import DatabaseError
from holdfast.redaction import logger
from holdfast.store import outbox_sql as texts
from holdfast.store.committer import Patience, patiently
from holdfast.store.database import Database
from holdfast.store.gathering import Gathering
from holdfast.store.news import OUTBOX_TOPIC
from holdfast.store.outbox_sql import AuditRow, Renewal, Settlement
from holdfast.store.types import Change, OutcomeUnknown, Rejected, Row

log = logger("holdfast.store")

BATCH_MAX = 500
CLAIMS_MAX = 5
PATIENCE_S = 10.0
_AWAY = frozenset({"database_unavailable", "database_timeout"})


class ClaimTerms(NamedTuple):
    """Whose claim it is, how long it lasts, and of which spaces: exact names, prefixes, and those left to others.

    With `user_id` only rows of that user.
    """

    worker_id: str
    lease_us: int
    claim_id: str
    token_hash: str
    limit: int
    spaces: tuple[str, ...] | None = None
    prefixes: tuple[str, ...] = ()
    but_spaces: tuple[str, ...] = ()
    but_prefixes: tuple[str, ...] = ()
    user_id: str | None = None


class OutboxRows:
    """The outbox of one store. Every change carries the holder's fence; False means that it does not hold any more."""

    def __init__(
        self,
        database: Database,
        fetch: Callable[..., Awaitable[list[Row]]],
        publish: Callable[[Iterable[str]], None],
    ) -> None:
        self._database = database
        self._fetch = fetch
        self._publish = publish
        self._renewing: Gathering[Renewal, bool] = Gathering(self.renew_all, BATCH_MAX, _row)
        self._settling: Gathering[Settlement, bool] = Gathering(self._settle_all, BATCH_MAX, _row)

    async def close(self) -> None:
        await self._renewing.close()
        await self._settling.close()

    async def enqueue(self, row: Row) -> bool:
        """Add a row (id, user, space, payload, its hash, key, limit of retries); False if the key is taken."""
        added = await self._change_again(texts.same(texts.ENQUEUE), *row)
        self._publish([OUTBOX_TOPIC])
        return bool(added) or bool(await self._fetch("SELECT 1 FROM {s}outbox WHERE outbox_id = $1", row[0]))

    async def requeue(self, new_id: str, outbox_id: str) -> bool:
        """Add a row that delivers what a dead one did not; False if that one is not dead."""
        added = await self._change_again(texts.same(texts.REQUEUE), new_id, outbox_id)
        self._publish([OUTBOX_TOPIC])
        return bool(added) or bool(await self._fetch("SELECT 1 FROM {s}outbox WHERE outbox_id = $1", new_id))

    async def claim(self, terms: ClaimTerms) -> list[Row]:
        """Take due rows, in their order. One whose twin was taken in the same moment is left for another time."""
        change, params = _claim_change(terms)
        given = (terms.limit, terms.worker_id, terms.lease_us, terms.claim_id, terms.token_hash, *params)
        patience = Patience(PATIENCE_S)
        found: list[Row] = []
        doubtful = False
        for _ in range(CLAIMS_MAX):
            try:
                found = await patiently(lambda: self._database.change(change, *given), patience_s=PATIENCE_S)
                break
            except Rejected:
                # Somebody else took the twin of one of ours first.
                continue
            except OutcomeUnknown as error:
                doubtful = True
                if found := await self._claimed(terms.claim_id):
                    break
                await patience.pause(error)
        if doubtful:
            # Whatever has landed by now is ours. What lands later ends with its lease.
            found = await self._claimed(terms.claim_id)
        return [row[3:] for row in sorted(found)]

    async def _claimed(self, claim_id: str) -> list[Row]:
        columns = ", ".join(("next_attempt_at", "created_at", "seq", *texts.COLUMNS))
        sql = f"SELECT {columns} FROM {{s}}outbox WHERE claim_id = $1 AND locked_by IS NOT NULL"
        return await self._fetch(sql, claim_id)

    async def renew(self, renewal: Renewal) -> bool:
        return await self._renewing.ask(renewal)

    async def settle(self, settlement: Settlement) -> bool:
        """Let go of a row, and note it in the same commit. An audit that cannot be written does not keep the row."""
        return await self._settling.ask(settlement)

    async def free(self, outbox_id: str, *, stale_us: int, delay_us: int) -> bool:
        """Take away a lock whose lease is over and that is old; the row is due again after the delay."""
        return bool(await self._change_again(texts.same(texts.FREE), outbox_id, stale_us, delay_us))

    async def note(self, outbox_id: str, audit: AuditRow) -> bool:
        """Write an audit; False if the end of the row was told before."""
        audit_id, *rest = audit
        added = await self._change_again(texts.same(texts.NOTE), audit_id, outbox_id, *rest)
        return bool(added) or bool(await self._fetch("SELECT 1 FROM {s}outbox_audits WHERE audit_id = $1", audit_id))

    async def forget(self, *, age_us: int, user_id: str | None, limit: int) -> int:
        """Remove rows of no run that ended this long ago, of all or of one user, each with its audits; how many."""
        return len(await self._change_again(texts.FORGET, age_us, user_id, limit))

    async def renew_all(self, renewals: Sequence[Renewal]) -> list[bool]:
        given = msgspec.json.encode(renewals).decode()
        # Renewing twice is renewing once.
        found = {row[0] for row in await self._change_again(texts.RENEW, given)}
        return [renewal.outbox_id in found for renewal in renewals]

    async def _settle_all(self, settlements: list[Settlement]) -> list[bool]:
        try:
            return await self._settle(settlements)
        except DatabaseError as error:
            if error.code in _AWAY or not any(settlement.audit for settlement in settlements):
                raise
            log.warning("the outbox's audits cannot be written; `holdfast reconcile` adds them later: %s", error)
            return await self._settle([settlement._replace(audit=None) for settlement in settlements])

    async def _settle(self, settlements: list[Settlement]) -> list[bool]:
        given = msgspec.json.encode([settlement.flat() for settlement in settlements]).decode()
        change = texts.SETTLE_AND_NOTE if any(each.audit for each in settlements) else texts.SETTLE
        doubtful = False
        patience = Patience(PATIENCE_S)
        while True:
            try:
                found = {row[0] for row in await self._patiently(lambda: self._database.change(change, given))}
                break
            except OutcomeUnknown as error:
                doubtful = True
                await patience.pause(error)
        missed = [settlement for settlement in settlements if settlement.outbox_id not in found]
        if doubtful and missed:
            found |= await self._settled_before(missed)
        return [settlement.outbox_id in found for settlement in settlements]

    async def _settled_before(self, settlements: Sequence[Settlement]) -> set[str]:
        """Rows that a lost answer was about: let go of in the way we asked for, and claimed by nobody since."""
        found: set[str] = set()
        for settlement in settlements:
            sql = """
                SELECT 1 FROM {s}outbox
                WHERE outbox_id = $1 AND locked_by IS NULL AND status = $2
                  AND claim_id = coalesce(CAST($3 AS text), claim_id)
            """
            if await self._fetch(sql, settlement.outbox_id, settlement.status, settlement.claim_id):
                found.add(settlement.outbox_id)
        return found

    async def twins(self, pairs: Sequence[tuple[str, str]]) -> list[str | None]:
        """For each (space, hash of a payload) the row that was sent first with it."""
        values = ", ".join(
            f"({place}, CAST(${2 * place + 1} AS text), CAST(${2 * place + 2} AS text))" for place in range(len(pairs))
        )
        sql = f"""
            WITH x (place, target_space, payload_sha) AS (VALUES {values})
            SELECT x.place, (
                SELECT o.outbox_id FROM {{s}}outbox o
                WHERE o.target_space = x.target_space AND o.payload_sha = x.payload_sha AND o.status = 'sent'
                ORDER BY o.settled_at, o.outbox_id
                LIMIT 1
            )
            FROM x
        """
        rows = await self._patiently(
            lambda: self._database.fetch(
                sql.replace("{s}", self._database.prefix), *(part for pair in pairs for part in pair)
            )
        )
        found: dict[int, str | None] = dict(rows)
        return [found[place] for place in range(len(pairs))]

    async def _change_again(self, change: Change, *params: Any) -> list[Row]:
        """For changes that may be repeated without harm; what a lost answer was about is for the caller to ask."""
        patience = Patience(PATIENCE_S)
        while True:
            try:
                return await self._patiently(lambda: self._database.change(change, *params))
            except OutcomeUnknown as error:
                await patience.pause(error)

    async def _patiently(self, attempt: Callable[[], Awaitable[list[Row]]]) -> list[Row]:
        try:
            return await patiently(attempt, patience_s=PATIENCE_S)
        except Rejected as error:
            raise DatabaseError(f"the database refused this write: {error}", code="write_rejected") from error


def _row(asked: Renewal | Settlement) -> str:
    return asked.outbox_id


def _claim_change(terms: ClaimTerms) -> tuple[Change, list[str]]:
    """The text for these spaces, and what it is told beyond `$5`."""
    params: list[str] = []

    def condition(spaces: Sequence[str], prefixes: Sequence[str]) -> str:
        parts = []
        for space in spaces:
            params.append(space)
            # As an expression: found by its space, a backlog would be sorted for every claim.
            parts.append(f"o.target_space || '' = ${len(params) + 5}")
        for prefix in prefixes:
            params.append(prefix)
            parts.append(f"substr(o.target_space, 1, {len(prefix)}) = ${len(params) + 5}")
        return " OR ".join(parts) or "false"

    chosen = ""
    if terms.spaces is not None:
        chosen = f"AND ({condition(terms.spaces, terms.prefixes)})"
    if terms.but_spaces or terms.but_prefixes:
        chosen += f" AND NOT ({condition(terms.but_spaces, terms.but_prefixes)})"
    if terms.user_id is not None:
        params.append(terms.user_id)
        chosen += f" AND o.user_id = ${len(params) + 5}"
    text = texts.CLAIM.replace("{spaces}", chosen).replace("{columns}", ", ".join(texts.COLUMNS))
    sqlite, postgres = text.replace("{skip_locked}", ""), text.replace("{skip_locked}", "FOR UPDATE OF o SKIP LOCKED")
    return Change((sqlite,), postgres), params
