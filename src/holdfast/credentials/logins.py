"""Who someone is here, from what their provider says of them; and whether they may come in."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any

from holdfast.credentials.environment import Environment, told
from holdfast.errors import HandshakeRefused, InvalidValue
from holdfast.identity import check_id

CLAIM, ALLOW = "HOLDFAST_LOGIN_CLAIM", "HOLDFAST_LOGIN_ALLOW"


def user_of(claims: Mapping[str, Any], environment: Environment | None = None) -> str:
    """The user id for these claims, which were checked. The same person always has the same.

    It is the subject, or the claim that HOLDFAST_LOGIN_CLAIM names; an address only if the provider has verified it.
    What is no id here becomes one that is derived from it and from the provider. HOLDFAST_LOGIN_ALLOW, if set, names
    who may come in, as ids or as `@domain` for all addresses of one.
    """
    name = told(CLAIM, environment) or "sub"
    value = claims.get(name)
    if not isinstance(value, str) or not value:
        raise HandshakeRefused(f"the provider does not say the {name} of who logs in", code="login_refused")
    if name == "email" and claims.get("email_verified") is not True:
        raise HandshakeRefused("the provider has not verified this address", code="login_refused")
    user_id = value.lower() if name == "email" else value
    if not _is_allowed(user_id, told(ALLOW, environment)):
        raise HandshakeRefused("you are known, and not allowed here", code="login_refused")
    try:
        return check_id(user_id, "user_id")
    except InvalidValue:
        whole = f"{claims.get('iss')}|{value}"
        return f"oidc-{hashlib.sha256(whole.encode()).hexdigest()[:32]}"


def _is_allowed(user_id: str, allowed: str | None) -> bool:
    if allowed is None:
        return True
    names = {each.strip().lower() for each in allowed.split(",")}
    domain = f"@{user_id.rpartition('@')[2]}" if "@" in user_id else None
    return user_id.lower() in names or (domain is not None and domain.lower() in names)
