"""Several statements, one commit, one instant."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Self

from holdfast.audit.instants import Validity
from holdfast.audit.payloads import Payloads
from holdfast.audit.recorders import Recorders
from holdfast.audit.statements import AnyFact, Statement, follow
from holdfast.errors import Conflict
from holdfast.store import FactKey

Look = Callable[[FactKey], Awaitable[AnyFact | None]]
Commit = Callable[[Sequence[Statement]], Awaitable[Validity | None]]


class Transaction(Recorders):
    """The recorders of the audit, whose facts enter together or not at all.

    No transaction of the database is open meanwhile: what was said is judged when it is said and once more, under
    locks, when it is committed. The first statement that is refused ends it; after its end nothing more can be said.
    """

    def __init__(self, payloads: Payloads, user_id: str | None, *, look: Look, commit: Commit) -> None:
        self._payloads = payloads
        self._user_id = user_id
        self._look = look
        self._commit = commit
        self._statements: list[Statement] = []
        self._is_over = False

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is not None:
            await self.abort()
        elif not self._is_over:
            await self.commit()

    async def record(self, statement: Statement) -> Validity | None:
        """Judge the statement on what the earlier ones leave behind, and keep it for the commit."""
        self._check()
        try:
            same = [other for other in self._statements if other.key == statement.key]
            follow({statement.key: await self._look(statement.key)}, [*same, statement])
        except BaseException:
            self._is_over = True
            raise
        self._statements.append(statement)
        return None

    async def commit(self) -> Validity | None:
        """Everything that was said, at one instant; answers it, or None where nothing was new."""
        self._check()
        self._is_over = True
        return await self._commit(self._statements)

    async def abort(self) -> None:
        """Nothing of it was said."""
        self._is_over = True

    def _check(self) -> None:
        if self._is_over:
            raise Conflict("this transaction is over; begin another one", code="transaction_ended")
