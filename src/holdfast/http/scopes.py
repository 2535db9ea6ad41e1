"""What an API key with scopes may do. Every route that asks who is calling asks this too; a key without scopes may all.

| scope | stands for |
|---|---|
| `runs:read` | seeing runs, sessions, streams and records |
| `runs:write` | starting, signalling, cancelling and deleting them as well |
| `approvals:decide` | answering what runs and proposals ask of people, and seeing it |
| `admin` | all of these, and settings and credentials |
"""

from __future__ import annotations

from starlette.requests import Request

from holdfast.credentials.api_keys import ADMIN, DECIDE, READ, WRITE, ApiKey
from holdfast.errors import HoldfastError

SAFE = frozenset({"GET", "HEAD", "OPTIONS"})
SECRETS = ("/api/settings", "/api/oauth", "/api/keys", "/api/credentials")
DECISIONS = ("approve", "reject", "deny", "resume")


class MissingScope(HoldfastError):
    """The key is valid and may not do this. Its code names the scope that it lacks."""

    code = "missing_scope"

    def __init__(self, scope: str) -> None:
        text = f"this API key has no scope {scope}; ask with one that has"
        super().__init__(text, code=f"missing_scope_{scope.replace(':', '_')}")
        self.scope = scope


def needed(method: str, path: str) -> str:
    """The scope that a route needs, by its method and its path as the description spells it."""
    if path.startswith(SECRETS):
        return ADMIN
    if method in SAFE:
        return READ
    return DECIDE if path.rpartition("/")[2] in DECISIONS else WRITE


def check_scope(request: Request, key: ApiKey) -> None:
    """Raise `MissingScope` unless the key may be used for this route."""
    path = getattr(request.scope.get("route"), "path", None)
    scope = needed(request.method, str(path or request.scope["path"]))
    if not key.allows(scope):
        raise MissingScope(scope)
