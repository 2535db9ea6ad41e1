"""Writes whose answers are lost, or that land late: what was kept stays kept, and nothing older comes back."""

from __future__ import annotations

import pytest

from holdfast import Holdfast
from holdfast.errors import HandshakeRefused
from holdfast.identity import hash_token
from tests.contract.faulty import WRITE_FAULTS, Fault, with_faults
from tests.credentials.keys import tokens

every_fault = pytest.mark.parametrize("fault", WRITE_FAULTS)


@every_fault
async def test_a_grant_is_put_once(hf: Holdfast, fault: Fault) -> None:
    faulty = with_faults(hf)
    faulty.strike("change", fault)

    grant = await hf.credentials.put("openai", tokens(access_token="new"))

    assert (grant.version, await hf.credentials.access_token("openai"), faulty.is_quiet) == (1, "new", True)


@every_fault
async def test_renewed_tokens_are_not_lost_with_their_answer(hf: Holdfast, fault: Fault) -> None:
    await hf.credentials.put("openai", tokens(lifetime_s=0))
    kept = await hf.office.grants.read("local", "openai")
    assert kept is not None
    faulty = with_faults(hf)
    faulty.strike("change", fault)
    taken = await hf.office.grants.take(kept, "owner", 1_000_000)
    faulty.strike("change", fault)

    renewed = await hf.office.grants.renew(kept, "owner", tokens(access_token="new", refresh_token="next"))

    found = await hf.office.grants.read("local", "openai")
    assert found is not None
    assert (taken, renewed, faulty.is_quiet, found.grant.version) == (True, True, True, 2)
    assert (hf.office.grants.access_token(found), hf.office.grants.refresh_token(found)) == ("new", "next")


@every_fault
async def test_a_change_of_settings_is_made_once(hf: Holdfast, fault: Fault) -> None:
    await hf.settings.change({"model": "a"})
    faulty = with_faults(hf)
    faulty.strike("change", fault)

    changed = await hf.settings.change({"model": "b", "openai_api_key": "sk-0123456789"}, expected_version=1)

    assert (changed.model, changed.version, faulty.is_quiet) == ("b", 2, True)


@every_fault
async def test_a_key_and_a_session_work_once_they_are_answered(hf: Holdfast, fault: Fault) -> None:
    faulty = with_faults(hf)
    faulty.strike("change", fault)
    key = await hf.api_keys.create("alice")
    faulty.strike("change", fault, nth=2)
    session = await hf.browser_sessions.begin("alice")

    found = await hf.api_keys.verify(key.text)

    assert found is not None
    assert (found.user_id, await hf.browser_sessions.user_of(session), faulty.is_quiet) == ("alice", "alice", True)


@every_fault
async def test_a_state_is_never_consumed_twice(hf: Holdfast, fault: Fault) -> None:
    handshakes = hf.handshakes("connect")
    sealed = hf.office.vault.ring.seal("verifier", f"oauth_states|code_verifier|{hash_token('state')}|alice")
    row = (hash_token("state"), "connect", "alice", "openai", "browser", sealed, "nonce", "https://here", None)
    await handshakes._remember(*row)
    faulty = with_faults(hf)
    faulty.strike("change", fault)
    answers = []

    for _ in range(3):
        try:
            answers.append((await handshakes._consume("state")).code_verifier)
        except HandshakeRefused:
            answers.append("refused")

    # Where nobody can tell whether it was consumed, it was.
    first = "refused" if fault in ("unanswered", "late") else "verifier"
    assert answers == [first, "refused", "refused"]
