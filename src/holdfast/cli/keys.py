"""Commands on keys: `keys generate` and `rotate` for those that secrets are sealed with, `create`, `list` and `revoke`
for those that programs call the API with."""

from __future__ import annotations

from datetime import timedelta
from typing import Annotated, Any

import typer

from holdfast.cli.app import OK, PROBLEMS, Desk, command, group, on_runs
from holdfast.cli.output import table
from holdfast.credentials import ApiKey, new_key
from holdfast.credentials.api_keys import SCOPES
from holdfast.facade import Holdfast

keys = group("keys", "Keys for secrets at rest, and keys that programs call the API with.")
KeyId = Annotated[str, typer.Argument(metavar="KEY", help="The key's id, as `keys list` shows it.", show_default=False)]

_SCOPE_HELP = f"What it may do ({', '.join(SCOPES)}); all that its user may unless told."
Scopes = Annotated[list[str] | None, typer.Option("--scope", help=_SCOPE_HELP, show_default=False)]


@command("generate", at=keys)
async def generate_key(
    desk: Desk,
    *,
    kid: Annotated[str | None, typer.Option("--kid", help="Its id; a new one unless told.", show_default=False)] = None,
) -> None:
    """Make a key that secrets are sealed with, for the front of HOLDFAST_ENCRYPTION_KEYS. It is kept nowhere."""
    name, text = new_key(kid)
    if desk.out.json:
        desk.out.tell({"kid": name, "key": text})
    else:
        typer.echo(text)


@on_runs("rotate", at=keys)
async def rotate_keys(desk: Desk, hf: Holdfast) -> int:
    """Seal every secret anew with the first key, and say what remains under others. Safe while everything runs."""
    report = await hf.credentials.rotate()
    if desk.out.json:
        desk.out.tell(report)
    else:
        desk.out.show(f"{report.resealed} secrets are sealed anew with key {report.kid}")
        for kid, count in report.remaining.items():
            desk.out.show(f"{count} remain under key {kid}; run this again, and keep that key until none do")
        if report.unreadable:
            desk.out.show(f"{report.unreadable} could not be opened with the keys of this host")
    return PROBLEMS if report.remaining else OK


@on_runs("create", at=keys)
async def create_key(
    desk: Desk,
    hf: Holdfast,
    *,
    user: Annotated[str, typer.Option("--user", help="Whose key it is.", show_default=False)],
    scope: Scopes = None,
    days: Annotated[float | None, typer.Option("--days", help="How long it works; for ever unless told.")] = None,
) -> None:
    """Make an API key. Its text is shown now and never again."""
    lifetime = None if days is None else timedelta(days=days)
    made = await hf.api_keys.create(user, scopes=scope or (), lifetime=lifetime)
    if desk.out.json:
        desk.out.tell({"key": made.text, **_told(made.key)})
    else:
        typer.echo(made.text)


@on_runs("list", at=keys)
async def list_keys(
    desk: Desk,
    hf: Holdfast,
    *,
    user: Annotated[str | None, typer.Option("--user", help="Only those of this user.", show_default=False)] = None,
) -> None:
    """List API keys by user, without their secrets."""
    found = await hf.api_keys.list(user)
    if desk.out.json:
        desk.out.tell({"keys": [_told(key) for key in found]})
        return
    columns = ("key", "user", "scopes", "created", "last used", "expires", "revoked")
    desk.out.show(table(columns, [_line(key) for key in found]))


@on_runs("revoke", at=keys)
async def revoke_key(desk: Desk, hf: Holdfast, *, key: KeyId) -> None:
    """Make an API key worthless, at once and for good."""
    # Whoever pastes the whole key means its id.
    revoked = await hf.api_keys.revoke(key.removeprefix("hf_").partition("_")[0])
    if desk.out.json:
        desk.out.tell(_told(revoked))
    else:
        desk.out.show(f"key {revoked.key_id} of {revoked.user_id} opens nothing any more")


def _told(key: ApiKey) -> dict[str, Any]:
    return {name: getattr(key, name) for name in key.__struct_fields__}


def _line(key: ApiKey) -> tuple[Any, ...]:
    scopes = " ".join(key.scopes) or "all"
    return key.key_id, key.user_id, scopes, key.created_at, key.last_used_at, key.expires_at, key.revoked_at
