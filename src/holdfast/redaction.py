"""The one redaction policy: what people look at carries no secrets.

It is for metadata, errors, the library's own events, audit facts and logs. It is never for values that a program
reads back: inputs, storage, step results, outputs and outbox payloads stay as they were given.
"""

from __future__ import annotations

import logging
import os
import re
import traceback
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple
from weakref import WeakSet

HIDDEN = "[redacted]"
TEXT_BYTES_MAX = 2_048
LOOKED_AT_MAX = 1 << 16
SECRET_LENGTH_MIN = 8
"""Shorter values of the environment are words, not secrets: hiding them would make every text unreadable."""
PASSING_MAX = 256
SENSITIVE = (
    *("access_token", "api_key", "authorization", "claim_token", "credential", "password", "private_key"),
    *("refresh_token", "secret", "token", "credentials", "secrets", "passwd", "passphrase", "cookie", "apikey"),
)
_WORDS = re.compile(r"(?<=[a-z0-9])(?=[A-Z])")
_NAMES = "|".join(name.replace("_", "[-_ ]?") for name in sorted(SENSITIVE, key=len, reverse=True))


class _Pattern(NamedTuple):
    """What looks like a secret, and what stands there instead.

    One of the signs, in lower case, is in every ASCII text that it changes: most texts have none and are left alone.
    """

    shape: re.Pattern[str]
    instead: str
    signs: tuple[str, ...]


# None of them looks for its beginning in more than one way: the time they take must grow with the text and no faster.
_PATTERNS = (
    _Pattern(
        re.compile(r"-----BEGIN [A-Z ]*PRIVATE KEY-----.*?(?:-----END [A-Z ]*PRIVATE KEY-----|\Z)", re.DOTALL),
        HIDDEN,
        ("private key-----",),
    ),
    _Pattern(
        re.compile(r"(?i)(authorization[\"']?\s*[=:]\s*[\"']?)(?:(?:bearer|basic|token|digest)\s+)?[^\s,;\"']+"),
        rf"\1{HIDDEN}",
        ("authorization",),
    ),
    # Words follow this one too; what has a digit, or is long, is none.
    _Pattern(
        re.compile(r"(?i)\b(bearer\s+)(?=[a-z._~+/=-]{0,64}[0-9]|\S{24})[A-Za-z0-9._~+/=-]{8,}"),
        rf"\1{HIDDEN}",
        ("bearer",),
    ),
    _Pattern(re.compile(r"(://[^\s/:@]*):[^\s/@]+@"), rf"\1:{HIDDEN}@", ("://",)),
    _Pattern(re.compile(r"\beyJ[A-Za-z0-9_-]{8,}\.[A-Za-z0-9_-]{8,}\.[A-Za-z0-9_-]*"), HIDDEN, ("eyj",)),
    _Pattern(re.compile(r"\b(?:sk|pk|rk)[-_][A-Za-z0-9_-]{16,}"), HIDDEN, ("sk-", "sk_", "pk-", "pk_", "rk-", "rk_")),
    _Pattern(
        re.compile(r"\b(?:gh[a-z]_|github_pat_|xox[a-z]-|glpat-|npm_|hf_)[A-Za-z0-9_-]{16,}"),
        HIDDEN,
        ("gh", "xox", "glpat-", "npm_", "hf_"),
    ),
    _Pattern(re.compile(r"\bAKIA[0-9A-Z]{16}\b|\bAIza[A-Za-z0-9_-]{30,}"), HIDDEN, ("akia", "aiza")),
    _Pattern(
        re.compile(rf"(?i)((?:{_NAMES})[\"']?\s*[=:]\s*)(\"[^\"]*\"|'[^']*'|(?!\[redacted\])[^\s,;&\"']+)"),
        rf"\1{HIDDEN}",
        # Between the words of a name anything may stand, so its last word is what is sure.
        tuple(dict.fromkeys(name.rpartition("_")[2] for name in SENSITIVE)),
    ),
)


def is_sensitive(name: str) -> bool:
    """Does something of this name hold a secret? `client_secret` and `X-Api-Key` do, `max_tokens` does not."""
    words = _WORDS.sub("_", name).lower().replace("-", "_").replace(" ", "_").replace(".", "_")
    return any(words == word or words.endswith(f"_{word}") for word in SENSITIVE)


_in_use: WeakSet[Redaction] = WeakSet()


