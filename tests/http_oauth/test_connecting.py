"""Connecting an account: from any node, once, in time, in the same browser, and with a provider that checks PKCE."""

from __future__ import annotations

import asyncio
from urllib.parse import urlencode

import pytest

from holdfast import Holdfast, NotFound
from holdfast.credentials.vault import CODE_VERIFIER
from holdfast.errors import ReauthRequired
from tests.conftest import FakeClock, Opener
from tests.credentials.keys import anywhere, dump, shared, tokens
from tests.http_oauth.browser import LOCAL, Browser, app_of, query
from tests.http_oauth.conftest import REDIRECTS, configure
from tests.http_oauth.providers import CLIENT_SECRET, TestProvider, running

START = "/api/oauth/openai/start"
pytestmark = pytest.mark.usefixtures("host")


async def version(hf: Holdfast, user: str = "local", provider: str = "openai") -> int | None:
    grant = await hf.credentials.get(provider, user)
    return None if grant is None else grant.version


@pytest.mark.clause("W-35", "WB-10", "W-12")
async def test_the_start_sends_the_browser_away_with_a_challenge(
    hf: Holdfast, browser: Browser, provider: TestProvider, configuration: str
) -> None:
    answer = await browser.get(START)

    asked = query(answer.headers["location"])
    ((hashed, verifier, expires_at),) = await hf._store.fetch(
        "SELECT state_hash, code_verifier, expires_at FROM {s}oauth_states"
    )
    assert answer.status_code == 302
    assert answer.headers["location"].startswith(f"{provider.url}/auth?")
    assert (asked["response_type"], asked["code_challenge_method"], len(asked["code_challenge"])) == (
        "code",
        "S256",
        43,
    )
    assert (len(asked["state"]), asked["redirect_uri"]) == (43, f"{LOCAL}/api/oauth/openai/callback")
    assert (answer.headers["cache-control"], answer.headers["referrer-policy"]) == ("no-store", "no-referrer")
    assert {"HttpOnly", "SameSite=lax", "Path=/", "Max-Age=600"} <= set(answer.headers["set-cookie"].split("; "))
    assert expires_at - await hf._store.now() == 600_000_000
    opened = hf.office.vault.open(verifier, CODE_VERIFIER, hashed, user_id="local")
    found = await dump(hf, configuration)
    for secret in (asked["state"], opened, browser.cookies["oauth"], CLIENT_SECRET):
        assert secret not in found
    assert len(opened) == 96


@pytest.mark.clause("W-35", "W-39", "WB-10", "W-12")
async def test_the_callback_keeps_the_tokens(hf: Holdfast, browser: Browser, configuration: str) -> None:
    back = await browser.authorize(START)

    answer = await browser.get(back)

    token = await hf.credentials.access_token("openai")
    grant = await hf.credentials.get("openai")
    assert (answer.status_code, "openai is done" in answer.text, "window.close()" in answer.text) == (200, True, True)
    assert (answer.headers["cache-control"], answer.headers["referrer-policy"]) == ("no-store", "no-referrer")
    assert "default-src 'none'" in answer.headers["content-security-policy"]
    assert grant is not None
    assert (grant.status, grant.account_id, grant.version) == ("connected", "alice", 1)
    assert token not in await dump(hf, configuration)
    assert await hf._store.fetch("SELECT 1 FROM {s}oauth_states") == []
    assert await hf.credentials.headers("openai") == {"Authorization": f"Bearer {token}", "ChatGPT-Account-Id": "alice"}


@pytest.mark.clause("W-36", "W-53")
@shared
async def test_the_callback_may_land_on_another_node(hf: Holdfast, another: Opener, browser: Browser) -> None:
    other = await another()
    back = await browser.authorize(START)

    browser.node = app_of(other)
    answer = await browser.get(back)

    assert answer.status_code == 200
    assert await hf.credentials.access_token("openai") == await other.credentials.access_token("openai")


