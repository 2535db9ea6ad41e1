"""Lists of runs: redacted, newest first, filtered, and page by page without gaps or repeats."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from holdfast import Continue, Done, Holdfast, InvalidValue, ListedRun, Page
from tests.conftest import FakeClock
from tests.contract.builders import active, claim_one, create, hash_of, idle, in_status
from tests.contract.scene import build
from tests.contract.stage import sizes

SECRET = "xyzzy-secret"


def ids(page: Page[ListedRun]) -> list[str]:
    return [run.run_id for run in page.items]


async def pages(hf: Holdfast, **options: Any) -> list[Page[ListedRun]]:
    """Every page there is, one after the other."""
    found = [await hf.list_runs(**options)]
    while found[-1].next is not None:
        found.append(await hf.list_runs(**options, cursor=found[-1].next))
    return found


@pytest.mark.clause("SB-10", "S-05")
async def test_the_newest_comes_first_whatever_its_id_is(hf: Holdfast, clock: FakeClock) -> None:
    for run_id in ("m", "z", "a"):
        await create(hf, run_id=run_id)
        clock.advance(1)

    assert ids(await hf.list_runs()) == ["a", "z", "m"]


@pytest.mark.clause("SB-10")
async def test_runs_of_one_instant_have_an_order_of_their_own(hf: Holdfast) -> None:
    await hf.create_runs([{"session_id": "s1", "clog_id": "chat", "run_id": f"r{n}"} for n in (2, 0, 1)])

    assert ids(await hf.list_runs()) == ["r2", "r1", "r0"]
    assert [ids(page) for page in await pages(hf, limit=1)] == [["r2"], ["r1"], ["r0"]]


@pytest.mark.clause("SB-10", "S-05")
async def test_a_list_holds_nothing_that_the_run_was_given_or_said(hf: Holdfast) -> None:
    claim = await active(hf, input={"it": SECRET}, key=f"key-{SECRET}", metadata={"why": SECRET})
    await hf.emit(claim, "text", SECRET)
    await hf.complete(claim, Continue(SECRET))
    claim = await claim_one(hf, owner="some-worker")
    await hf.fail(claim, SECRET)
    failed = await active(hf, session_id="s2")
    await hf.fail(failed, SECRET, retry=False)
    done = await active(hf, session_id="s3")
    await hf.complete(done, Done(SECRET))

    shown = msgspec.json.encode(await hf.list_runs()).decode()

    hidden = [SECRET, "some-worker"]
    for each in (claim, failed, done):
        hidden += [each.claim_id, each.token, hash_of(each), each.tick_id]
    assert [word for word in hidden if word in shown] == []


@pytest.mark.clause("SB-10")
async def test_a_row_says_what_the_run_says_of_itself(hf: Holdfast, clock: FakeClock) -> None:
    scene = await build(hf, clock)

    listed = {run.run_id: run for page in await pages(hf, limit=7) for run in page.items}

    infos = [info for info in (await scene.infos()).values() if info]
    assert listed.keys() == {info.run_id for info in infos}
    shared = set(type(infos[0]).__struct_fields__) & set(type(listed[infos[0].run_id]).__struct_fields__)
    assert len(shared) == 16
    for info in infos:
        assert {name: getattr(listed[info.run_id], name) for name in shared} == {
            name: getattr(info, name) for name in shared
        }


@pytest.mark.clause("SB-10", "S-05")
async def test_a_list_is_narrowed_by_session_clog_and_status(hf: Holdfast, clock: FakeClock) -> None:
    await idle(hf, run_id="a", session_id="s1", clog_id="chat")
    await create(hf, run_id="b", session_id="s1", clog_id="mail")
    await create(hf, run_id="c", session_id="s2", clog_id="chat")
    await hf.cancel("c")

    assert ids(await hf.list_runs(session_id="s1")) == ["b", "a"]
    assert ids(await hf.list_runs(clog_id="chat")) == ["c", "a"]
    assert ids(await hf.list_runs(status="pending")) == ["b"]
    assert ids(await hf.list_runs(status=["idle", "cancelled", "idle"])) == ["c", "a"]
    assert ids(await hf.list_runs(session_id="s1", clog_id="chat", status="idle")) == ["a"]
    assert ids(await hf.list_runs(session_id="s2", clog_id="mail")) == []
    assert ids(await hf.list_runs(status=[])) == []
    assert await hf.list_runs(session_id="nobody") == Page([], None)


@pytest.mark.clause("SB-10")
@pytest.mark.parametrize("status", ["idle", "pending", "paused", "waiting", "failed", "cancelled", "done"])
async def test_every_status_can_be_asked_for(hf: Holdfast, status: str) -> None:
    await active(hf, queue="elsewhere")
    run_id = await in_status(hf, status)

    assert ids(await hf.list_runs(status=status)) == [run_id]


@pytest.mark.clause("SB-10")
async def test_pages_follow_each_other_while_runs_come_and_go(hf: Holdfast, clock: FakeClock) -> None:
    for n in range(7):
        await create(hf, run_id=f"r{n}")
        clock.advance(1 if n % 2 else 0)
    first = await hf.list_runs(limit=3)
    await create(hf, run_id="newcomer")
    await hf.cancel("r1")

    second = await hf.list_runs(limit=3, cursor=first.next)
    third = await hf.list_runs(limit=3, cursor=second.next)

    assert [ids(page) for page in (first, second, third)] == [["r6", "r5", "r4"], ["r3", "r2", "r1"], ["r0"]]
    assert third.next is None
    assert (await hf.list_runs(limit=8)).next is None


@pytest.mark.clause("SB-10")
async def test_a_page_never_holds_more_than_a_hundred(hf: Holdfast) -> None:
    await hf.create_runs([{"session_id": "s1", "clog_id": "chat"} for _ in range(101)])

    assert [len(page.items) for page in await pages(hf, limit=1_000)] == [100, 1]
    assert len((await hf.list_runs()).items) == 20


@pytest.mark.parametrize("cursor", ["", "x", "%%%", "AAAA", "é", "MTIz", "LTEvYQ", "OTk5OTk5OTk5OTk5OTk5OTk5OTkvYQ", 7])
async def test_a_cursor_of_ones_own_making_is_refused(hf: Holdfast, cursor: Any) -> None:
    with pytest.raises(InvalidValue) as caught:
        await hf.list_runs(cursor=cursor)

    assert caught.value.code == "invalid_cursor"


@pytest.mark.parametrize(
    "options", [{"limit": 0}, {"limit": "x"}, {"limit": True}, {"status": "busy"}, {"session_id": ""}, {"clog_id": "é"}]
)
async def test_a_question_that_means_nothing_is_refused(hf: Holdfast, options: dict[str, Any]) -> None:
    with pytest.raises(InvalidValue):
        await hf.list_runs(**options)


@pytest.mark.clause("SB-10")
@pytest.mark.parametrize("configuration", ["memory", "file", "postgres"])
async def test_a_user_sees_only_their_own_runs(hf: Holdfast) -> None:
    await create(hf, run_id="ours", session_id="s-ada", user_id="ada")
    await create(hf, run_id="theirs", session_id="s-bob", user_id="bob")

    ada = hf.as_user("ada")

    assert ids(await ada.list_runs()) == ["ours"]
    assert ids(await ada.list_runs(session_id="s-bob")) == []
    assert ids(await hf.list_runs()) == ["theirs", "ours"]


async def test_asking_changes_nothing(hf: Holdfast, clock: FakeClock) -> None:
    await build(hf, clock)
    before = await sizes(hf)

    await pages(hf, limit=3)

    assert await sizes(hf) == before
