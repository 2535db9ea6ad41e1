"""How often a claim is renewed and a cancel looked for: a minute of the pulse, on a clock that only the test moves."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import pytest

from holdfast import Holdfast, ambient
from holdfast.runtime.pulse import Hold, Pulse
from holdfast.store import Beat, Beaten
from tests.conftest import FakeClock

MINUTE_S = 60.0
LEASE_US = 30_000_000


class Notebook:
    """Stands where the database stands, and notes when it was asked what."""

    def __init__(self) -> None:
        self.now = 1_000.0
        self.beats: list[float] = []
        self.looks: list[float] = []
        self.cancelled: list[str] = []
        self.is_away = False

    async def heartbeat(self, beats: Sequence[Beat], lease_us: int) -> list[Beaten]:
        if self.is_away:
            raise ConnectionError("away, as told")
        self.beats.append(self.now)
        return [Beaten(beat.claim_id, 0, 1, None) for beat in beats]

    async def cancelled_among(self, run_ids: Sequence[str]) -> list[str]:
        self.looks.append(self.now)
        return [run_id for run_id in run_ids if run_id in self.cancelled]


class Minute:
    """A pulse without its thread: its rounds follow each other as fast as it says."""

    def __init__(self, notebook: Notebook) -> None:
        self.notebook = notebook
        self._pulse = Pulse(lambda: pytest.fail("nobody opens a database here"))

    def hold(self, name: str) -> Hold:
        hold = Hold(Beat(f"run-{name}", "", name, "hash"), LEASE_US, self.notebook.now)
        self._pulse._holds[name] = hold
        return hold

    async def pass_by(self, seconds: float = MINUTE_S, *, most_s: float = MINUTE_S) -> None:
        store: Any = self.notebook
        until = self.notebook.now + seconds
        while self.notebook.now < until:
            self.notebook.now += min(await self._pulse._round(store), most_s)


@pytest.fixture
def notebook(monkeypatch: pytest.MonkeyPatch) -> Notebook:
    made = Notebook()
    monkeypatch.setattr(ambient, "monotonic", lambda: made.now)
    return made


def gaps(times: Sequence[float]) -> list[float]:
    return [after - before for before, after in itertools.pairwise(times)]


@pytest.mark.clause("WB-12")
async def test_a_lease_of_thirty_seconds_is_renewed_every_ten(notebook: Notebook) -> None:
    minute = Minute(notebook)
    hold = minute.hold("one")
    began = notebook.now

    await minute.pass_by()

    assert [round(at - began) for at in notebook.beats] == [10, 20, 30, 40, 50]
    assert hold.deadline - notebook.beats[-1] == 30
    assert not hold.lost


@pytest.mark.clause("WB-12")
async def test_a_cancel_is_looked_for_every_750_ms_and_never_more_often(notebook: Notebook) -> None:
    minute = Minute(notebook)
    for number in range(50):
        minute.hold(f"many-{number}")
        # Claims come and wake it; that is no reason to look again.
        await minute.pass_by(0.1, most_s=0.1)

    await minute.pass_by()

    assert min(gaps(notebook.looks)) == pytest.approx(0.75)
    assert max(gaps(notebook.looks)) < 0.76 + 0.1


@pytest.mark.clause("WB-12")
async def test_a_cancel_reaches_its_holder_with_the_next_look(notebook: Notebook) -> None:
    minute = Minute(notebook)
    hold = minute.hold("one")
    await minute.pass_by(5)
    notebook.cancelled.append("run-one")

    await minute.pass_by(0.75)

    assert hold.cancel_requested


@pytest.mark.clause("WB-12")
async def test_a_renewal_that_fails_is_tried_again_until_the_lease_is_over(notebook: Notebook) -> None:
    minute = Minute(notebook)
    hold = minute.hold("one")
    notebook.is_away = True
    await minute.pass_by(25)
    hold.check()
    notebook.is_away = False
    await minute.pass_by(1)
    assert hold.deadline > notebook.now + 28

    notebook.is_away = True
    await minute.pass_by(31)

    with pytest.raises(Exception, match="lease") as refused:
        hold.check()
    assert getattr(refused.value, "code", None) == "expired_claim"


@pytest.mark.clause("WB-12")
async def test_a_lease_is_thirty_seconds_unless_told(database_url: str, schema: str, clock: FakeClock) -> None:
    async with Holdfast(database_url, schema=schema, clock=clock) as hf:
        await hf.create_run(session_id="s", clog_id="chat", input=1)
        (claim,) = await hf.claim_next()

    assert claim.lease_until - clock.now() == timedelta(seconds=30)
