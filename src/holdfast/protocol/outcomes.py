"""What a handler answers at the end of a tick. The outcome is the last word: the runtime never overrides it."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any

import msgspec
from msgspec import UNSET, UnsetType


class Ok(msgspec.Struct, frozen=True):
    """The input is dealt with; the run rests until the next signal."""


class Done(msgspec.Struct, frozen=True):
    """The run is finished with this output."""

    output: Any = None


class Continue(msgspec.Struct, frozen=True):
    """Another tick follows at once, with this input."""

    input: Any = UNSET


class Wait(msgspec.Struct, frozen=True):
    """Sleep until an instant or for some seconds; a signal ends the sleep early. Without either: until a signal."""

    until: datetime | None = None
    seconds: float | timedelta | None = None


class Retry(msgspec.Struct, frozen=True):
    """The same input again, later. When attempts are used up the run fails with this error."""

    error: str = ""
    after: float | timedelta | None = None
    kind: str = "error"


class Fail(msgspec.Struct, frozen=True):
    """The run fails at once with this error."""

    error: str = ""
    kind: str = "error"


Outcome = Ok | Done | Continue | Wait | Retry | Fail

__all__ = ["UNSET", "Continue", "Done", "Fail", "Ok", "Outcome", "Retry", "UnsetType", "Wait"]
