"""`Service`: what the routes of one app share."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from starlette.requests import Request

from holdfast.errors import DatabaseError, Gone, NotFound
from holdfast.facade import Holdfast
from holdfast.http.callers import Caller
from holdfast.http.limits import Gate, Limits
from holdfast.http.metrics import Metrics
from holdfast.http.readers import Readers
from holdfast.http.tails import Tails
from holdfast.identity import check_id
from holdfast.runtime import RunInfo
from holdfast.runtime.kept_answers import KeptAnswers

UNSAFE = frozenset({"POST", "PUT", "PATCH", "DELETE"})


class Service:
    """One runtime as one app shows it: who asks, what is kept for them, who listens, and whether we are leaving."""

    def __init__(self, hf: Holdfast, caller: Caller, *, role: str, limits: Limits) -> None:
        self.hf = hf
        self.role = role
        self.limits = limits
        self.gate = Gate(limits)
        self.metrics = Metrics(hf)
        self.answers = KeptAnswers(hf.journal.store)
        self.is_leaving = False
        """Streams end, and nobody new is sent here."""
        self.readers = Readers()
        self.tails = Tails(hf.journal, self.metrics)
        self._caller = caller
        self._opening = asyncio.Lock()
        self._is_ours = False

    async def user(self, request: Request) -> str:
        """Who asks; found out once for each request."""
        known: str | None = getattr(request.state, "user_id", None)
        if known is None:
            await self.open()
            async with in_time(self.limits.database_s):
                known = request.state.user_id = await self._caller(request)
            if request.method in UNSAFE:
                self.gate.command(known)
        return known

    async def asking(self, request: Request) -> Holdfast:
        """The runtime as whoever asks may see it: the ids of others are unknown there."""
        return self.hf.as_user(await self.user(request))

    async def open(self) -> None:
        """Open the runtime unless somebody has: a host that mounts the app may not tell it when it starts."""
        if self.hf.is_open:
            return
        async with self._opening:
            if not self.hf.is_open:
                await self.hf.open()
                self._is_ours = True

    async def close(self) -> None:
        """End every stream, and close the runtime if we opened it."""
        self.leave()
        await self.tails.close()
        if self._is_ours:
            self._is_ours = False
            await self.hf.close()

    def leave(self) -> None:
        """From now on this process is leaving. Every stream ends at once; their readers resume elsewhere."""
        self.is_leaving = True
        self.readers.leave()

    @asynccontextmanager
    async def lifespan(self) -> AsyncIterator[None]:
        """For hosts: what the app would do around its life if nobody mounted it."""
        await self.open()
        # A secret that nobody here can open is found now, not by the first who needs it.
        await self.hf.credentials.check()
        try:
            yield
        finally:
            await self.close()


@asynccontextmanager
async def in_time(seconds: float | None) -> AsyncIterator[None]:
    """A database that does not answer for so long is away, and said to be."""
    try:
        async with asyncio.timeout(seconds) as patience:
            yield
    except TimeoutError as error:
        if not patience.expired():
            raise
        text = "the database does not answer; what was asked for may or may not have been done"
        raise DatabaseError(text, code="database_timeout") from error


async def existing(mine: Holdfast, run_id: str) -> RunInfo:
    """The run as its owner sees it; `Gone` if it was deleted or is too old, `NotFound` if it never was theirs."""
    found = await mine.get_run(run_id)
    if found is None:
        raise await missing(mine, run_id)
    return found


async def missing(mine: Holdfast, run_id: str) -> Gone | NotFound:
    if await mine.is_gone(check_id(run_id, "run_id")):
        return Gone(f"run {run_id} was deleted, or is too old to be kept")
    return NotFound(f"there is no run {run_id}")


def place(request: Request, path: str) -> str:
    """A path of this app as a browser must spell it, wherever the app is mounted."""
    return f"{request.scope.get('root_path', '').rstrip('/')}{path}"


def next_page(request: Request, cursor: str) -> str:
    """The `Link` to what follows in a list, asked for in the same words."""
    url = request.url.include_query_params(cursor=cursor)
    return f'<{url.path}?{url.query}>; rel="next"'


def setting(name: str, default: str) -> str:
    """A setting of the environment, `HOLDFAST_…`."""
    return os.environ.get(f"HOLDFAST_{name}") or default
