"""The lease protocol of the outbox: enqueue, claim, renew, ack, retry, dead, dedup.

Whoever holds a row may change it, and only while the lease runs: status pending, the same worker, the same token if one
is given. A refused change answers False and has changed nothing. Times are the database's.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from datetime import datetime
from functools import lru_cache
from typing import Any

from holdfast.ambient import random_token
from holdfast.errors import Conflict, InvalidValue, NotFound
from holdfast.identity import check_name, hash_token, new_id
from holdfast.journal import Journal
from holdfast.journal.observing import Observer
from holdfast.moments import to_us
from holdfast.outbox.records import Audit, OutboxRow, audit_of, row_of
from holdfast.protocol import facts
from holdfast.protocol.values import canonical, clean, fingerprint, whole_number
from holdfast.redaction import HIDDEN
from holdfast.store.hints import Listener
from holdfast.store.news import OUTBOX_TOPIC
from holdfast.store.outbox_rows import ClaimTerms, OutboxRows
from holdfast.store.outbox_sql import AUDIT_COLUMNS, COLUMNS, AuditRow, Renewal, Settlement

LIMIT_MAX = 10_000
LEASE_S_MAX = 1 << 30
RETRIES_MAX = 1 << 20
LOCAL = "local"
SPACE_LENGTH_MAX = 256
_ROW = f"SELECT {', '.join(COLUMNS)} FROM {{s}}outbox"
_AUDITS = f"SELECT {', '.join(AUDIT_COLUMNS)} FROM {{s}}outbox_audits"
_AUDITED_FOR = "WHERE outbox_id IN (SELECT outbox_id FROM {s}outbox WHERE user_id = $2)"


class Leases:
    """The functions of the protocol, on one database: for everybody, or for one user who knows no rows of others."""

    def __init__(self, journal: Journal) -> None:
        self._journal = journal
        self._user_id: str | None = None

    @property
    def observer(self) -> Observer | None:
        """Who is told what becomes of tries to deliver."""
        return self._journal.observer

    def for_people(self, error: object, token: str | None = None) -> str:
        """An error as it is kept and shown: without secrets, the holder's own token among them, and short."""
        text, _ = clean(str(error) or type(error).__name__)
        for secret in filter(None, (token, token and token.partition(".")[2])):
            text = str(text).replace(secret, HIDDEN)
        return self._journal.redaction.scrubbed(str(text))

    async def enqueue(
        self, payload: Any, target_space: str, key: str | None = None, *, max_retries: int | None = None
    ) -> str:
        """Add what must be delivered, outside of any run; answer its id.

        The same key with the same payload answers the same id; with another payload it is a `Conflict`.
        """
        value, _ = clean(payload)
        if value is None or value in ("", [], {}):
            raise InvalidValue("there is nothing to deliver: the payload is empty")
        space = check_name(target_space, "target_space", longest=SPACE_LENGTH_MAX)
        name = None if key is None else check_name(key, "key")
        tries = None if max_retries is None else whole_number(max_retries, "max_retries", 1, RETRIES_MAX)
        outbox_id, sha = new_id(), fingerprint(value)
        # As large as what a tick may send.
        self._journal.check_size(
            facts.OutboxEnqueued(tick_id="", outbox_id=outbox_id, target_space=space, payload=value, payload_sha=sha)
        )
        if await self._rows.enqueue((outbox_id, self._user_id or LOCAL, space, canonical(value), sha, name, tries)):
            return outbox_id
        return await self._known(space, str(name), sha)

    async def _known(self, target_space: str, key: str, payload_sha: str) -> str:
        sql = "SELECT outbox_id, payload_sha, user_id FROM {s}outbox WHERE target_space = $1 AND idempotency_key = $2"
        ((outbox_id, sha, owner),) = await self._journal.store.fetch(sql, target_space, key)
        if sha != payload_sha or not self._sees(owner):
            text = f"key {key!r} was used in {target_space} for another payload; choose a new key"
            raise Conflict(text, code="key_reused")
        return str(outbox_id)

    def _sees(self, owner: str) -> bool:
        return self._user_id in (None, owner)

    async def get(self, outbox_id: str) -> OutboxRow | None:
        """The row as it is now."""
        found = await self._row(outbox_id)
        return found if found is not None and self._sees(found.user_id) else None

    async def _row(self, outbox_id: str) -> OutboxRow | None:
        """The same, whosoever it is."""
        rows = await self._journal.store.fetch(f"{_ROW} WHERE outbox_id = $1", str(outbox_id))
        return row_of(rows[0]) if rows else None

    async def _is_unknown(self, outbox_id: str) -> bool:
        """Rows never change their user, so whoever asks first and changes later is right."""
        return self._user_id is not None and await self.get(outbox_id) is None

    async def claim_outbox(self, worker_id: str, limit: int = 10, lease_seconds: float = 60) -> list[OutboxRow]:
        """Take up to `limit` due rows for this long, the longest due first; nobody else gets them meanwhile.

        A row waits while another with the same payload for the same space is held.
        """
        return await self.claim(worker_id, limit, lease_seconds)

    async def claim(
        self, worker_id: str, limit: int, lease_seconds: float, spaces: ClaimTerms | None = None
    ) -> list[OutboxRow]:
        """The same, of some spaces only: those that `spaces` names."""
        claim_id = new_id()
        # The claim's id goes with the token, so that whoever has it can find out what became of a row.
        token = f"{claim_id}.{random_token()}"
        terms = (spaces or ClaimTerms("", 0, "", "", 0))._replace(
            worker_id=check_name(worker_id, "worker_id"),
            lease_us=_lease_us(lease_seconds),
            claim_id=claim_id,
            token_hash=_hashed(token),
            limit=whole_number(limit, "limit", 0, LIMIT_MAX),
            user_id=self._user_id,
        )
        if not terms.limit:
            return []
        return [row_of(row, token) for row in await self._rows.claim(terms)]

    async def ack_sent(
        self, outbox_id: str, worker_id: str, memory_id: str | None = None, token: str | None = None
    ) -> bool:
        """Pending → sent. `memory_id` is what the receiver calls it."""
        return await self.settle(outbox_id, worker_id, token, status="sent", result_ref=_ref(memory_id))

    async def fail_retry(
        self, outbox_id: str, worker_id: str, error: str, next_attempt_at: datetime | str, token: str | None = None
    ) -> bool:
        """A try has failed: it is counted, and the row is due again at the given time (an instant, or ISO text)."""
        due_at = _instant(next_attempt_at)
        return await self.settle(
            outbox_id,
            worker_id,
            token,
            status="pending",
            counted=1,
            next_attempt_at=due_at,
            error=self.for_people(error, token),
        )

    async def mark_dead_by_worker(self, outbox_id: str, worker_id: str, error: str, token: str | None = None) -> bool:
        """Pending → dead: retries are used up, or no try can ever succeed."""
        return await self.settle(outbox_id, worker_id, token, status="dead", error=self.for_people(error, token))

    async def renew_lease(self, outbox_id: str, worker_id: str, token: str | None = None) -> bool:
        """The lease begins anew, as long as it was claimed for."""
        return await self.renew(outbox_id, worker_id, token)

    async def renew_lease_batch(
        self, ids: Sequence[str], worker_id: str, tokens: Sequence[str | None] | None = None
    ) -> int:
        """Renew those of these rows that this worker holds; answer how many."""
        outbox_ids = list(dict.fromkeys(str(each) for each in ids))
        given = dict(zip(outbox_ids, tokens, strict=True)) if tokens is not None else {}
        return sum(await asyncio.gather(*(self.renew(each, worker_id, given.get(each)) for each in outbox_ids)))

    async def check_dedup(self, target_space: str, payload_sha: str) -> OutboxRow | None:
        """The row that was sent first with this payload to this space, if one was."""
        if self._user_id is None:
            (found,) = await self._rows.twins([(target_space, payload_sha)])
            return None if found is None else await self._row(found)
        sql = f"""
            {_ROW} WHERE target_space = $1 AND payload_sha = $2 AND status = 'sent' AND user_id = $3
            ORDER BY settled_at, outbox_id LIMIT 1
        """
        rows = await self._journal.store.fetch(sql, target_space, payload_sha, self._user_id)
        return row_of(rows[0]) if rows else None

    async def originals(self, rows: Sequence[OutboxRow]) -> list[OutboxRow | None]:
        """`check_dedup` of many. A receiver does not care whose row reached it first, so everybody's count."""
        found = await self._rows.twins([(row.target_space, row.payload_sha) for row in rows]) if rows else []
        return [None if outbox_id is None else await self._row(outbox_id) for outbox_id in found]

    async def requeue(self, outbox_id: str) -> str:
        """Try a dead row's payload again, as a new row; answer its id. The dead one stays as it is.

        While a new row of it still waits, that one is answered.
        """
        if await self._is_unknown(outbox_id):
            raise NotFound(f"the outbox has no row {outbox_id}")
        sql = "SELECT outbox_id FROM {s}outbox WHERE requeued_from = $1 AND status = 'pending' ORDER BY outbox_id"
        waiting = await self._journal.store.fetch(sql, str(outbox_id))
        if waiting:
            return str(waiting[0][0])
        made = new_id()
        if await self._rows.requeue(made, str(outbox_id)):
            return made
        found = await self.get(outbox_id)
        if found is None:
            raise NotFound(f"the outbox has no row {outbox_id}")
        raise Conflict(f"row {outbox_id} is {found.status}; only dead rows can be requeued", code="not_dead")

    async def audits(self, outbox_id: str | None = None, *, limit: int = 1_000) -> list[Audit]:
        """What became of tries, the oldest first: of one row, or the newest of all."""
        most = whole_number(limit, "limit", 1, LIMIT_MAX)
        if outbox_id is None:
            mine, whose = ("", ()) if self._user_id is None else (_AUDITED_FOR, (self._user_id,))
            sql = f"{_AUDITS} {mine} ORDER BY at DESC, audit_id DESC LIMIT $1"
            return [audit_of(row) for row in reversed(await self._journal.store.fetch(sql, most, *whose))]
        if await self._is_unknown(outbox_id):
            return []
        sql = f"{_AUDITS} WHERE outbox_id = $1 ORDER BY at, audit_id LIMIT $2"
        return [audit_of(row) for row in await self._journal.store.fetch(sql, str(outbox_id), most)]

    async def rows(self, status: str, *, limit: int = 20) -> list[OutboxRow]:
        """Rows of one status, the newest first."""
        most = whole_number(limit, "limit", 1, LIMIT_MAX)
        mine, whose = ("", ()) if self._user_id is None else ("AND user_id = $3", (self._user_id,))
        sql = f"{_ROW} WHERE status = $1 {mine} ORDER BY created_at DESC, outbox_id DESC LIMIT $2"
        return [row_of(row) for row in await self._journal.store.fetch(sql, status, most, *whose)]

    async def settle(self, outbox_id: str, worker_id: str, token: str | None, **how: Any) -> bool:
        """Let go of a row in the named way, with an audit in the same commit if one is given."""
        if await self._is_unknown(outbox_id):
            return False
        settled = await self._rows.settle(
            Settlement(
                str(outbox_id),
                worker_id,
                None if token is None else _hashed(token),
                claim_id=None if token is None else token.partition(".")[0],
                **how,
            )
        )
        if settled and how["status"] == "dead":
            self._journal.tell_of_dead_letters()
        return settled

    async def renew(self, outbox_id: str, worker_id: str, token: str | None) -> bool:
        if await self._is_unknown(outbox_id):
            return False
        token_hash = None if token is None else _hashed(token)
        return await self._rows.renew(Renewal(str(outbox_id), worker_id, token_hash))

    async def renew_to_begin(self, rows: Sequence[OutboxRow], worker_id: str) -> list[bool]:
        """Renew rows whose deliveries are about to begin, and count those."""
        renewals = [Renewal(row.outbox_id, worker_id, _hashed(row.token or ""), 1) for row in rows]
        return await self._rows.renew_all(renewals) if renewals else []

    async def note(self, outbox_id: str, audit: AuditRow) -> bool:
        return await self._rows.note(outbox_id, audit)

    async def now(self) -> int:
        """The clock that judges leases."""
        return await self._journal.store.now()

    def listen(self) -> Listener:
        """Hears when rows may have been added."""
        return self._journal.store.listen(OUTBOX_TOPIC)

    @property
    def _rows(self) -> OutboxRows:
        return self._journal.store.outbox


@lru_cache(maxsize=64)
def _hashed(token: str) -> str:
    """All rows of a claim share its token."""
    return hash_token(token)


def _lease_us(lease_seconds: object) -> int:
    if isinstance(lease_seconds, bool) or not isinstance(lease_seconds, int | float):
        raise InvalidValue(f"lease_seconds must be a number of seconds, got a {type(lease_seconds).__name__}")
    if not 0 <= lease_seconds <= LEASE_S_MAX:
        raise InvalidValue(f"lease_seconds must be from 0 to {LEASE_S_MAX}, got {lease_seconds}")
    return round(lease_seconds * 1e6)


def _instant(moment: datetime | str) -> int:
    try:
        return to_us(datetime.fromisoformat(moment) if isinstance(moment, str) else moment)
    except (ValueError, TypeError, AttributeError) as error:
        text = f"next_attempt_at must be an aware datetime or ISO 8601 text with a timezone: {error}"
        raise InvalidValue(text) from error


def _ref(memory_id: object) -> str | None:
    if memory_id is None:
        return None
    text, _ = clean(memory_id if isinstance(memory_id, str) else canonical(clean(memory_id)[0]))
    return str(text)
