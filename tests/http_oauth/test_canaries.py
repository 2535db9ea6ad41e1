"""Secrets fly through everything and are seen nowhere: no table, no log, no answer."""

from __future__ import annotations

import logging
import signal
from pathlib import Path

import pytest
from fastapi import FastAPI

from holdfast import Holdfast
from holdfast.credentials.environment import known_provider
from holdfast.errors import ProviderError, ReauthRequired
from tests.conftest import FakeClock
from tests.credentials.keys import K1, anywhere, dump, shared
from tests.http.households import Process, start
from tests.http_oauth.browser import LOCAL, Browser, app_of, query
from tests.http_oauth.providers import CLIENT_SECRET
from tests.http_oauth.served import USER

KEY = "sk-canary-0123456789abcdef"
PASSWORD = "canary of the environment"


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


READ = (
    *("/api/runs", "/api/runs/{id}", "/api/runs/{id}/journal", "/api/runs/{id}/inspect", "/api/runs/{id}/explain"),
    *("/api/runs/{id}/graph", "/api/sessions", "/api/sessions/s", "/api/settings", "/api/approvals", "/api/turns"),
    *("/api/tool-calls?parent_id={id}", "/api/outbox", "/api/proposals", "/api/health", "/metrics", "/readyz"),
)
"""Everything that shows something."""


@shared
@pytest.mark.clause("W-12", "WB-9", "H-W9")
async def test_no_secret_is_seen_anywhere_around_a_served_process(
    host: pytest.MonkeyPatch, database_url: str, schema: str, configuration: str, tmp_path: Path
) -> None:
    """The whole app as it is served, a clog that tells all it knows, and a look at whatever anybody could look at."""
    diary = tmp_path / "tokens"
    host.setenv("CANARY_PASSWORD", PASSWORD)
    given = {
        "HOLDFAST_DATABASE_URL": database_url,
        "HOLDFAST_SCHEMA": schema,
        "HOLDFAST_AUTH": "token",
        "HOLDFAST_PUBLIC_URL": LOCAL,
        "TEST_DIARY": str(diary),
    }
    async with Holdfast(database_url, schema=schema) as hf:
        key = (await hf.api_keys.create(USER)).text
        process = await start("serve", "tests.http_oauth.served:make", "--role", "all", "--port", "0", **given)
        try:
            await process.ready()
            secrets = [key, KEY, PASSWORD, CLIENT_SECRET, K1.partition(":")[2]]
            secrets += await connect(process, key)
            shown = await look_at_everything(process, key)
            process.send(signal.SIGTERM)
            assert await process.ended() == 0
        finally:
            await process.kill()
        kept = await hf.office.grants.read(USER, "openai")
        assert kept is not None
        secrets += [hf.office.grants.access_token(kept), hf.office.grants.refresh_token(kept) or ""]
        claim_tokens = diary.read_text().split()
        secrets += [*claim_tokens, await tell_a_claim_token(hf)]
        stored = await dump(hf, configuration)

    written = b"".join(process.log).decode()
    assert len(claim_tokens) == 2
    assert "attempt 1 with [redacted] and [redacted] and [redacted]" in written, "it did tell, and nobody heard"
    assert all(len(secret) > 8 for secret in secrets)
    seen = {"log": written, "answers": shown, "database": stored}
    assert [(place, secret) for place, text in seen.items() for secret in secrets if secret in text] == []


async def connect(process: Process, key: str) -> list[str]:
    """Connect an account and give a key, as its user; answer what nobody else may know of that."""
    process.client.headers["authorization"] = f"Bearer {key}"
    begun = await process.client.post("/api/oauth/openai/start")
    assert begun.status_code == 200, begun.text
    # Nothing of ours answers here: the browser goes to the provider and is sent back.
    async with Browser(FastAPI()) as browser:
        back = await browser.follow(begun.json()["url"])
    ended = await process.client.get(back.removeprefix(LOCAL))
    assert ended.status_code == 200, ended.text
    patched = await process.client.patch("/api/settings", json={"openai_api_key": KEY})
    assert patched.json()["openai_api_key_set"] is True
    assert not any(secret in ended.text + patched.text for secret in (KEY, key, query(back)["code"]))
    return [query(back)["code"], query(back)["state"], process.client.cookies["oauth"]]


async def look_at_everything(process: Process, key: str) -> str:
    """Have the careless clog run; answer every byte of its stream and of every route that shows something."""
    metadata = {"authorization": f"Bearer {key}", "note": f"password={PASSWORD}"}
    body = {"session_id": "s", "clog_id": "careless", "input": 1, "metadata": metadata}
    asked = await process.client.post("/api/runs", json=body, headers={"Idempotency-Key": "once"})
    assert asked.status_code == 202, asked.text
    stream = await process.client.get(asked.headers["location"], timeout=20)
    assert "event: done" in stream.text
    answers = [asked, stream]
    for path in READ:
        answers.append(await process.client.get(path.format(id=asked.json()["run_id"])))
        assert answers[-1].status_code == 200, (path, answers[-1].text)
    for wrong in (f"{key}x", f"Basic {PASSWORD}"):
        answers.append(await process.client.get("/api/runs", headers={"authorization": f"Bearer {wrong}"}))
        assert answers[-1].status_code == 401
    return "\n".join(f"{answer.headers} {answer.text}" for answer in answers)


async def tell_a_claim_token(hf: Holdfast) -> str:
    """A runner of one's own that tells its token in its error."""
    run = await hf.create_run(session_id="runner", clog_id="other", input=1, queue="other")
    (claim,) = await hf.claim_next("other")
    failed = await hf.fail(claim, f"lost with claim_token={claim.token}, that is {claim.token}", retry=False)
    assert (failed.run_id, failed.status) == (run.run_id, "failed")
    return claim.token


@anywhere
async def test_what_a_provider_sends_back_is_not_repeated(hf: Holdfast, host: pytest.MonkeyPatch) -> None:
    host.setenv("HOLDFAST_OAUTH_OPENAI_CLIENT_SECRET", "canary-wrong-secret")

    with pytest.raises(ProviderError) as error:
        await hf.office.providers.refresh(known_provider("openai"), "canary-refresh-token")

    assert "canary" not in str(error.value)
    assert error.value.code == "provider_error"
