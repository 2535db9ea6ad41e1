"""as_user: the same calls for one user, to whom everything of others is unknown."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from holdfast import Conflict, Done, Holdfast, NotFound
from tests.conftest import IN_PROCESS, FakeClock
from tests.contract.builders import active, claim_one, count, create, entries, event_types, look

pytestmark = pytest.mark.parametrize("configuration", IN_PROCESS)

Call = Callable[[Holdfast, Path], Awaitable[Any]]
CALLS: dict[str, Call] = {
    "cancel": lambda hf, _: hf.cancel("adas"),
    "pause": lambda hf, _: hf.pause("adas", "step"),
    "resume": lambda hf, _: hf.resume("adas"),
    "delete": lambda hf, _: hf.delete_run("adas"),
    "delete by force": lambda hf, _: hf.delete_run("adas", force=True),
    "delete the session": lambda hf, _: hf.delete_session("of-ada"),
    "purge": lambda hf, _: hf.purge("adas"),
    "purge what is deleted": lambda hf, _: hf.purge("adas-old"),
    "fork": lambda hf, _: hf.fork("adas", 1),
    "replay": lambda hf, _: hf.replay("adas"),
    "recover": lambda hf, _: hf.recover("adas"),
    "fsck": lambda hf, _: hf.fsck("adas"),
    "rebuild": lambda hf, _: hf.rebuild("adas"),
    "export": lambda hf, path: hf.export_run("adas", path / "new.db"),
    "import": lambda hf, path: hf.import_run(path / "adas.db"),
    "use the session": lambda hf, _: create(hf, session_id="of-ada"),
    "create for her": lambda hf, _: create(hf, user_id="ada"),
}


async def of_ada(hf: Holdfast, folder: Path) -> Holdfast:
    """What Ada has: a run, one that is deleted, and one in a file. Answers what Bob sees."""
    ada = hf.as_user("ada")
    await create(ada, run_id="adas", session_id="of-ada", key="mine")
    await ada.export_run("adas", folder / "adas.db")
    await create(ada, run_id="adas-old", session_id="of-ada", queue="old")
    await ada.delete_run("adas-old")
    return hf.as_user("bob")


@pytest.mark.parametrize("name", CALLS)
async def test_what_is_anothers_is_unknown(hf: Holdfast, tmp_path: Path, name: str) -> None:
    bob = await of_ada(hf, tmp_path)
    before = await count(hf, "journal")

    with pytest.raises(NotFound):
        await CALLS[name](bob, tmp_path)

    assert await count(hf, "journal") == before
    assert not (tmp_path / "new.db").exists()
    assert (await look(hf, "adas")).status == "pending"


async def test_questions_about_others_find_nothing(hf: Holdfast, tmp_path: Path) -> None:
    bob = await of_ada(hf, tmp_path)

    assert await bob.get_run("adas") is None
    assert await bob.get_run("adas", as_of=1) is None
    assert await event_types(bob, "adas") == []
    assert await bob.find_run(key="mine") is None
    assert not await bob.is_gone("adas-old")
    assert (await bob.signal("adas", 1)).reason == "not_found"
    assert (await bob.fsck()).runs_checked == 0


async def test_ones_own_is_there_in_full(hf: Holdfast, tmp_path: Path, clock: FakeClock) -> None:
    ada = hf.as_user("ada")
    await of_ada(hf, tmp_path)

    assert await ada.is_gone("adas-old")
    assert (await ada.fsck()).runs_checked == 1
    assert (await ada.rebuild("adas")).ok
    assert (await ada.import_run(tmp_path / "adas.db")).run_id == "adas"
    forked, replayed = await ada.fork("adas", 1), await ada.replay("adas")
    for run in (forked, replayed):
        assert await hf.as_user("bob").get_run(run.run_id) is None
        assert (await ada.recover(run.run_id)).session_id == "of-ada"
    await ada.delete_session("of-ada")
    assert await count(hf, "runs") == 0


async def test_each_clears_up_after_themselves(hf: Holdfast, clock: FakeClock) -> None:
    for user in ("ada", "bob"):
        await hf.complete(await active(hf, run_id=user, user_id=user, session_id=f"of-{user}"), Done())
        await create(hf, run_id=f"{user}-old", user_id=user, session_id=f"of-{user}")
        await hf.delete_run(f"{user}-old")
    clock.advance(60)

    assert await hf.as_user("ada").gc(60) == 2

    assert [await hf.is_gone(user) for user in ("ada", "bob")] == [True, False]
    assert len(await entries(hf, "bob-old")) > 0


async def test_ids_are_one_namespace_for_all(hf: Holdfast, tmp_path: Path) -> None:
    bob = await of_ada(hf, tmp_path)

    for run_id in ("adas", "adas-old"):
        with pytest.raises(Conflict) as caught:
            await create(bob, run_id=run_id, session_id="of-bob")
        assert caught.value.code == "id_reused"


async def test_workers_serve_everyone(hf: Holdfast, tmp_path: Path) -> None:
    await of_ada(hf, tmp_path)

    assert (await hf.complete(await claim_one(hf))).run_id == "adas"