@pytest.mark.clause("W-37", "WB-10")
async def test_a_second_callback_is_refused_and_changes_nothing(
    hf: Holdfast, browser: Browser, provider: TestProvider
) -> None:
    back = await browser.authorize(START)
    first = await browser.get(back)
    token, asked = await hf.credentials.access_token("openai"), len(provider.asked("authorization_code"))

    second = await browser.get(back)

    assert (first.status_code, second.status_code) == (200, 400)
    assert "used before" in second.text
    assert (await hf.credentials.access_token("openai"), await version(hf)) == (token, 1)
    assert len(provider.asked("authorization_code")) == asked


@pytest.mark.clause("W-37")
@shared
async def test_of_callbacks_at_once_one_succeeds(hf: Holdfast, another: Opener, browser: Browser) -> None:
    other = await another()
    back = await browser.authorize(START)
    cookies = browser.cookies

    async def call(node: Holdfast) -> int:
        async with Browser(app_of(node)) as same:
            return (await same.get(back, headers={"cookie": f"oauth={cookies['oauth']}"})).status_code

    answers = await asyncio.gather(*(call(node) for node in (hf, other) * 4))

    assert sorted(answers) == [200] + [400] * 7
    assert await version(hf) == 1


@pytest.mark.clause("W-37")
async def test_a_state_expires(hf: Holdfast, browser: Browser, clock: FakeClock) -> None:
    back = await browser.authorize(START)

    clock.advance(600)
    answer = await browser.get(back)

    assert (answer.status_code, await version(hf)) == (400, None)
    await browser.get(START)
    assert len(await hf._store.fetch("SELECT 1 FROM {s}oauth_states")) == 1, "what is late is swept"


@pytest.mark.clause("W-37")
async def test_another_browser_cannot_end_it(hf: Holdfast, browser: Browser) -> None:
    back = await browser.authorize(START)
    cookies = browser.cookies

    browser.forget()
    answer = await browser.get(back)

    assert (answer.status_code, await version(hf)) == (400, None)
    again = await browser.get(back, headers={"cookie": f"oauth={cookies['oauth']}"})
    assert again.status_code == 400, "it is over, whoever asks"


@pytest.mark.clause("W-37", "WB-10")
@pytest.mark.parametrize(
    "asked", ["", "code=x", "state=x", "code=x&state=x", "code=x&state=", "state=a&state=b&code=x"]
)
@anywhere
async def test_an_answer_to_nothing_is_refused(browser: Browser, asked: str) -> None:
    await browser.get(START)

    answer = await browser.get(f"/api/oauth/openai/callback?{asked}")

    assert (answer.status_code, answer.headers["content-type"]) == (400, "text/html; charset=utf-8")


@pytest.mark.clause("W-44")
async def test_somebody_else_who_has_logged_in_meanwhile_gets_nothing(hf: Holdfast, browser: Browser) -> None:
    back = await browser.authorize(START)

    answer = await browser.get(back, headers={"x-user": "mallory"})

    assert answer.status_code == 400
    assert (await version(hf), await version(hf, "mallory")) == (None, None)


@pytest.mark.clause("W-44")
async def test_a_grant_belongs_to_who_began(hf: Holdfast) -> None:
    async with Browser(app_of(hf), **{"x-user": "bob"}) as of_bob:
        await of_bob.get(await of_bob.authorize(START))

    assert (await version(hf, "bob"), await version(hf, "local")) == (1, None)
    with pytest.raises(NotFound):
        await hf.as_user("alice").credentials.access_token("openai")
    with pytest.raises(NotFound):
        await hf.as_user("alice").credentials.access_token("openai", "bob")


@anywhere
async def test_nobody_cannot_begin(hf: Holdfast, browser: Browser) -> None:
    answer = await browser.get(START, headers={"x-user": "nobody"})

    assert (answer.status_code, answer.json()["code"]) == (401, "unauthorized")


