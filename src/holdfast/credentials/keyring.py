"""The key ring: AES-256-GCM under the host's keys. The first seals, all open; there is no other way to keep a secret.

A sealed text is `v1.<key id>.<base64url of nonce, ciphertext and tag>`. What it is bound to (its table, column, row and
user) is authenticated with it: in any other place it does not open.
"""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Mapping
from typing import Any

from holdfast import ambient
from holdfast.credentials.environment import Environment, told
from holdfast.errors import HoldfastError, SealError

VARIABLE = "HOLDFAST_ENCRYPTION_KEYS"
KEY_BYTES, NONCE_BYTES, TAG_BYTES = 32, 12, 16
_KID = re.compile(r"[A-Za-z0-9_-]{1,32}")
_SEALED = re.compile(r"v1\.([A-Za-z0-9_-]{1,32})\.([A-Za-z0-9_-]+)")
_MISSING = (
    f"secrets are kept only under a key of this host, and {VARIABLE} is not set; "
    f"make one with `holdfast keys generate`, and keep it safe"
)


class KeyRing:
    """Named keys in order. It never shows them."""

    def __init__(self, keys: Mapping[str, bytes]) -> None:
        self._keys = dict(keys)
        self.first = next(iter(self._keys))

    def __repr__(self) -> str:
        return f"KeyRing({', '.join(self._keys)})"

    @classmethod
    def parse(cls, text: str) -> KeyRing:
        """`k2:<base64>,k1:<base64>`, with commas or line breaks. Raises `SealError`, without a word of a key."""
        keys: dict[str, bytes] = {}
        for place, part in enumerate(re.split(r"[,\s]+", text.strip()), start=1):
            kid, _, encoded = part.partition(":")
            key = _decoded(encoded)
            if not _KID.fullmatch(kid) or key is None or len(key) != KEY_BYTES or kid in keys:
                raise SealError(
                    f"key {place} of {VARIABLE} is no <id>:<base64 of {KEY_BYTES} bytes> with an id of its own; "
                    "make one with `holdfast keys generate`",
                    code="encryption_key_invalid",
                )
            keys[kid] = key
        return cls(keys)

    @classmethod
    def of_environment(cls, environment: Environment | None = None) -> KeyRing:
        """The ring of this host, or `SealError` (`encryption_key_missing`)."""
        text = told(VARIABLE, environment)
        if text is None:
            raise SealError(_MISSING, code="encryption_key_missing")
        return cls.parse(text)

    @property
    def kids(self) -> tuple[str, ...]:
        return tuple(self._keys)

    def seal(self, text: str, bound_to: str) -> str:
        """The text as it is kept. Sealing the same again gives another text."""
        cipher, _ = _library()
        nonce = ambient.random_bits(NONCE_BYTES * 8).to_bytes(NONCE_BYTES)
        sealed = nonce + cipher(self._keys[self.first]).encrypt(nonce, text.encode(), bound_to.encode())
        return f"v1.{self.first}.{base64.urlsafe_b64encode(sealed).decode().rstrip('=')}"

    def open(self, sealed: str, bound_to: str) -> str:
        """What was sealed, or `SealError`: an unknown key, or not the text that was sealed for this place."""
        kid, body = _parts(sealed)
        key = self._keys.get(kid)
        if key is None:
            raise SealError(
                f"a secret is sealed with key {kid!r}, which is not in {VARIABLE} ({', '.join(self._keys)}); "
                "put it back behind the others",
                code="encryption_key_unknown",
            )
        cipher, refusal = _library()
        try:
            opened: bytes = cipher(key).decrypt(body[:NONCE_BYTES], body[NONCE_BYTES:], bound_to.encode())
        except refusal as error:
            raise SealError(
                f"a secret under key {kid!r} does not open here: it was changed, moved, or sealed with another key of "
                "this name"
            ) from error
        return opened.decode()


def kid_of(sealed: str) -> str | None:
    """The id of the key that a text is sealed with; None if it is no sealed text."""
    found = _SEALED.fullmatch(sealed)
    return None if found is None else found[1]


def new_key(kid: str | None = None) -> tuple[str, str]:
    """A fresh key: its id, and the text for the ring."""
    chosen = kid or f"k{ambient.random_bits(24):06x}"
    if not _KID.fullmatch(chosen):
        text = "an id of a key has 1 to 32 letters, digits, _ or -"
        raise SealError(text, code="encryption_key_invalid")
    key = ambient.random_bits(KEY_BYTES * 8).to_bytes(KEY_BYTES)
    return chosen, f"{chosen}:{base64.b64encode(key).decode()}"


def _parts(sealed: str) -> tuple[str, bytes]:
    found = _SEALED.fullmatch(sealed)
    body = None if found is None else _decoded(found[2])
    if found is None or body is None or len(body) < NONCE_BYTES + TAG_BYTES:
        raise SealError("what is kept here is no sealed text; it was damaged or put there by someone else")
    return found[1], body


def _decoded(text: str) -> bytes | None:
    plain = text.replace("-", "+").replace("_", "/").rstrip("=")
    try:
        return base64.b64decode(plain + "=" * (-len(plain) % 4), validate=True)
    except (binascii.Error, ValueError):
        return None


def _library() -> tuple[Any, type[Exception]]:
    """The cipher, and how it refuses."""
    try:
        from cryptography.exceptions import InvalidTag  # noqa: PLC0415  # an extra
        from cryptography.hazmat.primitives.ciphers.aead import AESGCM  # noqa: PLC0415  # an extra
    except ModuleNotFoundError as error:
        raise HoldfastError(
            "secrets need cryptography: pip install 'holdfast[server]'", code="extra_missing"
        ) from error
    return AESGCM, InvalidTag
