"""`fsck` tells on facts that were changed, lost or made up."""

from __future__ import annotations

import pytest

from holdfast import Holdfast
from tests.audit.builders import complete, request, say

DAMAGE = {
    "A1": "UPDATE {s}turns SET content = 'never said' WHERE validity = created",
    "A2": "DELETE FROM {s}turns WHERE validity = created",
    "R12": """
        INSERT INTO {s}tool_calls (request_id, call_id, validity, asserted, created, digest, user_id, vendor, tool_name,
            args_sha256, status, started_at)
        SELECT request_id, call_id, validity + 1, 1, created, digest, user_id, vendor, tool_name, args_sha256, 'failed',
            started_at
        FROM {s}tool_calls WHERE status = 'completed'
    """,
}


@pytest.mark.parametrize("law", sorted(DAMAGE))
async def test_damage_is_found_and_named(another_hf: Holdfast, law: str) -> None:
    hf = another_hf
    await say(hf.audit, "1", "hello")
    await say(hf.audit, "1", "hello again")
    await request(hf.audit)
    await complete(hf.audit)
    assert (await hf.fsck()).ok

    await hf.journal.store.execute((DAMAGE[law], ()))

    report = await hf.fsck()
    assert not report.ok
    assert law in {problem.law for problem in report.problems}
    assert {problem.where.partition(":")[0] for problem in report.problems} <= {"turns", "tool_calls"}


async def test_keys_that_are_cut_by_a_page_are_judged_whole(
    another_hf: Holdfast, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("holdfast.fsck.FACTS_PAGE", 3)
    for number in range(10):
        for word in range(number % 5 + 1):
            await say(another_hf.audit, str(number), f"word {word}")

    report = await another_hf.fsck()

    assert report.ok, report.problems
