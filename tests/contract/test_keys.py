"""One rule for every keyed call: the same key and body answers the same, another body is a conflict."""

from __future__ import annotations

import asyncio

import pytest

from holdfast import Conflict, Done, Holdfast
from tests.contract.builders import active, claim_one, create, idle, kinds, look


@pytest.mark.clause("C-26")
async def test_a_keyed_creation_repeated_answers_the_run_made_first(hf: Holdfast) -> None:
    first = await create(hf, key="k1", input={"a": 1, "b": (2,)})

    assert await create(hf, key="k1", input={"b": [2], "a": 1}) == first
    claim = await claim_one(hf)
    await hf.complete(claim, Done("over"))
    later = await create(hf, key="k1", input={"a": 1, "b": [2]})

    assert (later.run_id, later.status, later.output) == (first.run_id, "done", "over")
    assert await hf.find_run(key="k1") == later
    assert len(await kinds(hf, first.run_id)) == 3


@pytest.mark.clause("C-26")
async def test_a_creation_key_with_another_body_is_a_conflict(hf: Holdfast) -> None:
    first = await create(hf, key="k1")

    for other in ({"input": None}, {"queue": "slow"}, {"metadata": {"x": 1}}, {"max_deliveries": 6}):
        with pytest.raises(Conflict) as caught:
            await create(hf, key="k1", **other)
        assert caught.value.code == "key_reused"

    assert await hf.find_run(key="k1") == first
    assert len(await hf.journal.read("catalog")) == 1


@pytest.mark.clause("C-26")
async def test_creation_keys_are_per_user(hf: Holdfast) -> None:
    ada = await create(hf, key="k1", user_id="ada", session_id="a")
    bob = await create(hf, key="k1", user_id="bob", session_id="b", input="other")

    assert ada.run_id != bob.run_id
    assert await hf.find_run(key="k1", user_id="ada") == ada
    assert await hf.find_run(key="k1", user_id="bob") == bob
    assert await hf.find_run(key="k1") is None


@pytest.mark.clause("C-26")
async def test_of_several_callers_with_one_key_one_creates_and_all_get_it(hf: Holdfast) -> None:
    runs = await asyncio.gather(*(create(hf, key="k1") for _ in range(8)))

    assert len({run.run_id for run in runs}) == 1
    assert len(await hf.journal.read("catalog")) == 1


@pytest.mark.clause("C-26")
async def test_of_several_bodies_under_one_key_one_is_made_and_the_others_are_conflicts(hf: Holdfast) -> None:
    answers = await asyncio.gather(*(create(hf, key="k1", input=i) for i in range(6)), return_exceptions=True)

    refused = [answer for answer in answers if isinstance(answer, Conflict)]
    assert [error.code for error in refused] == ["key_reused"] * 5
    assert len(await hf.journal.read("catalog")) == 1


@pytest.mark.clause("C-26", "C-17")
async def test_a_keyed_signal_repeated_answers_the_first_receipt(hf: Holdfast) -> None:
    run = await idle(hf)

    first = await hf.signal(run.run_id, {"n": 1}, name="more", key="k1")
    claim = await claim_one(hf)
    again = await hf.signal(run.run_id, {"n": 1}, name="more", key="k1")
    await hf.complete(claim, Done())
    later = await hf.signal(run.run_id, {"n": 1}, name="more", key="k1")

    assert first == again == later
    assert (first.accepted, first.reason, first.rev) == (True, None, 2)
    assert (await kinds(hf, run.run_id)).count("signal_received") == 1


@pytest.mark.clause("C-26")
async def test_a_keyed_signal_after_the_end_answers_the_same_refusal_again(hf: Holdfast) -> None:
    claim = await active(hf)
    await hf.complete(claim, Done())

    first = await hf.signal(claim.run_id, "late", key="k1")

    assert (first.accepted, first.reason) == (False, "terminal")
    assert await hf.signal(claim.run_id, "late", key="k1") == first


@pytest.mark.clause("C-26")
async def test_a_signal_key_with_another_body_is_a_conflict(hf: Holdfast) -> None:
    run = await idle(hf)
    await hf.signal(run.run_id, 1, key="k1")

    with pytest.raises(Conflict) as caught:
        await hf.signal(run.run_id, 2, key="k1")
    with pytest.raises(Conflict):
        await hf.signal(run.run_id, key="k1")
    with pytest.raises(Conflict):
        await hf.signal(run.run_id, 1, key="k1", name="more")

    assert caught.value.code == "key_reused"
    assert await kinds(hf, run.run_id) == ["run_created", "signal_received"]


@pytest.mark.clause("C-26")
async def test_signal_keys_are_per_run(hf: Holdfast) -> None:
    left, right = await idle(hf), await idle(hf)

    receipts = await asyncio.gather(
        hf.signal(left.run_id, 1, key="k1"), hf.signal(right.run_id, 2, key="k1"), hf.signal(left.run_id, 1, key="k1")
    )

    assert [receipt.rev for receipt in receipts] == [2, 2, 2]
    assert [await kinds(hf, run.run_id) for run in (left, right)] == [["run_created", "signal_received"]] * 2


@pytest.mark.clause("C-26", "S-59", "SB-1")
async def test_a_keyed_decision_takes_effect_once(hf: Holdfast) -> None:
    run = await create(hf)
    await hf.pause(run.run_id, "review", "approval")

    await hf.approve(run.run_id, actor="ada", comment="fine", key="k1")
    await hf.approve(run.run_id, actor="ada", comment="fine", key="k1")
    with pytest.raises(Conflict) as caught:
        await hf.reject(run.run_id, actor="ada", comment="fine", key="k1")

    assert caught.value.code == "key_reused"
    assert (await look(hf, run.run_id)).status == "pending"
    assert await kinds(hf, run.run_id) == ["run_created", "manual_step_paused", "manual_step_resolved"]
