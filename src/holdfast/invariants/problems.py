"""How a broken law is reported."""

from __future__ import annotations

import msgspec


class Problem(msgspec.Struct, frozen=True):
    """One broken law: which, where, and what was seen."""

    law: str
    where: str
    detail: str

    def __str__(self) -> str:
        return f"{self.law} {self.where}: {self.detail}"
