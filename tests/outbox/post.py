"""What tests of the outbox share: rows to send, sinks that note what they were given, and ways to look."""

from __future__ import annotations

from typing import Any

import pytest

from holdfast import Holdfast
from holdfast.outbox import OutboxRow

shared = pytest.mark.parametrize("configuration", ["file", "postgres"], indirect=True)
"""For tests with several instances on one database."""


class Letterbox:
    """A sink that notes every call, and answers as it is told: a value, an exception, or a function of the payload."""

    def __init__(self, *answers: Any, last: Any = None) -> None:
        self._answers = list(answers)
        self._last = last
        self.calls: list[dict[str, Any]] = []

    async def __call__(self, payload: Any, *, idempotency_key: str, target_space: str, outbox_id: str) -> Any:
        self.calls.append({"payload": payload, "key": idempotency_key, "space": target_space, "outbox_id": outbox_id})
        answer = self._answers.pop(0) if self._answers else self._last
        if isinstance(answer, BaseException):
            raise answer
        if callable(answer):
            answer = await answer(payload)
        return answer

    @property
    def payloads(self) -> list[Any]:
        return [call["payload"] for call in self.calls]


def letterbox(hf: Holdfast, *answers: Any, space: str = "email", last: Any = None, **options: Any) -> Letterbox:
    box = Letterbox(*answers, last=last)
    hf.deliver(space, **options)(box)
    return box


async def send(hf: Holdfast, count: int = 1, space: str = "email") -> list[str]:
    """Rows with different payloads, in order."""
    return [await hf.outbox.enqueue({"n": number}, space) for number in range(count)]


async def row(hf: Holdfast, outbox_id: str) -> OutboxRow:
    found = await hf.outbox.get(outbox_id)
    assert found is not None
    return found


async def claimed(hf: Holdfast, worker_id: str = "w1", lease_seconds: float = 60, space: str = "email") -> OutboxRow:
    """A new row that this worker holds."""
    await hf.outbox.enqueue({"to": worker_id}, space)
    (found,) = await hf.outbox.claim_outbox(worker_id, lease_seconds=lease_seconds)
    return found


async def reasons(hf: Holdfast, outbox_id: str | None = None) -> list[str]:
    return [audit.reason.removeprefix("outbox_flush_") for audit in await hf.outbox.audits(outbox_id)]


def only(**counts: int) -> dict[str, int]:
    """The counts of a pass in which nothing else happened."""
    codes = ("success", "retry", "dead", "conflict", "dedup_hit", "db_timeout", "db_error")
    return {f"outbox_flush_{code}": counts.get(code, 0) for code in codes}
