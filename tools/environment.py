"""Everything that the environment can say: one list, for `.env` files, `.env.example` and the table in docs/deploy.md.

    python3 -m tools.environment > .env      # a new one, with fresh secrets
    python3 -m tools.environment --write     # .env.example and the table

Needs nothing but Python: whoever starts containers need not install Holdfast.
"""

from __future__ import annotations

import base64
import secrets
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[1]
BEGIN, END = "<!-- environment -->\n", "<!-- /environment -->"


class Variable(NamedTuple):
    """`value` is what a new `.env` says; without one the line is there, switched off."""

    name: str
    says: str
    value: Callable[[], str] | str | None = None
    example: str = ""


def _password() -> str:
    # Part of an address, so nothing in it may need quoting.
    return secrets.token_hex(24)


def _keys() -> str:
    return f"k1:{base64.b64encode(secrets.token_bytes(32)).decode()}"


STACK = (
    Variable("POSTGRES_PASSWORD", "the password of the stack's own database", _password),
    Variable("API_PORT", "where this machine finds the API or its balancer", None, "8787"),
    Variable("WORKER_CONCURRENCY", "how many ticks a worker runs at once", None, "1"),
)
"""What the compose files read themselves."""

HOLDFAST = (
    Variable("HOLDFAST_DATABASE_URL", "the database; the compose files set it", None, "postgresql://user@host/db"),
    Variable("HOLDFAST_SCHEMA", "on Postgres: the schema, `holdfast` unless told", None, "holdfast"),
    Variable("HOLDFAST_STATEMENT_TIMEOUT_MS", "how long one statement may take", None, "15000"),
    Variable("HOLDFAST_APP", "your program's Holdfast; without it `serve` has a demonstration", None, "app:hf"),
    Variable("HOLDFAST_ROLE", "`api`, `worker` or `all`; the compose files set it", None, "all"),
    Variable(
        "HOLDFAST_STICKY_TTL",
        "for how many seconds sessions keep to their worker; `on` is 600, not at all unless told",
        None,
        "600",
    ),
    Variable("HOLDFAST_AUTH", "who may call: `none` (this machine only), `token` or `oidc`", "token"),
    Variable("HOLDFAST_COMMANDS_PER_SECOND", "how many commands one user may give", None, "50"),
    Variable("HOLDFAST_STARTS_PER_SECOND", "how many logins one address may begin, or one user", None, "5"),
    Variable("HOLDFAST_STREAMS_PER_USER", "how many streams one user may have open", None, "100"),
    Variable("HOLDFAST_PROFILE", "`dev-local`, or `prod`, which refuses what is not safe in public", "dev-local"),
    Variable("HOLDFAST_PUBLIC_URL", "the address that browsers use", None, "https://agents.example.org"),
    Variable("HOLDFAST_ENCRYPTION_KEYS", "keys of stored secrets; the first seals, all open", _keys),
    Variable("HOLDFAST_LOGIN_PROVIDER", "which provider says who people are", None, "oidc"),
    Variable("HOLDFAST_LOGIN_CLAIM", "by which of its claims", None, "sub"),
    Variable("HOLDFAST_LOGIN_ALLOW", "who may come in; everybody it knows unless told", None, "ada,bob"),
    Variable("HOLDFAST_OAUTH_OIDC_ISSUER", "a provider; `OIDC` is its name here", None, "https://id.example.org"),
    Variable("HOLDFAST_OAUTH_OIDC_CLIENT_ID", "who we are to it", None, "holdfast"),
    Variable("HOLDFAST_OAUTH_OIDC_CLIENT_SECRET", "and how we show it"),
    Variable("HOLDFAST_OAUTH_OIDC_SCOPES", "what we ask it for", None, "openid email"),
    Variable("HOLDFAST_OUTBOUND_ALLOW", "private networks that may be reached", None, "10.0.0.0/8"),
)
"""What Holdfast reads."""


def new() -> str:
    """A `.env` with fresh secrets. Two are never the same."""
    return _file(lambda value: value() if callable(value) else value)


def example() -> str:
    """The same without secrets. What needs one refuses to start from it."""
    return _file(lambda value: "" if callable(value) else value)


def table() -> str:
    """For people to read."""
    lines = ["| variable | says |", "|---|---|"]
    lines += [f"| `{each.name}` | {each.says} |" for each in (*HOLDFAST, *STACK)]
    return "\n".join(lines) + "\n"


def written(page: str) -> str:
    """The page with the table of today."""
    before, _, rest = page.partition(BEGIN)
    _, _, after = rest.partition(END)
    return f"{before}{BEGIN}{table()}{END}{after}"


def main(arguments: Sequence[str], root: Path = ROOT) -> int:
    if not arguments:
        print(new(), end="")
        return 0
    if list(arguments) != ["--write"]:
        print(__doc__, file=sys.stderr)
        return 2
    page = root / "docs/deploy.md"
    (root / ".env.example").write_text(example(), encoding="utf-8")
    page.write_text(written(page.read_text(encoding="utf-8")), encoding="utf-8")
    return 0


def _file(shown: Callable[[Callable[[], str] | str], str]) -> str:
    lines: list[str] = []
    for each in (*STACK, *HOLDFAST):
        lines += ["", f"# {each.says}"]
        is_on = each.value is not None
        lines.append(f"{each.name}={shown(each.value)}" if is_on and each.value else f"# {each.name}={each.example}")
    return "\n".join(["# Made by `python3 -m tools.environment`. Keep it to yourself.", *lines]) + "\n"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
