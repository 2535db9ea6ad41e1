"""API keys: shown once, kept as a hash, refused when expired or revoked, and cheap to use."""

from __future__ import annotations

from datetime import timedelta

import pytest

from holdfast import Holdfast, InvalidValue, NotFound
from tests.conftest import FakeClock
from tests.credentials.keys import dump


async def test_a_key_is_known_by_its_text(hf: Holdfast, configuration: str) -> None:
    made = await hf.api_keys.create("alice", scopes=["runs:write", "approvals:decide"])

    found = await hf.api_keys.verify(made.text)

    assert found is not None
    assert (found.user_id, found.scopes, found.key_id) == ("alice", ("approvals:decide", "runs:write"), made.key.key_id)
    assert made.text.startswith(f"hf_{made.key.key_id}_")
    assert made.text.removeprefix(f"hf_{made.key.key_id}_") not in await dump(hf, configuration)


async def test_what_is_not_exactly_the_key_is_nobody(hf: Holdfast) -> None:
    made = await hf.api_keys.create("alice")
    other = await hf.api_keys.create("bob")
    mixed = f"hf_{made.key.key_id}_{other.text.rsplit('_', 1)[-1]}"

    for text in (
        "",
        "hf_",
        made.text[:-1],
        f"{made.text} ",
        made.text.upper(),
        mixed,
        f"hf_{'0' * 16}_{'x' * 43}",
        "é",
    ):
        assert await hf.api_keys.verify(text) is None


async def test_a_key_expires(hf: Holdfast, clock: FakeClock) -> None:
    made = await hf.api_keys.create("alice", lifetime=timedelta(days=1))

    clock.advance(86_399)
    before = await hf.api_keys.verify(made.text)
    clock.advance(1)
    after = await hf.api_keys.verify(made.text)

    assert (before is None, after is None) == (False, True)
    for lifetime in (timedelta(0), timedelta(days=-1), timedelta(days=99_999)):
        with pytest.raises(InvalidValue, match="a key lives"):
            await hf.api_keys.create("alice", lifetime=lifetime)


async def test_a_revoked_key_opens_nothing(hf: Holdfast, clock: FakeClock) -> None:
    made = await hf.api_keys.create("alice")

    first = await hf.api_keys.revoke(made.key.key_id)
    clock.advance(10)
    again = await hf.api_keys.revoke(made.key.key_id)

    assert first.revoked_at == again.revoked_at
    assert await hf.api_keys.verify(made.text) is None
    with pytest.raises(NotFound):
        await hf.api_keys.revoke("0" * 16)


async def test_use_is_written_once_a_minute(hf: Holdfast, clock: FakeClock) -> None:
    made = await hf.api_keys.create("alice")
    began = clock.now()
    seen = []

    for seconds in (0, 30, 29, 1, 30):
        clock.advance(seconds)
        await hf.api_keys.verify(made.text)
        seen.append((await hf.api_keys.list("alice"))[0].last_used_at)

    assert seen == [began, began, began, began + timedelta(seconds=60), began + timedelta(seconds=60)]


async def test_scopes_limit_and_their_absence_does_not(hf: Holdfast) -> None:
    free = await hf.api_keys.create("alice")
    bound = await hf.api_keys.create("alice", scopes=["runs:write"])
    admin = await hf.api_keys.create("alice", scopes=["admin"])

    assert [key.key.allows("approvals:decide") for key in (free, bound, admin)] == [True, False, True]
    with pytest.raises(InvalidValue, match="no scope"):
        await hf.api_keys.create("alice", scopes=["Runs Write"])


@pytest.mark.clause("W-44")
async def test_a_user_sees_only_their_own(hf: Holdfast) -> None:
    of_alice = await hf.api_keys.create("alice")
    of_bob = await hf.as_user("bob").api_keys.create()

    assert [key.key_id for key in await hf.as_user("bob").api_keys.list()] == [of_bob.key.key_id]
    assert len(await hf.api_keys.list()) == 2
    with pytest.raises(NotFound):
        await hf.as_user("bob").api_keys.revoke(of_alice.key.key_id)
    with pytest.raises(NotFound):
        await hf.as_user("bob").api_keys.list("alice")
    with pytest.raises(NotFound):
        await hf.as_user("bob").api_keys.create("alice")
