"""Secrets in the database: never in clear, bound to their rows, and moved to another key while everything runs."""

from __future__ import annotations

import logging

import pytest

from holdfast import Holdfast
from holdfast.errors import SealError
from tests.conftest import Opener
from tests.credentials.keys import ACCESS, K1, K2, REFRESH, dump, shared, tokens

CANARY = "sk-canary-0123456789abcdef"


async def fill(hf: Holdfast) -> None:
    for user in ("alice", "bob"):
        await hf.credentials.put("openai", tokens(access_token=f"{ACCESS}-{user}"), user)
        await hf.settings.change({"openai_api_key": f"{CANARY}-{user}", "anthropic_api_key": CANARY}, user)


@pytest.mark.clause("W-12", "H-W9")
async def test_no_secret_is_in_the_database(hf: Holdfast, configuration: str) -> None:
    await fill(hf)
    key = await hf.api_keys.create("alice")
    session = await hf.browser_sessions.begin("alice")

    found = await dump(hf, configuration)

    assert await hf.credentials.access_token("openai", "alice") == f"{ACCESS}-alice"
    for secret in (ACCESS, REFRESH, CANARY, key.text, key.text.split("_", 2)[2], session):
        assert secret not in found


@pytest.mark.clause("H-W9", "W-44")
@pytest.mark.parametrize("column", ["access_token", "refresh_token"])
async def test_swapped_ciphertexts_open_for_neither(hf: Holdfast, column: str) -> None:
    await fill(hf)
    sql = f"SELECT user_id, {column} FROM {{s}}credentials ORDER BY user_id"
    (_, of_alice), (_, of_bob) = await hf._store.fetch(sql)
    put = f"UPDATE {{s}}credentials SET {column} = $1 WHERE user_id = $2"

    await hf._store.execute((put, (of_bob, "alice")), (put, (of_alice, "bob")))

    opens = getattr(hf.office.grants, column)
    for user in ("alice", "bob"):
        kept = await hf.office.grants.read(user, "openai")
        with pytest.raises(SealError, match="moved"):
            opens(kept)


@pytest.mark.clause("H-W9")
async def test_the_tables_take_no_plain_text(hf: Holdfast) -> None:
    await fill(hf)

    for table, column in (
        ("credentials", "access_token"),
        ("credentials", "refresh_token"),
        ("settings", "openai_api_key"),
    ):
        with pytest.raises(Exception, match=r"(?i)check"):
            await hf._store.execute((f"UPDATE {{s}}{table} SET {column} = 'plain'", ()))


@pytest.mark.clause("H-W9")
async def test_without_a_key_nothing_is_kept(hf: Holdfast, host: pytest.MonkeyPatch, configuration: str) -> None:
    host.delenv("HOLDFAST_ENCRYPTION_KEYS")

    with pytest.raises(SealError, match="HOLDFAST_ENCRYPTION_KEYS is not set") as error:
        await hf.settings.change({"openai_api_key": CANARY})
    with pytest.raises(SealError):
        await hf.credentials.put("openai", tokens())

    assert error.value.code == "encryption_key_missing"
    assert CANARY not in await dump(hf, configuration)
    assert (await hf.settings.get()).previews == {}
    assert (await hf.settings.change({"model": "gpt"})).model == "gpt"


@pytest.mark.clause("H-W9")
@shared
async def test_rotation_moves_every_secret_and_says_what_remains(
    hf: Holdfast, another: Opener, host: pytest.MonkeyPatch
) -> None:
    await fill(hf)
    host.setenv("HOLDFAST_ENCRYPTION_KEYS", f"{K2},{K1}")
    rotating = await another()
    before = await rotating.office.vault.kids()

    report = await rotating.credentials.rotate()

    assert before == {"k1": 8}
    assert (report.kid, report.resealed, report.remaining, report.unreadable) == ("k2", 8, {}, 0)
    host.setenv("HOLDFAST_ENCRYPTION_KEYS", K2)
    alone = await another()
    await alone.credentials.check()
    assert await alone.credentials.access_token("openai", "bob") == f"{ACCESS}-bob"
    assert await alone.settings.provider_key("openai", "alice") == f"{CANARY}-alice"
    assert (await alone.credentials.rotate()).resealed == 0


@pytest.mark.clause("H-W9")
@shared
async def test_a_dropped_key_is_named_and_its_secrets_stay(
    hf: Holdfast, another: Opener, host: pytest.MonkeyPatch
) -> None:
    await fill(hf)
    host.setenv("HOLDFAST_ENCRYPTION_KEYS", K2)
    other = await another()

    with pytest.raises(SealError, match="k1") as at_start:
        await other.credentials.check()
    with pytest.raises(SealError, match="'k1'") as in_use:
        await other.credentials.access_token("openai", "alice")
    report = await other.credentials.rotate()

    assert at_start.value.code == in_use.value.code == "encryption_key_unknown"
    assert (report.resealed, report.remaining, report.unreadable) == (0, {"k1": 8}, 8)
    assert await hf.credentials.access_token("openai", "alice") == f"{ACCESS}-alice"


async def test_rotation_walks_over_many_pages(hf: Holdfast, host: pytest.MonkeyPatch) -> None:
    for number in range(230):
        await hf.settings.change({"openai_api_key": f"{CANARY}-{number}"}, f"user-{number}")
    hf.office.vault.__dict__.pop("ring")
    host.setenv("HOLDFAST_ENCRYPTION_KEYS", f"{K2},{K1}")

    report = await hf.credentials.rotate()

    assert (report.resealed, report.remaining) == (230, {})
    assert await hf.settings.provider_key("openai", "user-77") == f"{CANARY}-77"


async def test_the_ring_is_in_no_log(hf: Holdfast, caplog: pytest.LogCaptureFixture) -> None:
    await fill(hf)

    logging.getLogger("holdfast.credentials").warning("the ring is %s", K1)

    assert K1.partition(":")[2] not in hf.redaction.hidden(f"the ring is {K1}")