class Redaction:
    """Hides what has a sensitive name, what looks like a secret, and the very secrets it was told."""

    def __init__(self, secrets: Iterable[str] = ()) -> None:
        self._secrets: tuple[str, ...] = ()
        self._passing: tuple[str, ...] = ()
        self.hide(*secrets)
        _in_use.add(self)

    @classmethod
    def of_environment(cls, environment: Mapping[str, str] | None = None) -> Redaction:
        """One that knows the secrets of this process: the values of variables with sensitive names."""
        found = os.environ if environment is None else environment
        return cls(value for name, value in found.items() if is_sensitive(name))

    def hide(self, *secrets: str) -> None:
        """From now on these never appear."""
        self._secrets = _in_order((*self._secrets, *secrets))

    @property
    def secrets(self) -> tuple[str, ...]:
        """What it was told, the longest first; then what passes."""
        return (*self._secrets, *self._passing)

    def hide_for_now(self, secret: str) -> None:
        """The same for a secret among many, such as a token that is soon another: the latest are hidden."""
        if len(secret) >= SECRET_LENGTH_MIN and secret not in self._passing:
            # One new tuple, because other threads write logs meanwhile.
            self._passing = (*self._passing[1 - PASSING_MAX :], secret)

    def masked(self, value: Any) -> Any:
        """The value with every secret in it hidden, at any depth."""
        if isinstance(value, str):
            return self.hidden(value)
        if isinstance(value, dict):
            return {
                self.hidden(name): HIDDEN if is_sensitive(name) and _is_content(item) else self.masked(item)
                for name, item in value.items()
            }
        if isinstance(value, list | tuple):
            return [self.masked(item) for item in value]
        return value

    def hidden(self, text: str) -> str:
        """The text without secrets, however long it is."""
        return _hidden(text, self.secrets)

    def scrubbed(self, text: str) -> str:
        """An error for people: without secrets, and short."""
        return cut(self.hidden(text[:LOOKED_AT_MAX]))


class _Filter(logging.Filter):
    """Hides secrets in what is logged, tracebacks included."""

    def filter(self, record: logging.LogRecord) -> bool:
        if getattr(record, "holds_no_secrets", False):
            return True
        record.msg, record.args = _hidden_by_all(record.getMessage()), ()
        if record.exc_info and record.exc_info[1] is not None:
            record.exc_text = _hidden_by_all("".join(traceback.format_exception(record.exc_info[1])).rstrip())
            record.exc_info = None
        record.holds_no_secrets = True
        return True


class _Environment:
    """The secrets of this process's environment, looked for again only when that has changed."""

    def __init__(self) -> None:
        self._seen: dict[Any, Any] = {}
        self._secrets: tuple[str, ...] = ()

    @property
    def secrets(self) -> tuple[str, ...]:
        # Asked for each line, and the public mapping decodes every value each time. A version that keeps its values
        # elsewhere is asked in public.
        now: dict[Any, Any] = getattr(os.environ, "_data", None) or dict(os.environ)
        if now != self._seen:
            self._seen = dict(now)
            self._secrets = Redaction.of_environment().secrets
        return self._secrets


_environment = _Environment()


def _hidden_by_all(text: str) -> str:
    """A log is the process's, so whatever any runtime in it hides is hidden there."""
    known = {secret for redaction in tuple(_in_use) for secret in redaction.secrets}
    return _hidden(text, _in_order((*known, *_environment.secrets)))


def _in_order(secrets: Iterable[str]) -> tuple[str, ...]:
    """Each once, the longest first: one may be part of another."""
    known = {secret for secret in secrets if len(secret) >= SECRET_LENGTH_MIN}
    return tuple(sorted(known, key=lambda secret: (-len(secret), secret)))


def _hidden(text: str, secrets: Iterable[str]) -> str:
    for secret in secrets:
        text = text.replace(secret, HIDDEN)
    # Other letters than ASCII's may fold to ours, as the long s does; then every shape is looked for.
    lowered = text.lower() if text.isascii() else None
    for shape, instead, signs in _PATTERNS:
        if lowered is None or any(sign in lowered for sign in signs):
            text = shape.sub(instead, text)
    return text


_filter = _Filter()


def logger(name: str) -> logging.Logger:
    """A logger of the library: what it writes carries no secrets."""
    found = logging.getLogger(name)
    if _filter not in found.filters:
        found.addFilter(_filter)
    return found


def hide_secrets(handler: logging.Handler) -> None:
    """From now on nothing that this handler writes carries secrets, whoever says it."""
    handler.addFilter(_filter)


def cut(text: str) -> str:
    """At most two kilobytes of it, never half a character."""
    raw = text.encode()
    return text if len(raw) <= TEXT_BYTES_MAX else raw[: TEXT_BYTES_MAX - 3].decode(errors="ignore") + "…"


def _is_content(value: Any) -> bool:
    """Whether there is a secret or none says nothing about it."""
    return value is not None and not isinstance(value, bool) and value != ""
