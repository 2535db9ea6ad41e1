"""Profiles: in production only public https addresses and sealed secrets, on a desk loopback too, through the table."""

from __future__ import annotations

import pytest

from holdfast import Holdfast
from holdfast.errors import Misconfigured, SealError
from holdfast.http.login import login_routes
from holdfast.http.oauth import oauth_routes
from tests.conftest import FakeClock
from tests.credentials.keys import anywhere
from tests.http_oauth.browser import LOCAL, Browser, app_of, named, query
from tests.http_oauth.conftest import PUBLIC

START = "/api/oauth/openai/start"


@pytest.fixture
def production(host: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    host.setenv("HOLDFAST_PROFILE", "prod")
    host.setenv("HOLDFAST_PUBLIC_URL", PUBLIC)
    # Where the test's provider is: production reaches nothing on its own machine unless it is told to.
    host.setenv("HOLDFAST_OUTBOUND_ALLOW", "127.0.0.0/8")
    return host


@pytest.mark.clause("W-39", "W-55", "W-36")
async def test_production_connects_through_its_public_address(hf: Holdfast, production: pytest.MonkeyPatch) -> None:
    async with Browser(app_of(hf), PUBLIC) as browser:
        started = await browser.get(START)
        back = await browser.authorize(START)

        answer = await browser.get(back)

    assert query(started.headers["location"])["redirect_uri"] == f"{PUBLIC}/api/oauth/openai/callback"
    assert "__Host-oauth=" in started.headers["set-cookie"]
    assert {"Secure", "HttpOnly", "Path=/"} <= set(started.headers["set-cookie"].split("; "))
    assert back.startswith(f"{PUBLIC}/api/oauth/openai/callback?")
    assert answer.status_code == 200
    assert await hf.credentials.access_token("openai")


@pytest.mark.clause("W-39")
@pytest.mark.parametrize(
    "url",
    [
        "http://agents.example.org",
        "http://127.0.0.1:8787",
        "https://127.0.0.1",
        "https://localhost",
        "https://app.localhost",
        "https://[::1]",
        "https://10.0.0.7",
        "https://192.168.1.1:8443",
        "https://169.254.169.254",
        "https://[::ffff:127.0.0.1]",
    ],
)
@anywhere
async def test_production_refuses_other_addresses(hf: Holdfast, production: pytest.MonkeyPatch, url: str) -> None:
    production.setenv("HOLDFAST_PUBLIC_URL", url)

    with pytest.raises(Misconfigured, match="public https addresses only") as error:
        oauth_routes(hf, named)

    assert error.value.code == "public_url_required"


@pytest.mark.clause("W-39")
@anywhere
async def test_production_must_be_told_its_address(hf: Holdfast, production: pytest.MonkeyPatch) -> None:
    production.delenv("HOLDFAST_PUBLIC_URL")

    with pytest.raises(Misconfigured, match="HOLDFAST_PUBLIC_URL"):
        oauth_routes(hf, named)
    with pytest.raises(Misconfigured, match="HOLDFAST_PUBLIC_URL"):
        login_routes(hf)


@pytest.mark.clause("H-W9")
@anywhere
async def test_production_does_not_start_without_a_key(hf: Holdfast, production: pytest.MonkeyPatch) -> None:
    production.delenv("HOLDFAST_ENCRYPTION_KEYS")

    with pytest.raises(SealError, match="HOLDFAST_ENCRYPTION_KEYS is not set") as error:
        oauth_routes(hf, named)
    with pytest.raises(SealError, match="HOLDFAST_ENCRYPTION_KEYS is not set"):
        login_routes(hf)

    assert error.value.code == "encryption_key_missing"


@anywhere
async def test_a_worker_in_production_renews_without_an_address_of_its_own(
    hf: Holdfast, production: pytest.MonkeyPatch, clock: FakeClock
) -> None:
    async with Browser(app_of(hf), PUBLIC) as browser:
        await browser.get(await browser.authorize(START))
    first = await hf.credentials.access_token("openai")
    production.delenv("HOLDFAST_PUBLIC_URL")

    clock.advance(3_600)

    assert await hf.credentials.access_token("openai") != first


@anywhere
async def test_production_reaches_nothing_private(hf: Holdfast, production: pytest.MonkeyPatch) -> None:
    production.delenv("HOLDFAST_OUTBOUND_ALLOW")

    async with Browser(app_of(hf), PUBLIC) as browser:
        answer = await browser.get(START)

    assert (answer.status_code, answer.json()["code"]) == (502, "address_refused")


@pytest.mark.clause("W-39")
async def test_a_desk_uses_its_own_address(hf: Holdfast, host: pytest.MonkeyPatch) -> None:
    host.setenv("HOLDFAST_PROFILE", "dev-local")

    async with Browser(app_of(hf)) as browser:
        back = await browser.authorize(START)
        begun = await hf._store.fetch("SELECT redirect_uri FROM {s}oauth_states")
        answer = await browser.get(back)
        again = await browser.get(back)

    assert begun == [(f"{LOCAL}/api/oauth/openai/callback",)]
    assert (answer.status_code, again.status_code) == (200, 400)


@anywhere
async def test_the_address_is_never_taken_from_a_request(hf: Holdfast, host: pytest.MonkeyPatch) -> None:
    lies = {"host": "evil.example", "x-forwarded-host": "evil.example", "x-forwarded-proto": "https"}

    async with Browser(app_of(hf)) as browser:
        answer = await browser.get(START, headers=lies)

    assert query(answer.headers["location"])["redirect_uri"].startswith(LOCAL)


@anywhere
async def test_a_profile_nobody_knows_is_refused(hf: Holdfast, host: pytest.MonkeyPatch) -> None:
    host.setenv("HOLDFAST_PROFILE", "production")

    with pytest.raises(Misconfigured, match="use dev-local or prod"):
        oauth_routes(hf, named)
