"""How long one statement may take: what the caller says, else what the environment says, else fifteen seconds."""

from __future__ import annotations

import os
from collections.abc import Mapping

from holdfast.errors import InvalidValue
from holdfast.redaction import logger
from holdfast.store.findings import Finding

log = logger("holdfast.store")

STATEMENT_TIMEOUT_MS = 15_000
STATEMENT_TIMEOUT_MS_MAX = 3_600_000
VARIABLE = "HOLDFAST_STATEMENT_TIMEOUT_MS"
_NUMBERS = f"a whole number of milliseconds from 1 to {STATEMENT_TIMEOUT_MS_MAX}"


def statement_timeout_ms(given: int | None, environment: Mapping[str, str] | None = None) -> int:
    """The limit that holds. What a caller says must be usable; what the environment says is ignored if it is not."""
    if given is not None:
        if type(given) is not int or not 1 <= given <= STATEMENT_TIMEOUT_MS_MAX:
            raise InvalidValue(f"statement_timeout_ms is {_NUMBERS}; got {given!r}")
        return given
    said = _said(environment)
    found = _number(said)
    if said and found is None:
        log.warning("%s", _ignored(said))
    return found or STATEMENT_TIMEOUT_MS


def environment_findings(environment: Mapping[str, str] | None = None) -> list[Finding]:
    """What the doctor says of the environment's limit; nothing where there is none."""
    said = _said(environment)
    if not said:
        return []
    if (found := _number(said)) is not None:
        return [Finding(name="statement timeout", state="ok", found=f"{found} ms, by {VARIABLE}")]
    advice = f"set it to {_NUMBERS}, or not at all"
    return [Finding(name="statement timeout", state="warning", found=_ignored(said), advice=advice)]


def _said(environment: Mapping[str, str] | None) -> str:
    return (os.environ if environment is None else environment).get(VARIABLE, "").strip()


def _number(text: str) -> int | None:
    if not (text.isascii() and text.isdigit() and len(text) <= len(str(STATEMENT_TIMEOUT_MS_MAX))):
        return None
    return int(text) if 1 <= int(text) <= STATEMENT_TIMEOUT_MS_MAX else None


def _ignored(text: str) -> str:
    return f"{VARIABLE} is {text[:40]!r}, not {_NUMBERS}; {STATEMENT_TIMEOUT_MS} holds instead"
