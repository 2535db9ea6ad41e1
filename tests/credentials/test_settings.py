"""Settings: what a user has chosen, previews of keys, and changes that do not run over each other."""

from __future__ import annotations

import asyncio

import pytest

from holdfast import Conflict, Holdfast, InvalidValue, NotFound
from tests.conftest import FakeClock, Opener
from tests.credentials.keys import shared


@pytest.mark.clause("W-12", "WB-9")
async def test_settings_are_kept_and_keys_are_previews(hf: Holdfast, clock: FakeClock) -> None:
    empty = await hf.settings.get("alice")

    changed = await hf.settings.change(
        {"provider": "openai", "model": "gpt-6", "reasoning": "high", "openai_api_key": "sk-1234567890"}, "alice"
    )

    assert (empty.version, empty.updated_at, empty.previews) == (0, None, {})
    assert (changed.provider, changed.model, changed.reasoning) == ("openai", "gpt-6", "high")
    assert (changed.previews, changed.version, changed.updated_at) == ({"openai": "sk-1...7890"}, 1, clock.now())
    assert await hf.settings.get("alice") == changed
    assert await hf.settings.provider_key("openai", "alice") == "sk-1234567890"
    assert await hf.settings.provider_key("anthropic", "alice") is None


@pytest.mark.clause("WB-9")
async def test_a_short_key_is_all_stars(hf: Holdfast) -> None:
    changed = await hf.settings.change({"openai_api_key": "12345678", "anthropic_api_key": "123456789"})

    assert changed.previews == {"openai": "********", "anthropic": "1234...6789"}


@pytest.mark.clause("WB-9")
@pytest.mark.parametrize("key", ["canary-key\x00", "canary-key" * 200])
async def test_a_key_that_cannot_be_kept_is_not_shown_either(hf: Holdfast, key: str) -> None:
    with pytest.raises(InvalidValue) as refused:
        await hf.settings.change({"openai_api_key": key})

    assert "canary" not in str(refused.value)
    assert (await hf.settings.get()).previews == {}


@pytest.mark.clause("WB-9")
async def test_none_clears(hf: Holdfast) -> None:
    await hf.settings.change({"model": "m", "reasoning": "low", "anthropic_api_key": "sk-1234567890"})

    changed = await hf.settings.change({"model": None, "reasoning": None, "anthropic_api_key": None})

    assert (changed.model, changed.reasoning, changed.previews, changed.version) == (None, None, {}, 2)


async def test_a_change_on_another_version_is_refused(hf: Holdfast) -> None:
    await hf.settings.change({"model": "a"}, expected_version=0)

    with pytest.raises(Conflict) as error:
        await hf.settings.change({"model": "b"}, expected_version=0)

    assert error.value.code == "version_changed"
    assert (await hf.settings.get()).model == "a"
    assert (await hf.settings.change({"model": "b"}, expected_version=1)).version == 2


@pytest.mark.clause("W-53")
@shared
async def test_changes_at_once_are_all_kept(hf: Holdfast, another: Opener) -> None:
    other = await another()
    changes = [{"model": "m"}, {"reasoning": "low"}, {"provider": "anthropic"}, {"openai_api_key": "sk-1234567890"}]

    await asyncio.gather(*((hf, other)[place % 2].settings.change(change) for place, change in enumerate(changes)))

    found = await other.settings.get()
    assert (found.model, found.reasoning, found.provider, found.version) == ("m", "low", "anthropic", 4)
    assert found.previews == {"openai": "sk-1...7890"}


@pytest.mark.parametrize(
    "change",
    [{"provider": "other"}, {"reasoning": "max"}, {"model": ""}, {"openai_api_key": "  "}, {"else": 1}, {"model": 7}],
)
async def test_what_is_no_setting_is_refused(hf: Holdfast, change: dict[str, object]) -> None:
    with pytest.raises(InvalidValue):
        await hf.settings.change(change)

    assert (await hf.settings.get()).version == 0


@pytest.mark.clause("W-44")
async def test_users_have_their_own(hf: Holdfast) -> None:
    await hf.as_user("alice").settings.change({"model": "a"})

    assert (await hf.as_user("bob").settings.get()).model is None
    assert (await hf.settings.get("alice")).model == "a"
    with pytest.raises(NotFound):
        await hf.as_user("bob").settings.get("alice")
