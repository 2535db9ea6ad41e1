"""Logging in with an OpenID provider: a session for whom it names, kept as a hash, ended by time and by choice."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
from starlette.requests import Request

from holdfast import Holdfast
from holdfast.credentials import Site
from holdfast.http import create_app
from holdfast.http.browsers import is_same_site
from holdfast.http.limits import Limits
from tests.conftest import FakeClock, Opener
from tests.credentials.keys import anywhere, dump, shared
from tests.http_oauth.browser import LOCAL, Browser, app_of, query
from tests.http_oauth.conftest import LOGINS, PUBLIC, configure
from tests.http_oauth.providers import TestProvider, running

SAME = {"sec-fetch-site": "same-origin"}
DAY = 86_400


@pytest.fixture
async def browser(host: pytest.MonkeyPatch, hf: Holdfast) -> AsyncIterator[Browser]:
    async with Browser(app_of(hf, login=True)) as found:
        yield found


async def log_in(browser: Browser, **query: str) -> None:
    asked = "?" + "&".join(f"{name}={value}" for name, value in query.items()) if query else ""
    answer = await browser.get(await browser.authorize(f"/api/login{asked}"))
    assert answer.status_code == 303, answer.text


async def user(browser: Browser, hf: Holdfast) -> str | None:
    """Whose settings this browser sees; None if it is nobody's."""
    answer = await browser.get("/api/settings")
    return None if answer.status_code == 401 else str(answer.json().get("model"))


async def test_whom_the_provider_names_is_logged_in(hf: Holdfast, browser: Browser, configuration: str) -> None:
    await hf.settings.change({"model": "of alice"}, "alice")
    before = await user(browser, hf)

    back = await browser.authorize("/api/login?return_to=/chat")
    answer = await browser.get(back)

    cookie = answer.headers["set-cookie"]
    assert (answer.status_code, answer.headers["location"]) == (303, f"{LOCAL}/chat")
    assert {"HttpOnly", "SameSite=lax", "Path=/", f"Max-Age={14 * DAY}"} <= set(cookie.split("; "))
    assert (before, await user(browser, hf)) == (None, "of alice")
    assert browser.cookies["session"] not in await dump(hf, configuration)
    assert await hf.credentials.list("alice") == [], "to log in is not to connect"


async def test_logins_are_begun_at_a_limited_pace_from_one_address(hf: Holdfast, host: pytest.MonkeyPatch) -> None:
    app = create_app(hf, auth="oidc", limits=Limits(starts_per_second=0.4))

    async with Browser(app) as browser:
        answers = [await browser.get("/api/login") for _ in range(3)]

    assert [answer.status_code for answer in answers] == [302, 302, 429]
    assert answers[-1].json()["code"] == "too_many_requests"
    assert int(answers[-1].headers["retry-after"]) >= 1
    assert len(await hf.journal.store.fetch("SELECT state_hash FROM {s}oauth_states")) == 2


async def test_a_login_ends_once(hf: Holdfast, browser: Browser) -> None:
    back = await browser.authorize("/api/login")
    await browser.get(back)

    again = await browser.get(back)

    assert again.status_code == 400
    assert len(await hf._store.fetch("SELECT 1 FROM {s}browser_sessions")) == 1


@anywhere
async def test_a_login_cannot_be_ended_in_another_browser(hf: Holdfast, browser: Browser) -> None:
    back = await browser.authorize("/api/login")

    browser.forget()
    answer = await browser.get(back)

    assert (answer.status_code, await user(browser, hf)) == (400, None)


@anywhere
async def test_a_state_to_connect_is_none_to_log_in(hf: Holdfast, browser: Browser) -> None:
    await log_in(browser)
    back = await browser.authorize("/api/oauth/openai/start")

    answer = await browser.get("/api/login/callback?" + back.partition("?")[2])

    assert answer.status_code == 400


@shared
async def test_a_session_holds_on_every_node(hf: Holdfast, another: Opener, browser: Browser) -> None:
    await hf.settings.change({"model": "of alice"}, "alice")
    back = await browser.authorize("/api/login")

    browser.node = app_of(await another(), login=True)
    await browser.get(back)
    browser.node = app_of(hf, login=True)

    assert await user(browser, hf) == "of alice"


@anywhere
async def test_every_login_is_a_new_session(hf: Holdfast, browser: Browser) -> None:
    await log_in(browser)
    first = browser.cookies["session"]

    await log_in(browser)

    assert browser.cookies["session"] != first
    assert await hf.browser_sessions.user_of(first) is None
    assert await hf.browser_sessions.user_of(browser.cookies["session"]) == "alice"


async def test_a_session_ends_when_it_is_not_used(hf: Holdfast, clock: FakeClock) -> None:
    session = await hf.browser_sessions.begin("alice")

    for _ in range(3):
        clock.advance(DAY - 1)
        assert await hf.browser_sessions.user_of(session) == "alice"
    clock.advance(DAY)

    assert await hf.browser_sessions.user_of(session) is None


async def test_a_session_ends_when_it_is_old(hf: Holdfast, clock: FakeClock) -> None:
    session = await hf.browser_sessions.begin("alice")

    for _ in range(27):
        clock.advance(DAY / 2)
        assert await hf.browser_sessions.user_of(session) == "alice"
    clock.advance(DAY / 2)

    assert await hf.browser_sessions.user_of(session) is None
    await hf.browser_sessions.begin("bob")
    assert len(await hf._store.fetch("SELECT 1 FROM {s}browser_sessions")) == 1, "what is over is swept"


