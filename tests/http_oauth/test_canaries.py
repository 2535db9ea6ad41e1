"""Secrets fly through everything and are seen nowhere: no table, no log, no answer."""

from __future__ import annotations

import logging

import pytest

from holdfast import Holdfast
from holdfast.credentials.environment import known_provider
from holdfast.errors import ProviderError, ReauthRequired
from tests.conftest import FakeClock
from tests.credentials.keys import K1, anywhere, dump
from tests.http_oauth.browser import Browser, app_of, query
from tests.http_oauth.providers import CLIENT_SECRET

KEY = "sk-canary-0123456789abcdef"


@pytest.mark.clause("W-12", "WB-9", "H-W9")
async def test_no_secret_is_seen_anywhere(
    hf: Holdfast, host: pytest.MonkeyPatch, clock: FakeClock, caplog: pytest.LogCaptureFixture, configuration: str
) -> None:
    caplog.set_level(logging.DEBUG)
    secrets, answers = [CLIENT_SECRET, K1.partition(":")[2], KEY], []
    async with Browser(app_of(hf)) as browser:
        back = await browser.authorize("/api/oauth/openai/start")
        secrets += [query(back)["code"], query(back)["state"], browser.cookies["oauth"]]
        caplog.clear()

        answers.append(await browser.get(back))
        answers.append(await browser.send("PATCH", "/api/settings", json={"openai_api_key": KEY}))
        secrets.append(await hf.credentials.access_token("openai"))
        kept = await hf.office.grants.read("local", "openai")
        assert kept is not None
        secrets.append(hf.office.grants.refresh_token(kept) or "")
        clock.advance(3_600)
        secrets.append(await hf.credentials.access_token("openai"))
        with pytest.raises(ReauthRequired) as refused:
            await hf.office.providers.refresh(known_provider("openai"), secrets[-2])
        answers += [await browser.get("/api/settings"), await browser.get(back), await browser.get("/api/settings")]
    key = (await hf.api_keys.create("local")).text
    secrets += [key, await hf.browser_sessions.begin("local")]
    await hf.api_keys.verify(key)

    ours = "\n".join(f"{record.name} {record.getMessage()}" for record in caplog.records if "test" not in record.name)
    # The browser's own requests carry the code in their address, as every browser's do.
    ours = "\n".join(line for line in ours.splitlines() if "/callback?" not in line)
    shown = "\n".join(answer.text for answer in answers)
    stored = await dump(hf, configuration)
    assert len(set(secrets)) == len(secrets)
    assert [
        secret for secret in secrets for place in (ours, shown, stored, str(refused.value)) if secret in place
    ] == []


@anywhere
async def test_what_a_provider_sends_back_is_not_repeated(hf: Holdfast, host: pytest.MonkeyPatch) -> None:
    host.setenv("HOLDFAST_OAUTH_OPENAI_CLIENT_SECRET", "canary-wrong-secret")

    with pytest.raises(ProviderError) as error:
        await hf.office.providers.refresh(known_provider("openai"), "canary-refresh-token")

    assert "canary" not in str(error.value)
    assert error.value.code == "provider_error"
