"""`/api/settings`: previews and never keys, changes that do not run over each other, and nobody else's."""

from __future__ import annotations

from typing import Any

import pytest

from holdfast import Clog, Context, Done, Holdfast
from tests.conftest import FakeClock, Opener
from tests.credentials.keys import anywhere, dump, shared, tokens
from tests.http_oauth.browser import Browser, app_of

KEY = "sk-canary-0123456789abcdef"
pytestmark = pytest.mark.usefixtures("host")


async def patch(browser: Browser, body: Any, **headers: str) -> Any:
    return await browser.send("PATCH", "/api/settings", json=body, headers=headers)


@pytest.mark.clause("WB-9")
async def test_who_has_chosen_nothing_sees_that(browser: Browser) -> None:
    answer = await browser.get("/api/settings")

    assert (answer.status_code, answer.headers["etag"], answer.headers["cache-control"]) == (200, '"s0-g0"', "no-store")
    assert answer.json() == {
        "openai_api_key_set": False,
        "openai_oauth_connected": False,
        "openai_oauth_reauth_required": False,
        "anthropic_api_key_set": False,
    }


@pytest.mark.clause("WB-9", "W-12")
async def test_a_change_answers_the_whole_view_and_no_key(
    hf: Holdfast, browser: Browser, clock: FakeClock, configuration: str
) -> None:
    body = {"provider": "openai", "model": " gpt-6 ", "reasoning": "medium", "openai_api_key": f" {KEY} "}

    answer = await patch(browser, {**body, "anthropic_api_key": "short"})

    assert answer.json() == {
        "provider": "openai",
        "model": "gpt-6",
        "reasoning": "medium",
        "openai_api_key_set": True,
        "openai_api_key_preview": "sk-c...cdef",
        "openai_oauth_connected": False,
        "openai_oauth_reauth_required": False,
        "anthropic_api_key_set": True,
        "anthropic_api_key_preview": "*****",
        "updated_at": round(clock.now().timestamp() * 1_000),
    }
    assert (await browser.get("/api/settings")).json() == answer.json()
    assert KEY not in await dump(hf, configuration)
    assert await hf.settings.provider_key("openai") == KEY


@pytest.mark.clause("WB-9")
async def test_what_is_cleared_is_gone_and_what_is_not_said_stays(hf: Holdfast, browser: Browser) -> None:
    await patch(browser, {"model": "m", "reasoning": "low", "openai_api_key": KEY, "anthropic_api_key": KEY})

    cleared = await patch(
        browser, {"clear_reasoning": True, "clear_openai_api_key": True, "openai_api_key": KEY, "anthropic_api_key": ""}
    )

    assert cleared.status_code == 200
    assert (cleared.json()["model"], cleared.json().get("reasoning")) == ("m", None)
    assert (cleared.json()["openai_api_key_set"], cleared.json()["anthropic_api_key_set"]) == (False, False)
    assert await hf.settings.provider_key("openai") is None


@pytest.mark.clause("WB-9")
async def test_a_grant_is_shown_without_its_tokens_and_can_be_cleared(
    hf: Holdfast, browser: Browser, clock: FakeClock
) -> None:
    await hf.credentials.put("openai", tokens(account_id="acct-7"))
    shown = await browser.get("/api/settings")

    cleared = await patch(browser, {"clear_openai_oauth": True})

    view = shown.json()
    assert (view["openai_oauth_connected"], view["openai_oauth_account_id"]) == (True, "acct-7")
    assert view["openai_oauth_expires_at"] == round(clock.now().timestamp() * 1_000) + 3_600_000
    assert "canary" not in shown.text
    assert (cleared.json()["openai_oauth_connected"], await hf.credentials.list()) == (False, [])


@pytest.mark.clause("WB-9")
@pytest.mark.parametrize(
    "body",
    [
        {"provider": "other"},
        {"reasoning": "max"},
        {"model": 7},
        {"openai_api_key": "x" * 2_000},
        {"clear_reasoning": "?"},
        [],
    ],
)
@anywhere
async def test_what_is_no_setting_is_refused(hf: Holdfast, browser: Browser, body: Any) -> None:
    answer = await patch(browser, body)

    assert answer.status_code == 422
    assert (await hf.settings.get()).version == 0


