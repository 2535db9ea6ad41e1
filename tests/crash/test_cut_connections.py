"""Cut the connection at every message of every method: each call still ends exactly once, with the right answer."""

from __future__ import annotations

import random
from collections.abc import AsyncIterator, Sequence
from contextlib import AbstractContextManager

import pytest

from holdfast import Holdfast
from holdfast.store.postgres import Postgres
from tests.conftest import FakeClock
from tests.crash.cut_proxy import PLACES, Cut, CutProxy
from tests.crash.doubts import Doubts
from tests.crash.methods import METHODS, Method, Stage
from tests.schemas import drop

SEED = 20_300_101
MESSAGES_MAX = 4
"""Of a longer conversation the quick suite cuts as many, spread evenly; the slow one cuts all."""
HASTY = "&unsafe=1&synchronous_commit=off"
"""No power is lost here, so nobody has to wait for the disk."""
COLD = ("create_run", "claim_next", "claim_next_takes_over", "complete", "append", "append_to_a_run")

pytestmark = pytest.mark.timeout(600)


class Theatre:
    """Plays stories with cuts, and counts."""

    def __init__(self, proxy: CutProxy, stage: Stage, doubts: Doubts) -> None:
        self._proxy = proxy
        self._stage = stage
        self._doubts = doubts
        self._cuts: Sequence[Cut] = ()
        self.plays = self.struck = 0
        stage.cut = self._armed

    def _armed(self) -> AbstractContextManager[None]:
        return self._proxy.armed(self._cuts)

    async def play(self, method: Method, *cuts: Cut, cold: bool = False) -> int:
        """The number of messages that passed. Cold: the call finds no connection open."""
        self._cuts = cuts
        self._stage.begin()
        if cold:
            self._proxy.cut_all()
            # A round trip beside gives everybody the time to notice.
            await self._stage.beside.journal.store.fetch("SELECT 1")
        try:
            await method.story(self._stage)
        except BaseException as error:
            error.add_note(f"{method.name}, {cuts}")
            raise
        self.plays += bool(cuts)
        self.struck += self._proxy.struck
        return self._proxy.count

    async def warm(self, method: Method, *, cold: bool = False) -> int:
        """The messages of an undisturbed call."""
        for _ in range(2):
            await self.play(method, cold=cold)
        return await self.play(method, cold=cold)

    async def play_all(self, method: Method, messages: Sequence[int], *, cold: bool = False) -> int:
        """Cut at each of these messages, in every place; how many errors had committed nevertheless."""
        for message in messages:
            for where in PLACES:
                if not cold:
                    # After a cut everything is new; one more call makes it warm again.
                    await self.play(method)
                await self.play(method, Cut(message, where), cold=cold)
        return await self.report(method)

    async def report(self, method: Method) -> int:
        doubtful = await self._doubts.committed(self._stage.beside)
        print(f"{method.name}: {self.plays} calls cut, {self.struck} cuts, {doubtful} errors that had committed")
        return doubtful


def silence(monkeypatch: pytest.MonkeyPatch) -> None:
    """Hints may be lost and so are no part of this; their messages would only blur the count."""

    async def nothing(database: Postgres, _: object) -> None:
        return

    monkeypatch.setattr(Postgres, "send_hint", nothing)
    monkeypatch.setattr(Postgres, "listen", nothing)


@pytest.fixture
async def theatre(
    postgres_url: str, schema: str, clock: FakeClock, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[Theatre]:
    silence(monkeypatch)
    doubts = Doubts(monkeypatch)
    async with (
        CutProxy(postgres_url) as proxy,
        Holdfast(postgres_url + HASTY, clock=clock, schema=schema) as beside,
        Holdfast(proxy.url + HASTY, clock=clock, schema=schema) as through,
    ):
        yield Theatre(proxy, Stage(through, beside, clock), doubts)


def spread(messages: int, most: int = MESSAGES_MAX) -> list[int]:
    """All messages of a short conversation, an even choice from a long one."""
    chosen = min(messages, most)
    return [1 + place * messages // chosen for place in range(chosen)]


def named(method: Method) -> str:
    return method.name


@pytest.mark.clause("S-08")
@pytest.mark.parametrize("method", METHODS, ids=named)
async def test_a_call_ends_once_wherever_its_connection_is_cut(theatre: Theatre, method: Method) -> None:
    total = await theatre.warm(method)
    messages = spread(total)

    doubtful = await theatre.play_all(method, messages)

    assert theatre.struck == len(messages) * len(PLACES)
    # An even choice from a long conversation may miss the one message that commits.
    assert doubtful > 0 or not method.commits or total > 3 * MESSAGES_MAX


@pytest.mark.slow
@pytest.mark.parametrize("method", METHODS, ids=named)
async def test_a_call_ends_once_at_every_single_cut(theatre: Theatre, method: Method) -> None:
    messages = range(1, await theatre.warm(method) + 1)

    doubtful = await theatre.play_all(method, messages)

    assert theatre.struck == len(messages) * len(PLACES)
    assert doubtful > 0 or not method.commits


@pytest.mark.parametrize("method", [method for method in METHODS if method.name in COLD], ids=named)
async def test_a_call_ends_once_when_cut_while_it_connects(theatre: Theatre, method: Method) -> None:
    messages = spread(await theatre.warm(method, cold=True), 12)

    await theatre.play_all(method, messages, cold=True)

    # What a server says about itself as it greets varies by a message or two.
    assert theatre.struck >= 0.9 * len(messages) * len(PLACES)


@pytest.mark.parametrize("method", [method for method in METHODS if method.commits], ids=named)
async def test_a_call_ends_once_when_its_retries_are_cut_too(theatre: Theatre, method: Method) -> None:
    chance = random.Random(SEED)
    messages = await theatre.warm(method)

    for _ in range(6):
        await theatre.play(method)
        some = chance.sample(range(1, 2 * messages), 3)
        await theatre.play(method, *(Cut(message, chance.choice(PLACES)) for message in some))

    await theatre.report(method)
    assert theatre.struck > theatre.plays


async def test_opening_ends_with_a_whole_schema_wherever_it_is_cut(
    postgres_url: str, schema: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    silence(monkeypatch)
    async with CutProxy(postgres_url) as proxy:
        messages = await open_once(proxy, postgres_url, schema)
        for number, message in enumerate(spread(messages)):
            await open_once(proxy, postgres_url, schema, Cut(message, PLACES[number % len(PLACES)]))


async def open_once(proxy: CutProxy, postgres_url: str, schema: str, *cuts: Cut) -> int:
    """Open on nothing, use what was made, and take it away again; how many messages opening took."""
    holdfast = Holdfast(proxy.url, schema=schema)
    with proxy.armed(cuts):
        await holdfast.open()
    await holdfast.create_run(session_id="s", clog_id="noop")
    assert (await holdfast.fsck()).ok, cuts
    await holdfast.close()
    await drop(postgres_url, schema)
    return proxy.count