async def test_a_page_with_a_key_of_its_own_asks_where_to_go(hf: Holdfast, browser: Browser) -> None:
    asked = await browser.send("POST", START, headers={"x-user": "alice"})

    back = await browser.follow(asked.json()["url"])
    answer = await browser.get(back, headers={"x-user": "nobody"})

    assert (asked.status_code, asked.headers["cache-control"], answer.status_code) == (200, "no-store", 200)
    assert await version(hf, "alice") == 1


@anywhere
async def test_every_answer_is_described(hf: Holdfast) -> None:
    described = app_of(hf, login=True).openapi()["paths"]

    operations = {
        (method, path): operation for path, methods in described.items() for method, operation in methods.items()
    }
    ours = {
        ("get", "/api/settings"),
        ("patch", "/api/settings"),
        ("get", "/api/oauth/{provider}/start"),
        ("post", "/api/oauth/{provider}/start"),
        ("get", "/api/oauth/{provider}/callback"),
        ("get", "/api/settings/{provider}/oauth/start"),
        ("get", "/api/settings/{provider}/oauth/callback"),
        ("get", "/api/login"),
        ("get", "/api/login/callback"),
        ("post", "/api/logout"),
    }
    assert ours <= set(operations)
    assert len({operation["operationId"] for operation in operations.values()}) == len(operations)
    assert {"200", "401", "412", "422", "503"} <= set(operations["patch", "/api/settings"]["responses"])
    assert "302" in operations["get", "/api/oauth/{provider}/start"]["responses"]
    assert "400" in operations["get", "/api/oauth/{provider}/callback"]["responses"]


@anywhere
async def test_a_foreign_page_cannot_begin(browser: Browser) -> None:
    foreign = await browser.get(START, headers={"sec-fetch-site": "cross-site"})
    own = await browser.get(START, headers={"sec-fetch-site": "same-origin"})

    assert (foreign.status_code, own.status_code) == (403, 302)


async def test_two_accounts_may_be_connected_side_by_side(hf: Holdfast, browser: Browser) -> None:
    first = await browser.authorize("/api/oauth/openai/start")
    second = await browser.authorize("/api/oauth/other/start")

    answers = [await browser.get(back) for back in (first, second)]

    assert [answer.status_code for answer in answers] == [200, 200]
    assert [grant.provider for grant in await hf.credentials.list()] == ["openai", "other"]


@pytest.mark.clause("W-37")
async def test_a_state_is_for_one_provider(hf: Holdfast, browser: Browser) -> None:
    back = await browser.authorize(START)

    answer = await browser.get(back.replace("/openai/", "/other/"))

    assert (answer.status_code, await hf.credentials.list()) == (400, [])


@pytest.mark.parametrize("issuer", [None, "https://evil.example", ""])
@anywhere
async def test_an_answer_of_another_issuer_is_refused(hf: Holdfast, browser: Browser, issuer: str | None) -> None:
    back = await browser.authorize(START)
    told = {name: value for name, value in query(back).items() if name != "iss"}
    assert len(told) == len(query(back)) - 1, "the provider says who it is"

    answer = await browser.get(
        "/api/oauth/openai/callback?" + urlencode(told if issuer is None else {**told, "iss": issuer})
    )

    assert (answer.status_code, "does not come from openai" in answer.text) == (400, True)
    assert await hf.credentials.list() == []


@pytest.mark.clause("WB-10")
async def test_the_provider_checks_the_verifier(hf: Holdfast, browser: Browser, provider: TestProvider) -> None:
    back = await browser.authorize(START)
    ((hashed,),) = await hf._store.fetch("SELECT state_hash FROM {s}oauth_states")
    other = hf.office.vault.seal("x" * 64, CODE_VERIFIER, hashed, user_id="local")
    await hf._store.execute(("UPDATE {s}oauth_states SET code_verifier = $1", (other,)))

    answer = await browser.get(back)

    assert answer.status_code == 500
    assert provider.asked("authorization_code")[-1]["error"] == "invalid_grant"
    assert await hf.credentials.list() == []


