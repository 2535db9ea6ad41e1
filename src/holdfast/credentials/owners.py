"""Whose things are meant: those of the user who asks, or of the one who is named by somebody who sees everyone."""

from __future__ import annotations

from holdfast.errors import NotFound
from holdfast.identity import check_id

LOCAL = "local"


def owner(asking: str | None, named: str | None) -> str:
    """The user that is meant; to one who asks for themselves, others are unknown."""
    if asking is None:
        return check_id(LOCAL if named is None else named, "user_id")
    if named not in (None, asking):
        raise NotFound(f"there is no user {named}")
    return asking
