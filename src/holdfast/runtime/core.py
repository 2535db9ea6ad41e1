"""`Core`: the opened runtime that every other part stands on, and the one question everybody asks."""

from __future__ import annotations

import copy
from collections.abc import Callable
from datetime import datetime
from pathlib import Path
from typing import Self

from holdfast.ambient import Clock
from holdfast.audit import Audit
from holdfast.audit.payloads import Payloads, PersistPayloads
from holdfast.errors import InvalidValue, NotFound
from holdfast.identity import check_id, check_name, new_id
from holdfast.journal import Executed, Journal, Limits, RunPlanner
from holdfast.journal.wakeups import Notifier
from holdfast.moments import to_us
from holdfast.protocol.commands import Command
from holdfast.protocol.decisions import Decision
from holdfast.protocol.facts import ROOT, RunCreated
from holdfast.protocol.state import RunState
from holdfast.protocol.values import whole_number
from holdfast.redaction import Redaction
from holdfast.runtime.records import RunInfo, run_info
from holdfast.store import Database, Store, connect

LEASE_MS_MAX = 1 << 40

Taker = Callable[[str, RunCreated], bool]


class Core:
    """One database, opened; the journal on it; and for whom we ask."""

    def __init__(
        self,
        url: str = "holdfast.db",
        *,
        clock: Clock | None = None,
        lease_ms: int = 30_000,
        queue: str = "default",
        schema: str = "holdfast",
        notifier: Notifier | None = None,
        max_body_bytes: int = 8 << 20,
        grouped: bool = True,
        database: Database | None = None,
        persist_payloads: PersistPayloads = False,
        project_root: str | Path | None = None,
        statement_timeout_ms: int | None = None,
    ) -> None:
        self.lease_ms = lease_ms
        self._clock = clock
        self.backend = _backend(url)
        """Which kind of database this is: postgres, sqlite or memory."""
        self.queue = check_id(queue, "queue")
        used = database or connect(
            url, _microseconds(clock), schema=check_id(schema, "schema"), statement_timeout_ms=statement_timeout_ms
        )
        self._store: Store[RunState] = Store(used, RunPlanner(), grouped=grouped)
        self.redaction = Redaction.of_environment()
        """What is hidden from people; `redaction.hide(secret)` adds to it."""
        self.journal = Journal(self._store, Limits(max_body_bytes), notifier, self.redaction)
        payloads = Payloads(
            self.redaction, persist=persist_payloads, project_root=project_root, max_bytes=max_body_bytes
        )
        self.audit = Audit(self.journal, payloads)
        self.owner_id = f"hf-{new_id()}"
        self._user_id: str | None = None
        self.is_open = False
        self._known_clogs: frozenset[str] | None = None
        """The clogs that this process serves; None while that is not known."""
        self.takers: list[Taker] = []
        """Who in this process is asked, in this order, whether to take a run that is just being created."""

    async def open(self, *, migrate: bool = True) -> Self:
        """Connect. Unless told otherwise, bring the schema up to date first; that is safe to repeat."""
        await self._store.open(migrate=migrate)
        self.is_open = True
        return self

    async def close(self) -> None:
        self.is_open = False
        await self.journal.close()
        await self.audit.close()
        await self._store.close()

    async def __aenter__(self) -> Self:
        return await self.open()

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    def as_user(self, user_id: str) -> Self:
        """The same calls for one user, to whom the ids of others are unknown. It shares what this one has opened."""
        scoped = copy.copy(self)
        scoped._user_id = check_id(user_id, "user_id")
        scoped.audit = self.audit.as_user(user_id)
        return scoped

    async def get_run(self, run_id: str, as_of: int | datetime | None = None) -> RunInfo | None:
        """The run now, after a revision, or as it was at an instant."""
        check_id(run_id, "run_id")
        if as_of is None:
            state = (await self.journal.slices([run_id])).get(run_id)
        elif isinstance(as_of, datetime):
            state = await self.journal.state(run_id, at=_instant(as_of))
        else:
            state = await self.journal.state(run_id, rev=whole_number(as_of, "as_of", -(1 << 62), 1 << 62))
        return None if state is None or self._user_id not in (None, state.user_id) else await self._info(state)

    async def find_run(self, *, key: str, user_id: str = "local") -> RunInfo | None:
        """The run that this key made, among those of one user."""
        sql = "SELECT run_id FROM {s}keys WHERE scope = $1 AND key = $2"
        scope = f"user:{self._user_id or check_id(user_id, 'user_id')}"
        rows = await self._store.fetch_by_key(sql, scope, check_name(key, "key"))
        return await self.get_run(rows[0][0]) if rows else None

    async def command(self, run_id: str, command: Command) -> Executed:
        """Carry out a command on a run; for one user, on a run of theirs."""
        check_id(run_id, "run_id")
        if not await self.owns(run_id):
            return Executed(Decision(refusal="not_found"), RunState(run_id=run_id), None, 0)
        return await self.journal.execute(run_id, command)

    async def owns(self, run_id: str) -> bool:
        if self._user_id is None:
            return True
        sql = "SELECT 1 FROM {s}runs WHERE run_id = $1 AND user_id = $2"
        return bool(await self._store.fetch_by_key(sql, run_id, self._user_id))

    async def _known(self, run_id: str, executed: Executed) -> RunInfo:
        if executed.decision.refusal == "not_found":
            raise NotFound(f"there is no run {run_id}")
        return await self._info(executed.state)

    async def _existing(self, run_id: str) -> RunInfo:
        found = await self.get_run(run_id)
        if found is None:
            raise NotFound(f"there is no run {run_id}")
        return found

    async def _info(self, state: RunState) -> RunInfo:
        root = state.work.get(ROOT)
        next_rev = root.input_rev if root and root.claim is None else None
        places = [(state.run_id, rev) for rev in (next_rev, state.output_rev) if rev is not None]
        bodies = await self.journal.facts_at(places) if places else {}
        pending = bodies.get((state.run_id, next_rev or 0))
        ended = bodies.get((state.run_id, state.output_rev or 0))
        return run_info(state, pending_input=getattr(pending, "input", None), output=getattr(ended, "output", None))

    def _lease_us(self, lease_ms: int | None) -> int:
        return whole_number(self.lease_ms if lease_ms is None else lease_ms, "lease_ms", 1, LEASE_MS_MAX) * 1_000


def _backend(url: str) -> str:
    if url.startswith(("postgresql://", "postgres://")):
        return "postgres"
    return "memory" if url.removeprefix("sqlite:///") == ":memory:" else "sqlite"


def _instant(moment: datetime) -> int:
    if moment.tzinfo is None:
        raise InvalidValue("as_of has no timezone; use an aware datetime, for example with tzinfo=UTC")
    return to_us(moment)


def _microseconds(clock: Clock | None) -> Callable[[], int] | None:
    return None if clock is None else lambda: to_us(clock.now())
