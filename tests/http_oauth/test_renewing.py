"""Renewing tokens: shortly before they end, once however many ask, and never in a loop."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from pathlib import Path

import pytest

from holdfast import Holdfast, HoldfastError
from holdfast.credentials.environment import known_provider
from holdfast.errors import ProviderError, ReauthRequired
from tests.conftest import FakeClock, Opener
from tests.credentials.keys import anywhere, shared, tokens
from tests.http_oauth.browser import Browser, app_of
from tests.http_oauth.conftest import REDIRECTS, configure
from tests.http_oauth.providers import TestProvider, running
from tests.http_oauth.proxy import proxying

ROOT = Path(__file__).parents[2]
HOUR = 3_600
pytestmark = pytest.mark.usefixtures("host")


async def connect(hf: Holdfast) -> str:
    async with Browser(app_of(hf)) as browser:
        answer = await browser.get(await browser.authorize("/api/oauth/openai/start"))
        assert answer.status_code == 200, answer.text
    return await hf.credentials.access_token("openai")


async def refresh_token(hf: Holdfast) -> str:
    kept = await hf.office.grants.read("local", "openai")
    assert kept is not None
    found = hf.office.grants.refresh_token(kept)
    assert found is not None
    return found


async def status(hf: Holdfast) -> str:
    grant = await hf.credentials.get("openai")
    assert grant is not None
    return grant.status


@pytest.fixture
def schema(own_schema: str) -> str:
    return own_schema


@pytest.mark.clause("WB-11")
async def test_a_token_is_renewed_in_its_last_minute(hf: Holdfast, clock: FakeClock, provider: TestProvider) -> None:
    first, before = await connect(hf), provider.refreshes

    clock.advance(HOUR - 61)
    early = await hf.credentials.access_token("openai")
    clock.advance(1)
    late = await hf.credentials.access_token("openai")

    assert (early, late != first, provider.refreshes - before) == (first, True, 1)
    assert await hf.credentials.access_token("openai") == late
    grant = await hf.credentials.get("openai")
    assert grant is not None
    assert (grant.version, grant.account_id, grant.status) == (2, "alice", "connected")


@pytest.mark.clause("W-38", "W-53", "WB-11")
@shared
async def test_a_renewed_token_is_seen_by_all(
    hf: Holdfast, another: Opener, clock: FakeClock, provider: TestProvider
) -> None:
    first, other = await connect(hf), await another()
    assert await other.credentials.access_token("openai") == first
    clock.advance(HOUR)
    before = provider.refreshes

    renewed = await hf.credentials.access_token("openai")

    assert renewed != first
    assert await other.credentials.access_token("openai") == renewed
    assert provider.refreshes - before == 1


@pytest.mark.clause("WB-11")
async def test_the_rotated_token_is_the_one_that_is_used_next(
    hf: Holdfast, clock: FakeClock, provider: TestProvider
) -> None:
    got = {await connect(hf)}

    for _ in range(4):
        clock.advance(HOUR)
        got.add(await hf.credentials.access_token("openai"))

    assert len(got) == 5
    assert provider.asked("refresh_token")[-1]["error"] is None


@pytest.mark.clause("W-38", "WB-11", "W-53")
@shared
async def test_twenty_tasks_in_three_processes_renew_once(
    host: pytest.MonkeyPatch, database_url: str, schema: str
) -> None:
    with running(*REDIRECTS, slow=300) as slow:
        configure(host, "openai", slow.url)
        async with Holdfast(database_url, schema=schema) as real:
            first = await connect(real)
            await real._store.execute(("UPDATE {s}credentials SET expires_at = 1", ()))
            told = json.dumps({"url": database_url, "schema": schema, "tasks": 20})

            processes = [await _begin(told) for _ in range(3)]
            outputs = await asyncio.gather(*(process.communicate(b"go\n") for process in processes))

            got = [token for output, _ in outputs for token in json.loads(output)]
            grant = await real.credentials.get("openai")
            assert (len(got), len(set(got)), got[0] == first) == (60, 1, False)
            assert slow.asked("refresh_token") == [{"grant": "refresh_token", "error": None}]
            assert grant is not None
            assert (grant.version, grant.status) == (2, "connected")
            assert await real.credentials.access_token("openai") == got[0]


async def _begin(told: str) -> asyncio.subprocess.Process:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT / "src"), str(ROOT), *sys.path])}
    pipe = asyncio.subprocess.PIPE
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "tests.http_oauth.programs", told), cwd=ROOT, env=environment, stdin=pipe, stdout=pipe
    )
    assert process.stdout is not None
    assert await process.stdout.readline() == b"ready\n"
    return process


@pytest.mark.slow
@pytest.mark.clause("W-38")
@shared
async def test_a_process_that_is_killed_while_it_renews_is_followed_by_another(
    host: pytest.MonkeyPatch, database_url: str, schema: str
) -> None:
    with running(*REDIRECTS) as hanging:
        configure(host, "openai", hanging.url)
        async with Holdfast(database_url, schema=schema) as real:
            first = await connect(real)
            await real._store.execute(("UPDATE {s}credentials SET expires_at = 1", ()))
            process = await _begin(json.dumps({"url": database_url, "schema": schema, "tasks": 1}))
            hanging.told("hang")
            assert process.stdin is not None
            process.stdin.write(b"go\n")
            await asyncio.to_thread(hanging.told, "held")

            process.kill()
            await process.wait()
            renewed = await real.credentials.access_token("openai")

            assert (renewed != first, hanging.refreshes, await status(real)) == (True, 1, "connected")


async def test_a_grant_that_is_no_longer_honoured_is_not_asked_for_again(
    hf: Holdfast, clock: FakeClock, provider: TestProvider
) -> None:
    await connect(hf)
    stolen = await refresh_token(hf)
    await hf.office.providers.refresh(known_provider("openai"), stolen)
    clock.advance(HOUR)
    before = provider.refreshes

    answers = await asyncio.gather(*(hf.credentials.access_token("openai") for _ in range(5)), return_exceptions=True)
    with pytest.raises(ReauthRequired):
        await hf.credentials.access_token("openai")

    assert {type(answer) for answer in answers} == {ReauthRequired}
    assert provider.refreshes - before == 1, "one try, and never a loop"
    assert await status(hf) == "reauth_required"
    async with Browser(app_of(hf)) as browser:
        shown = (await browser.get("/api/settings")).json()
    assert (shown["openai_oauth_connected"], shown["openai_oauth_reauth_required"]) == (False, True)
    assert await connect(hf)
    assert await status(hf) == "connected"


async def test_whoever_died_while_renewing_is_followed_by_another(
    hf: Holdfast, clock: FakeClock, provider: TestProvider
) -> None:
    first = await connect(hf)
    clock.advance(HOUR)
    kept = await hf.office.grants.read("local", "openai")
    assert kept is not None
    assert await hf.office.grants.take(kept, "a dead process", 45_000_000)
    waiting = asyncio.create_task(hf.credentials.access_token("openai"))
    await asyncio.sleep(0.5)
    assert not waiting.done()

    clock.advance(45)

    assert await waiting != first
    assert not await hf.office.grants.renew(kept, "a dead process", tokens()), "a late comer changes nothing"
    assert not await hf.office.grants.give_up(kept, "a dead process")
    assert await hf.credentials.access_token("openai") == await waiting


async def test_a_grant_that_is_replaced_meanwhile_wins(
    hf: Holdfast, host: pytest.MonkeyPatch, clock: FakeClock
) -> None:
    with running(*REDIRECTS, slow=700) as slow:
        configure(host, "openai", slow.url)
        await connect(hf)
        clock.advance(HOUR)
        renewing = asyncio.create_task(hf.credentials.access_token("openai"))
        await asyncio.sleep(0.3)

        await hf.credentials.put("openai", tokens(access_token="the user connected again"))

        assert await renewing == "the user connected again"
        assert await hf.credentials.access_token("openai") == "the user connected again"


@anywhere
async def test_who_stops_waiting_does_not_stop_the_renewal(
    hf: Holdfast, host: pytest.MonkeyPatch, clock: FakeClock
) -> None:
    with running(*REDIRECTS, slow=500) as slow:
        configure(host, "openai", slow.url)
        first = await connect(hf)
        clock.advance(HOUR)
        impatient = asyncio.create_task(hf.credentials.access_token("openai"))
        await asyncio.sleep(0.2)

        impatient.cancel()
        renewed = await hf.credentials.access_token("openai")

        assert impatient.cancelled()
        assert (renewed != first, slow.refreshes) == (True, 1)


@anywhere
async def test_an_answer_that_was_lost_is_asked_for_once_more(
    hf: Holdfast, host: pytest.MonkeyPatch, clock: FakeClock
) -> None:
    async with proxying() as proxy:
        with running(*REDIRECTS, issuer=proxy.url) as behind:
            proxy.target = behind.url
            configure(host, "openai", proxy.url)
            await connect(hf)
            clock.advance(HOUR)
            proxy.seen, proxy.lose = 0, 1

            with pytest.raises(ReauthRequired):
                await hf.credentials.access_token("openai")

            assert proxy.seen == 2
            assert [each["error"] for each in behind.asked("refresh_token")] == [None, "invalid_grant"]
            assert await status(hf) == "reauth_required"


@anywhere
async def test_a_provider_that_is_away_is_asked_again_later(
    hf: Holdfast, host: pytest.MonkeyPatch, clock: FakeClock
) -> None:
    async with proxying() as proxy:
        with running(*REDIRECTS, issuer=proxy.url) as behind:
            proxy.target = behind.url
            configure(host, "openai", proxy.url)
            first = await connect(hf)
            proxy.target = "http://127.0.0.1:9"
            clock.advance(HOUR - 30)

            in_its_last_minute = await hf.credentials.access_token("openai")
            clock.advance(30)
            with pytest.raises(ProviderError, match="try again") as error:
                await hf.credentials.access_token("openai")
            proxy.target = behind.url
            back = await hf.credentials.access_token("openai")

            assert (in_its_last_minute, error.value.code, back != first) == (first, "provider_unavailable", True)
            assert behind.refreshes == 1


async def test_without_a_refresh_token_it_is_used_to_its_end(hf: Holdfast, clock: FakeClock) -> None:
    await hf.credentials.put("openai", tokens(access_token="only", refresh_token=None, lifetime_s=100))

    clock.advance(99)
    last = await hf.credentials.access_token("openai")
    clock.advance(1)
    with pytest.raises(ReauthRequired):
        await hf.credentials.access_token("openai")

    assert (last, await status(hf)) == ("only", "reauth_required")


@anywhere
async def test_a_token_without_an_end_is_never_renewed(hf: Holdfast, clock: FakeClock, provider: TestProvider) -> None:
    before = provider.refreshes
    await hf.credentials.put("openai", tokens(access_token="endless", lifetime_s=None))

    clock.advance(1e9)

    assert await hf.credentials.access_token("openai") == "endless"
    assert provider.refreshes == before


@anywhere
async def test_nothing_granted_is_said(hf: Holdfast) -> None:
    with pytest.raises(HoldfastError, match="connect it first") as error:
        await hf.credentials.access_token("openai")

    assert error.value.code == "not_connected"
