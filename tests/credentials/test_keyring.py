"""The key ring: what it seals opens here and nowhere else, and a key that is missing is named."""

from __future__ import annotations

import base64
from pathlib import Path

import pytest

from holdfast import HoldfastError
from holdfast.credentials import KeyRing, new_key
from holdfast.credentials.keyring import kid_of
from holdfast.errors import Misconfigured, SealError
from tests.credentials.keys import K1, K2

PLACE = "credentials|access_token|alice|openai|alice"


def code_of(error: pytest.ExceptionInfo[HoldfastError]) -> str:
    return error.value.code


@pytest.mark.clause("H-W9")
def test_what_is_sealed_opens_in_its_place() -> None:
    ring = KeyRing.parse(K1)

    sealed = ring.seal("a token — with ümlauts", PLACE)

    version, kid, body = sealed.split(".")
    raw = base64.urlsafe_b64decode(body + "=" * (-len(body) % 4))
    assert (version, kid) == ("v1", "k1")
    assert len(raw) == 12 + len("a token — with ümlauts".encode()) + 16
    assert ring.open(sealed, PLACE) == "a token — with ümlauts"


def test_the_same_text_is_never_sealed_the_same_way() -> None:
    ring = KeyRing.parse(K1)

    sealed = {ring.seal("same", PLACE) for _ in range(200)}

    assert len(sealed) == 200


@pytest.mark.clause("H-W9")
@pytest.mark.parametrize(
    "place",
    [
        "credentials|refresh_token|alice|openai|alice",
        "credentials|access_token|bob|openai|bob",
        "credentials|access_token|alice|other|alice",
        "settings|access_token|alice|openai|alice",
        "",
    ],
)
def test_in_another_place_it_does_not_open(place: str) -> None:
    ring = KeyRing.parse(K1)
    sealed = ring.seal("token", PLACE)

    with pytest.raises(SealError, match="changed, moved") as error:
        ring.open(sealed, place)

    assert code_of(error) == "seal_broken"


@pytest.mark.clause("H-W9")
def test_every_changed_letter_is_noticed() -> None:
    ring = KeyRing.parse(K1)
    sealed = ring.seal("token", PLACE)
    start = len("v1.k1.")

    for place in range(start, len(sealed) - 1):
        changed = sealed[:place] + ("A" if sealed[place] != "A" else "B") + sealed[place + 1 :]
        with pytest.raises(SealError):
            ring.open(changed, PLACE)


@pytest.mark.parametrize(
    "text", ["", "token", "v1.k1.", "v1.k1.AAAA", "v2.k1.AAAA", "v1.k1.***", "v1..AAAA", "k1.AAAA"]
)
def test_a_text_that_was_never_sealed_is_not_taken_for_one(text: str) -> None:
    with pytest.raises(SealError, match="no sealed text"):
        KeyRing.parse(K1).open(text, PLACE)


@pytest.mark.clause("H-W9")
def test_the_first_key_seals_and_all_open() -> None:
    old, both = KeyRing.parse(K1), KeyRing.parse(f"{K2},{K1}")
    before = old.seal("token", PLACE)

    after = both.seal("token", PLACE)

    assert (kid_of(before), kid_of(after)) == ("k1", "k2")
    assert both.open(before, PLACE) == both.open(after, PLACE) == "token"


@pytest.mark.clause("H-W9")
def test_a_key_that_was_dropped_is_named() -> None:
    sealed = KeyRing.parse(K1).seal("token", PLACE)

    with pytest.raises(SealError, match="sealed with key 'k1'") as error:
        KeyRing.parse(K2).open(sealed, PLACE)

    assert code_of(error) == "encryption_key_unknown"


def test_another_key_of_the_same_name_does_not_open() -> None:
    sealed = KeyRing.parse(K1).seal("token", PLACE)

    with pytest.raises(SealError, match="another key of this name"):
        KeyRing.parse(K2.replace("k2:", "k1:")).open(sealed, PLACE)


@pytest.mark.parametrize(
    "text",
    ["k1", "k1:", "k1:AAAA", f"{K1},{K1}", f":{K1}", "k.1:" + K1[3:], K1 + "A", "k1:" + "not base64" * 4, f"{K1},,"],
)
def test_a_ring_that_cannot_be_read_is_refused_without_showing_it(text: str) -> None:
    with pytest.raises(SealError) as error:
        KeyRing.parse(text)

    assert code_of(error) == "encryption_key_invalid"
    assert K1[3:20] not in str(error.value)


def test_a_ring_does_not_show_its_keys() -> None:
    ring = KeyRing.parse(f"{K2}\n{K1}")

    assert (repr(ring), ring.kids) == ("KeyRing(k2, k1)", ("k2", "k1"))


@pytest.mark.clause("H-W9")
def test_without_a_key_nothing_is_sealed() -> None:
    with pytest.raises(SealError, match="holdfast keys generate") as error:
        KeyRing.of_environment({})

    assert code_of(error) == "encryption_key_missing"


def test_a_ring_may_stand_in_a_file(tmp_path: Path) -> None:
    (tmp_path / "keys").write_text(f"{K2}\n{K1}\n")

    ring = KeyRing.of_environment({"HOLDFAST_ENCRYPTION_KEYS_FILE": str(tmp_path / "keys")})

    assert ring.kids == ("k2", "k1")


def test_a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(Misconfigured, match="HOLDFAST_ENCRYPTION_KEYS_FILE"):
        KeyRing.of_environment({"HOLDFAST_ENCRYPTION_KEYS_FILE": str(tmp_path / "keys")})


def test_two_sources_are_one_too_many(tmp_path: Path) -> None:
    (tmp_path / "keys").write_text(K1)

    with pytest.raises(Misconfigured, match="both set"):
        KeyRing.of_environment(
            {"HOLDFAST_ENCRYPTION_KEYS": K1, "HOLDFAST_ENCRYPTION_KEYS_FILE": str(tmp_path / "keys")}
        )


def test_a_generated_key_can_be_used_at_once() -> None:
    kid, text = new_key()
    other = new_key("next")

    ring = KeyRing.parse(f"{text},{other[1]}")

    assert ring.kids == (kid, "next")
    assert ring.open(ring.seal("token", PLACE), PLACE) == "token"