async def test_a_change_of_what_was_not_seen_is_refused(hf: Holdfast, browser: Browser) -> None:
    seen = (await browser.get("/api/settings")).headers["etag"]
    first = await patch(browser, {"model": "a"}, **{"If-Match": seen})

    late = await patch(browser, {"model": "b"}, **{"If-Match": seen})
    listed = await patch(browser, {"model": "c"}, **{"If-Match": f'"x", {first.headers["etag"]}'})

    assert (first.status_code, late.status_code, late.json()["code"]) == (200, 412, "version_changed")
    assert (listed.status_code, listed.headers["etag"], (await hf.settings.get()).model) == (200, '"s2-g0"', "c")
    assert (await patch(browser, {"model": "d"}, **{"If-Match": "*"})).status_code == 200


async def test_a_new_grant_is_a_new_version_of_what_was_seen(hf: Holdfast, browser: Browser) -> None:
    seen = (await browser.get("/api/settings")).headers["etag"]
    await hf.credentials.put("openai", tokens())

    answer = await patch(browser, {"clear_openai_oauth": True}, **{"If-Match": seen})

    assert answer.status_code == 412
    assert len(await hf.credentials.list()) == 1


@pytest.mark.clause("W-53")
@shared
async def test_any_node_answers_the_same(hf: Holdfast, another: Opener, browser: Browser) -> None:
    changed = await patch(browser, {"model": "m", "openai_api_key": KEY})

    browser.node = app_of(await another())

    assert (await browser.get("/api/settings")).json() == changed.json()


@pytest.mark.clause("WB-9", "W-53")
@shared
async def test_the_next_run_uses_what_is_chosen_by_then(hf: Holdfast, another: Opener, browser: Browser) -> None:
    worker, agent = await another(), Clog("agent")

    @agent.on_advance
    async def advance(input: Any, ctx: Context) -> Done:
        chosen = await worker.settings.get(ctx.user_id)
        key = await worker.settings.provider_key("openai", ctx.user_id)
        return Done([chosen.model, key and key[-4:]])

    worker.register(agent)

    async def used() -> Any:
        run = await hf.create_run(session_id="s", clog_id="agent", input=None)
        await worker.advance()
        found = await hf.get_run(run.run_id)
        return None if found is None else found.output

    first = await used()
    await patch(browser, {"model": "gpt-6", "openai_api_key": KEY})
    second = await used()
    await patch(browser, {"model": "gpt-7", "clear_openai_api_key": True})
    third = await used()

    assert [first, second, third] == [[None, None], ["gpt-6", KEY[-4:]], ["gpt-7", None]]


@pytest.mark.clause("W-44")
async def test_nobody_sees_or_changes_what_is_anothers(hf: Holdfast, browser: Browser) -> None:
    await patch(browser, {"model": "mine", "openai_api_key": KEY}, **{"x-user": "alice"})
    await hf.credentials.put("openai", tokens(), "alice")

    seen = await browser.get("/api/settings", headers={"x-user": "bob"})
    await patch(browser, {"model": "bobs", "clear_openai_oauth": True}, **{"x-user": "bob"})
    nobody = await browser.get("/api/settings", headers={"x-user": "nobody"})

    assert (seen.json()["openai_api_key_set"], seen.json()["openai_oauth_connected"]) == (False, False)
    assert (await hf.settings.get("alice")).model == "mine"
    assert (await hf.credentials.get("openai", "alice")) is not None
    assert nobody.status_code == 401


@pytest.mark.clause("H-W9")
async def test_without_a_key_a_secret_is_refused_in_words(
    hf: Holdfast, host: pytest.MonkeyPatch, browser: Browser, configuration: str
) -> None:
    host.delenv("HOLDFAST_ENCRYPTION_KEYS")

    refused = await patch(browser, {"openai_api_key": KEY})
    taken = await patch(browser, {"model": "m"})

    assert (refused.status_code, refused.json()["code"]) == (409, "encryption_key_missing")
    assert "holdfast keys generate" in refused.json()["detail"]
    assert (taken.status_code, KEY in await dump(hf, configuration)) == (200, False)
