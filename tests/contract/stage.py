"""Runs to knock at every door of, and what must be true after something was refused there."""

from __future__ import annotations

from collections.abc import Awaitable
from typing import Any, NamedTuple

import pytest

from holdfast import Claim, Done, Holdfast, HoldfastError
from tests.contract.builders import active, claim_one, create, idle
from tests.contract.scene import MADE_FROM_THE_JOURNAL


class Stage(NamedTuple):
    """A runtime with a run that rests, one that is worked on, and one that waits for a decision."""

    hf: Holdfast
    idle: str
    claim: Claim
    asked: str


async def set_stage(hf: Holdfast) -> Stage:
    asked = await idle(hf)
    await hf.pause(asked.run_id, "go-live", kind="approval")
    return Stage(hf, (await idle(hf)).run_id, await active(hf), asked.run_id)


async def sizes(hf: Holdfast) -> dict[str, int]:
    """How many rows every table has."""
    tables = (*MADE_FROM_THE_JOURNAL, "journal", "checkpoints")
    return {name: (await hf.journal.store.fetch(f"SELECT count(*) FROM {{s}}{name}"))[0][0] for name in tables}


async def refused(stage: Stage, call: Awaitable[Any], code: str) -> str:
    """The words of the refusal; it carries this code and leaves no trace."""
    before = await sizes(stage.hf)
    with pytest.raises(HoldfastError) as caught:
        await call
    assert caught.value.code == code, caught.value
    assert await sizes(stage.hf) == before
    return str(caught.value)


async def assert_healthy(stage: Stage) -> None:
    """Everything that was there still works, and so does something new."""
    hf = stage.hf
    assert (await hf.complete(stage.claim, "as ever")).output == "as ever"
    assert (await hf.approve(stage.asked, actor="ada")).status == "idle"
    assert (await hf.signal(stage.idle, 1)).accepted
    await create(hf, queue="new")
    assert (await hf.complete(await claim_one(hf, "new"), Done(1))).status == "done"


def note(data: Any) -> list[dict[str, Any]]:
    return [{"kind": "note", "data": data}]


def runs(**options: Any) -> list[dict[str, Any]]:
    """Two creation requests, the second with something special."""
    return [{"session_id": "s", "clog_id": "c"}, {"session_id": "s", "clog_id": "c", **options}]
