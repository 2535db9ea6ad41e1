"""What of a payload is kept: its hash always, itself only where that is wanted, never a secret or an absolute path."""

from __future__ import annotations

import posixpath
import re
from collections.abc import Collection
from pathlib import Path, PurePosixPath, PureWindowsPath
from typing import Any, NamedTuple

import msgspec

from holdfast.errors import InvalidValue
from holdfast.protocol.values import canonical, clean, fingerprint
from holdfast.redaction import Redaction

OUTSIDE = "(outside)"
"""Where a path lies that is not in the project; only its last part is kept."""
_SHA = re.compile(r"(?:sha256:)?([0-9a-f]{64})")
_ABSOLUTE = re.compile(r"(?:file://)?(?:/|[A-Za-z]:[\\/]|\\\\).*")
# One segment may be a route or a command, and words with spaces a sentence; but two or more are a place on a disk.
_PLACE = re.compile(r"(?:file://)?(?:(?:/[^/\s]+){2,}/?|(?:[A-Za-z]:[\\/]|\\\\)\S+)")
# A path that goes up, goes nowhere, or begins at someone's home.
_CROOKED = re.compile(r"~(?:/.*)?|(?:[^/\n].*)?(?:(?<![^/])\.\.?(?![^/])|//)[^\n]*")
_OF_A_PATH = re.compile(r"(?i)(?:.*[_-])?(?:path|file|filename|dir|directory|folder|cwd|root)s?|.*(?:Path|File|Dir)s?")

PersistPayloads = bool | Collection[str]
"""All payloads, none, or those of the tools that are named."""


class Payload(NamedTuple):
    """A value as an audit fact knows it."""

    sha256: str
    text: str | None


class Payloads:
    """One store's rules for payloads."""

    def __init__(
        self,
        redaction: Redaction,
        *,
        persist: PersistPayloads = False,
        project_root: str | Path | None = None,
        max_bytes: int = 8 << 20,
    ) -> None:
        self.redaction = redaction
        self._persist = persist if isinstance(persist, bool) else frozenset(persist)
        self._root = Path(project_root or ".").absolute()
        root = self._root.as_posix()
        # A whole folder, and not the tail of a longer path. Of a disk's own root there is nothing to take away.
        self._in_words = None if root == "/" else re.compile(rf"(?<![\w.-]){re.escape(root)}(?:/|(?![\w.-]))")
        self._max_bytes = max_bytes

    def of(self, value: Any, tool_name: str, wanted: bool | None) -> Payload:
        """The payload of a call: `wanted` speaks for this call, else the tool, else the store."""
        cleaned, _ = clean(value)
        keeps = self.keeps(tool_name, wanted)
        shown = self.redaction.masked(self.relative(cleaned)) if keeps and cleaned is not None else None
        return Payload(sha256(cleaned), None if shown is None else self.checked(canonical(shown)))

    def keeps(self, tool_name: str, wanted: bool | None) -> bool:
        if wanted is not None:
            return wanted
        return self._persist if isinstance(self._persist, bool) else tool_name in self._persist

    def kept(self, value: Any) -> str:
        """A value that is read back and applied, so nothing of it is hidden; only its paths are the project's."""
        cleaned, _ = clean(value)
        return self.checked(canonical(self.relative(cleaned)))

    def checked(self, text: str) -> str:
        if len(text.encode()) > self._max_bytes:
            raise InvalidValue(f"this body is over {self._max_bytes} bytes; store a reference instead")
        return text

    def said(self, text: str) -> str:
        """Words of a conversation."""
        cleaned, _ = clean(text)
        if not isinstance(cleaned, str):
            raise InvalidValue(f"content is text, got a {type(text).__name__}")
        return self.checked(self.redaction.hidden(cleaned))

    def error(self, text: str | None) -> str | None:
        if text is None:
            return None
        cleaned, _ = clean(str(text))
        return self.redaction.scrubbed(self._without_root(cleaned))

    def relative(self, value: Any, name: str = "") -> Any:
        """The value with every path in it seen from the project, at any depth. `name` is what the value is called."""
        if isinstance(value, str):
            is_named = _OF_A_PATH.fullmatch(name)
            if is_named and _CROOKED.fullmatch(value) and "://" not in value:
                return self._path((self._root / value).as_posix() if value[0] != "~" else f"/{value}")
            is_path = _ABSOLUTE.fullmatch(value) if is_named else _PLACE.fullmatch(value)
            return self._path(value.removeprefix("file://")) if is_path else self._without_root(value)
        if isinstance(value, dict):
            return {self.relative(key): self.relative(item, key) for key, item in value.items()}
        if isinstance(value, list):
            return [self.relative(item, name) for item in value]
        return value

    def _path(self, text: str) -> str:
        if not text.startswith("/"):
            return f"{OUTSIDE}/{PureWindowsPath(text).name}"
        path = PurePosixPath(posixpath.normpath(text))
        root = PurePosixPath(self._root.as_posix())
        return path.relative_to(root).as_posix() if path.is_relative_to(root) else f"{OUTSIDE}/{path.name}"

    def _without_root(self, text: str) -> str:
        if self._in_words is None:
            return text
        return self._in_words.sub(lambda found: "" if found[0].endswith("/") else ".", text)


def sha256(value: Any) -> str:
    """The hash of a cleaned value's canonical JSON: neither the order of keys nor spaces matter."""
    return f"sha256:{fingerprint(value)}"


def given_sha256(text: str) -> str:
    """A hash that a caller computed."""
    found = _SHA.fullmatch(str(text))
    if found is None:
        raise InvalidValue(f"args_sha256 is 64 hexadecimal digits, with or without sha256: before them; got {text!r}")
    return f"sha256:{found[1]}"


def parsed(value: Any, name: str) -> Any:
    """A value, or the value that a JSON text means. A text that is no JSON is refused."""
    if not isinstance(value, str | bytes):
        return value
    try:
        return msgspec.json.decode(value)
    except (msgspec.DecodeError, UnicodeError, RecursionError) as error:
        raise InvalidValue(f"{name} is no JSON: {error}; send the value itself, or JSON text") from error