@pytest.mark.clause("WB-10")
@anywhere
async def test_what_the_provider_says_is_shown_as_text(hf: Holdfast, host: pytest.MonkeyPatch) -> None:
    with running(*REDIRECTS, refuses=True) as refusing:
        configure(host, "openai", refusing.url)
        async with Browser(app_of(hf)) as browser:
            back = await browser.authorize(START)

            answer = await browser.get(back)
            again = await browser.get(back)

    assert (answer.status_code, again.status_code) == (400, 400)
    assert "&lt;b&gt;the user said no&lt;/b&gt;" in answer.text
    assert "used before" in again.text, "a refusal ends it too"


@pytest.mark.clause("H-W8")
async def test_the_settings_paths_mean_the_same(hf: Holdfast, browser: Browser) -> None:
    back = await browser.authorize("/api/settings/openai/oauth/start")

    answer = await browser.get(back.replace("/api/oauth/openai/callback", "/api/settings/openai/oauth/callback"))

    assert back.startswith(f"{LOCAL}/api/oauth/openai/callback?")
    assert (answer.status_code, await version(hf)) == (200, 1)


@anywhere
async def test_it_ends_where_it_was_told_to(browser: Browser) -> None:
    back = await browser.authorize(f"{START}?return_to=/settings%3Ftab%3Daccounts")

    answer = await browser.get(back)

    assert (answer.status_code, answer.headers["location"]) == (303, f"{LOCAL}/settings?tab=accounts")


@pytest.mark.parametrize(
    "target",
    [
        "https://evil.example",
        "//evil.example",
        "/\\evil.example",
        "evil",
        "",
        "/a b",
        "/a\r\nb",
        "javascript:x",
        "/\\/x",
    ],
)
@anywhere
async def test_nobody_is_sent_elsewhere(hf: Holdfast, browser: Browser, target: str) -> None:
    answer = await browser.get(f"{START}?{urlencode({'return_to': target})}")

    assert (answer.status_code, answer.json()["code"]) == (422, "invalid_return_to")
    assert await hf._store.fetch("SELECT 1 FROM {s}oauth_states") == []


@anywhere
async def test_a_provider_that_nobody_configured_is_not_found(browser: Browser) -> None:
    answers = [await browser.get(f"/api/oauth/nobody/{word}?code=x&state=y") for word in ("start", "callback")]

    assert [(answer.status_code, answer.json()["code"]) for answer in answers] == [(404, "unknown_provider")] * 2


@pytest.mark.clause("H-W9")
async def test_without_a_key_nothing_begins(hf: Holdfast, host: pytest.MonkeyPatch, browser: Browser) -> None:
    host.delenv("HOLDFAST_ENCRYPTION_KEYS")

    answer = await browser.get(START)

    assert (answer.status_code, answer.json()["code"]) == (409, "encryption_key_missing")
    assert await hf._store.fetch("SELECT 1 FROM {s}oauth_states") == []


async def test_connecting_again_replaces_the_grant(hf: Holdfast, browser: Browser) -> None:
    await browser.get(await browser.authorize(START))
    before = await hf.credentials.access_token("openai")

    await browser.get(await browser.authorize(START))

    assert await version(hf) == 2
    assert await hf.credentials.access_token("openai") != before


async def test_disconnecting_forgets_and_revokes(hf: Holdfast, browser: Browser, provider: TestProvider) -> None:
    await browser.get(await browser.authorize(START))
    kept = await hf.office.grants.read("local", "openai")
    assert kept is not None
    refresh_token = hf.office.grants.refresh_token(kept)

    assert await hf.credentials.disconnect("openai")

    assert await hf.credentials.get("openai") is None
    await hf.credentials.put("openai", tokens(refresh_token=refresh_token, lifetime_s=0))
    with pytest.raises(ReauthRequired):
        await hf.credentials.access_token("openai")
    assert provider.asked("refresh_token")[-1]["error"] == "invalid_grant"
