"""Taking due work through all that can go wrong: lost answers, and runs whose rows are not what they should be."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence

from holdfast import ambient
from holdfast.redaction import logger
from holdfast.store.committer import Patience, patiently
from holdfast.store.database import Database
from holdfast.store.types import Claimed, ClaimRequest, OutcomeUnknown, Rejected, Row

log = logger("holdfast.store")

DOUBT_S = 1.0
DAMAGED_S = 60.0
DAMAGED_MAX = 1_000


class Claimer:
    """The claims of one store."""

    def __init__(self, database: Database, fetch: Callable[..., Awaitable[list[Row]]]) -> None:
        self._database = database
        self._fetch = fetch
        self._damaged: dict[str, float] = {}

    async def claim(self, request: ClaimRequest) -> list[Claimed]:
        """Take due work. After a lost connection the same claim ids are asked for, so nothing is taken twice."""
        if not request.claim_ids:
            return []
        if request.queues is None:
            request = request._replace(queues=await self.queues())
        request = self._without_damaged(request)
        commit_id = ambient.random_bits(62)
        try:
            return await patiently(lambda: self._database.claim(request, commit_id))
        except Rejected as error:
            if await self._find_damaged(request.queues or ()):
                return await self.claim(request)
            return await self._claim_again(request, commit_id, error)
        except OutcomeUnknown as error:
            return await self._claim_again(request, commit_id, error)

    async def _claim_again(self, request: ClaimRequest, commit_id: int, doubt: Exception) -> list[Claimed]:
        """A claim's fate is unknown: its ids show what it took. A commit still on its way has a moment to arrive."""
        patience = Patience()
        settled = ambient.monotonic() + DOUBT_S
        while True:
            claimed = await self._claimed(request.claim_ids)
            if claimed:
                return claimed
            await patience.pause(OutcomeUnknown(str(doubt)))
            try:
                found = await patiently(lambda: self._database.claim(request, commit_id))
            except (OutcomeUnknown, Rejected) as error:
                # Rejected: the lost commit arrived meanwhile, so its ticks already carry these ids.
                doubt = error
                continue
            # Nothing free to take may mean that the lost commit still locks what it took.
            if any(item.claim_id for item in found) or ambient.monotonic() >= settled:
                return found

    def _without_damaged(self, request: ClaimRequest) -> ClaimRequest:
        """Pass over the runs that no claim can take, until it is time to look whether they were repaired."""
        now = ambient.monotonic()
        self._damaged = {run_id: until for run_id, until in self._damaged.items() if until > now}
        return request._replace(passed=tuple(dict.fromkeys((*request.passed, *self._damaged))))

    async def _find_damaged(self, queues: Sequence[str]) -> bool:
        """Runs whose journal is ahead of their rows: a claim of one would fail every other in its batch."""
        places = ", ".join(f"${place}" for place in range(1, len(queues) + 1))
        sql = f"""
            SELECT DISTINCT w.run_id
            FROM {{s}}work w
            JOIN {{s}}runs r ON r.run_id = w.run_id
            WHERE w.queue IN ({places})
              AND EXISTS (SELECT 1 FROM {{s}}journal j WHERE j.thread = 'run:' || r.run_id AND j.rev = r.rev + 1)
            LIMIT {DAMAGED_MAX}
        """
        found = [row[0] for row in await self._fetch(sql, *queues)] if queues else []
        for run_id in found:
            log.warning("run %s cannot be claimed: its journal is ahead of its rows; run `holdfast rebuild`", run_id)
            self._damaged[run_id] = ambient.monotonic() + DAMAGED_S
        return bool(found)

    async def _claimed(self, claim_ids: Sequence[str]) -> list[Claimed]:
        # One statement: a lost commit that arrives between two would be seen in part, and the rest never worked on.
        places = ", ".join(f"${place}" for place in range(1, len(claim_ids) + 1))
        sql = f"SELECT run_id, key, tick_id, started_at FROM {{s}}ticks WHERE tick_id IN ({places})"
        found = {row[2]: Claimed(*row) for row in await self._fetch(sql, *claim_ids)}
        return [found[claim_id] for claim_id in claim_ids if claim_id in found]

    async def queues(self) -> tuple[str, ...]:
        # A loose scan: one index probe per queue, however much work is open.
        sql = """
            WITH RECURSIVE q (queue) AS (
                SELECT min(queue) FROM {s}work
                UNION ALL
                SELECT (SELECT min(queue) FROM {s}work WHERE queue > q.queue) FROM q WHERE q.queue IS NOT NULL
            )
            SELECT queue FROM q WHERE queue IS NOT NULL
        """
        return tuple(row[0] for row in await self._fetch(sql))