@anywhere
async def test_logging_out_ends_the_session(hf: Holdfast, browser: Browser) -> None:
    await log_in(browser)
    session = browser.cookies["session"]

    answer = await browser.send("POST", "/api/logout", headers=SAME)

    assert (answer.status_code, answer.json(), "session" in browser.cookies) == (200, {"ok": True}, False)
    assert await hf.browser_sessions.user_of(session) is None
    assert (await browser.send("POST", "/api/logout", headers=SAME)).status_code == 200


async def test_logging_out_everywhere_ends_all_sessions_of_the_user(hf: Holdfast, browser: Browser) -> None:
    others = [await hf.browser_sessions.begin(name) for name in ("alice", "bob")]
    await log_in(browser)

    await browser.send("POST", "/api/logout?everywhere=true", headers=SAME)

    assert [await hf.browser_sessions.user_of(each) for each in others] == [None, "bob"]


@anywhere
async def test_a_foreign_page_cannot_log_anybody_out(hf: Holdfast, browser: Browser) -> None:
    await log_in(browser)

    answer = await browser.send("POST", "/api/logout", headers={"sec-fetch-site": "cross-site", "origin": LOCAL})

    assert (answer.status_code, answer.json()["code"]) == (403, "forbidden")
    assert await hf.browser_sessions.user_of(browser.cookies["session"]) == "alice"


@anywhere
async def test_in_production_only_the_prefixed_cookie_counts(hf: Holdfast, host: pytest.MonkeyPatch) -> None:
    host.setenv("HOLDFAST_PROFILE", "prod")
    host.setenv("HOLDFAST_PUBLIC_URL", PUBLIC)
    host.setenv("HOLDFAST_OUTBOUND_ALLOW", "127.0.0.0/8")
    async with Browser(app_of(hf, login=True), PUBLIC) as browser:
        await log_in(browser)

        session = browser.cookies["__Host-session"]
        own = await browser.get("/api/settings")
        browser.forget()
        planted = await browser.get("/api/settings", headers={"cookie": f"session={session}"})

    assert (own.status_code, planted.status_code) == (200, 401)


@anywhere
async def test_a_subject_that_is_no_id_becomes_one(hf: Holdfast, host: pytest.MonkeyPatch) -> None:
    with running(*LOGINS, user="auth0%7C42") as named:
        configure(host, "oidc", named.url)
        async with Browser(app_of(hf, login=True)) as browser:
            await log_in(browser)
            first = await hf.browser_sessions.user_of(browser.cookies["session"])
            await log_in(browser)
            second = await hf.browser_sessions.user_of(browser.cookies["session"])

    assert first == second
    assert first is not None
    assert first.startswith("oidc-")


@anywhere
async def test_who_is_not_allowed_stays_outside(hf: Holdfast, host: pytest.MonkeyPatch, browser: Browser) -> None:
    host.setenv("HOLDFAST_LOGIN_ALLOW", "bob, @example.org")

    answer = await browser.get(await browser.authorize("/api/login"))

    assert (answer.status_code, "not allowed" in answer.text, await user(browser, hf)) == (400, True, None)
    host.setenv("HOLDFAST_LOGIN_ALLOW", "alice")
    await log_in(browser)


@anywhere
async def test_an_id_token_for_another_nonce_is_not_believed(
    hf: Holdfast, browser: Browser, provider: TestProvider
) -> None:
    back = await browser.authorize("/api/login")
    await hf._store.execute(("UPDATE {s}oauth_states SET nonce = 'another'", ()))

    answer = await browser.get(back)

    assert (answer.status_code, "not to be trusted" in answer.text, await user(browser, hf)) == (500, True, None)
    assert provider.asked("authorization_code")[-1]["error"] is None


@anywhere
async def test_a_provider_of_another_name_can_be_the_one(hf: Holdfast, host: pytest.MonkeyPatch) -> None:
    host.delenv("HOLDFAST_OAUTH_OIDC_ISSUER")
    host.setenv("HOLDFAST_LOGIN_PROVIDER", "Other")

    async with Browser(app_of(hf, login=True)) as browser:
        answer = await browser.get("/api/login")

    assert query(answer.headers["location"])["redirect_uri"] == f"{LOCAL}/api/login/callback"


@pytest.mark.parametrize(
    ("headers", "same"),
    [
        ({"sec-fetch-site": "same-origin"}, True),
        ({"sec-fetch-site": "none"}, True),
        ({"sec-fetch-site": "same-site"}, False),
        ({"sec-fetch-site": "cross-site"}, False),
        ({"sec-fetch-site": "cross-site", "origin": PUBLIC}, False),
        ({"origin": PUBLIC}, True),
        ({"origin": f"{PUBLIC}.evil.example"}, False),
        ({"origin": "http://agents.example.org"}, False),
        ({"origin": "null"}, False),
        ({"host": "agents.example.org"}, False),
        ({}, False),
    ],
)
def test_only_our_own_pages_are_believed(headers: dict[str, str], same: bool) -> None:
    raw = [(name.encode(), value.encode()) for name, value in headers.items()]
    request = Request({"type": "http", "method": "POST", "path": "/", "headers": raw})

    assert is_same_site(request, Site(profile="prod", url=f"{PUBLIC}/agents")) is same
