"""Settings of a user: which provider and model to use, and the keys for them, which are sealed and never shown."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any, Literal, get_args

import msgspec

from holdfast.credentials.owners import owner as owner_of
from holdfast.credentials.vault import ANTHROPIC_API_KEY, OPENAI_API_KEY, Vault
from holdfast.errors import Conflict, InvalidValue
from holdfast.identity import check_name
from holdfast.moments import from_us
from holdfast.protocol.state import RunState
from holdfast.store import Row, Store

ModelProvider = Literal["openai", "anthropic"]
Reasoning = Literal["low", "medium", "high"]
KEY_LENGTH_MAX = 1_024
STARRED_MAX = 8
SHOWN = 4
LOSSES_MAX = 20
_KEYS = {"openai": OPENAI_API_KEY, "anthropic": ANTHROPIC_API_KEY}
_CHOSEN: dict[str, tuple[str, ...] | None] = {
    "provider": get_args(ModelProvider),
    "model": None,
    "reasoning": get_args(Reasoning),
}
_COLUMNS = ("provider", "model", "reasoning", "openai_api_key", "anthropic_api_key", "version", "updated_at")


class UserSettings(msgspec.Struct, frozen=True, kw_only=True):
    """What a user has chosen. Of keys there are previews only. `version` grows with every change."""

    provider: ModelProvider | None = None
    model: str | None = None
    reasoning: Reasoning | None = None
    previews: dict[str, str] = {}
    version: int = 0
    updated_at: datetime | None = None


class Settings:
    """The settings of all users, or of the one who asks."""

    def __init__(self, store: Store[RunState], vault: Vault, user_id: str | None = None) -> None:
        self._store = store
        self._vault = vault
        self._user_id = user_id

    async def get(self, user_id: str | None = None) -> UserSettings:
        """The settings of a user who may never have made any."""
        owner = owner_of(self._user_id, user_id)
        row = await self._row(owner)
        if row is None:
            return UserSettings()
        values = dict(zip(_COLUMNS, row, strict=True))
        return UserSettings(
            provider=values["provider"],
            model=values["model"],
            reasoning=values["reasoning"],
            previews={
                name: preview(self._vault.open(values[column.name], column, owner, user_id=owner))
                for name, column in _KEYS.items()
                if values[column.name] is not None
            },
            version=values["version"],
            updated_at=from_us(values["updated_at"]),
        )

    async def provider_key(self, provider: str, user_id: str | None = None) -> str | None:
        """The user's own key for a provider, for the process that calls it; None if they gave none."""
        owner = owner_of(self._user_id, user_id)
        column, row = _KEYS.get(provider), await self._row(owner)
        sealed = None if row is None or column is None else row[_COLUMNS.index(column.name)]
        return None if sealed is None or column is None else self._vault.open(sealed, column, owner, user_id=owner)

    async def change(
        self, changes: Mapping[str, Any], user_id: str | None = None, *, expected_version: int | None = None
    ) -> UserSettings:
        """Change some of `provider`, `model`, `reasoning`, `openai_api_key`, `anthropic_api_key`; None clears.

        On another version than the expected one it is a `Conflict` (`version_changed`), and nothing is changed.
        """
        owner = owner_of(self._user_id, user_id)
        values = {name: self._checked(name, value, owner) for name, value in changes.items()}
        for _ in range(LOSSES_MAX):
            row = await self._row(owner)
            version = 0 if row is None else row[_COLUMNS.index("version")]
            if expected_version not in (None, version):
                raise Conflict(
                    f"the settings have changed since: they are at version {version}; read them again",
                    code="version_changed",
                )
            if not values or await self._put(owner, values, row, version):
                return await self.get(owner)
        raise Conflict("the settings are changed by others all the time; try again", code="version_changed")

    def _checked(self, name: str, value: Any, owner: str) -> str | None:
        """The value as it is kept."""
        column = next((each for each in _KEYS.values() if each.name == name), None)
        if name not in _CHOSEN and column is None:
            raise InvalidValue(f"there is no setting {name!r}")
        if value is None:
            return None
        if column is not None:
            key = _checked_key(value, name).strip()
            if not key:
                raise InvalidValue(f"{name} is empty; clear it with None")
            return self._vault.seal(key, column, owner, user_id=owner)
        words = _CHOSEN[name]
        if words is not None and value not in words:
            raise InvalidValue(f"{name} is {value!r}; use one of {', '.join(words)}")
        return check_name(value, name)

    async def _put(self, owner: str, values: dict[str, str | None], before: Row | None, version: int) -> bool:
        kept = dict(zip(_COLUMNS[:5], before or (None,) * 5, strict=False))
        after = {**kept, **values}
        sql = """
            INSERT INTO {s}settings AS old (
                user_id, provider, model, reasoning, openai_api_key, anthropic_api_key, version, updated_at
            )
            VALUES ($1, $2, $3, $4, $5, $6, CAST($7 AS bigint) + 1, {now})
            ON CONFLICT (user_id) DO UPDATE
            SET provider = excluded.provider, model = excluded.model, reasoning = excluded.reasoning,
                openai_api_key = excluded.openai_api_key, anthropic_api_key = excluded.anthropic_api_key,
                version = excluded.version, updated_at = excluded.updated_at
            WHERE old.version = $7
            RETURNING version
        """
        put = tuple(after[name] for name in _COLUMNS[:5])
        if await self._store.change(sql, owner, *put, version):
            return True
        # Perhaps by ourselves: an answer that was lost.
        return (await self._row(owner) or ())[:6] == (*put, version + 1)

    async def _row(self, owner: str) -> Row | None:
        rows = await self._store.fetch(f"SELECT {', '.join(_COLUMNS)} FROM {{s}}settings WHERE user_id = $1", owner)
        return rows[0] if rows else None


def preview(key: str) -> str:
    """The first four and last four characters; of a short key nothing."""
    return "*" * len(key) if len(key) <= STARRED_MAX else f"{key[:SHOWN]}...{key[-SHOWN:]}"


def _checked_key(value: object, name: str) -> str:
    """The key, if it can be one. What is wrong with it is said without showing it: it may be one all the same."""
    try:
        return check_name(value, name, longest=KEY_LENGTH_MAX)
    except InvalidValue as error:
        text = f"{name} must be 1 to {KEY_LENGTH_MAX} characters without NUL or lone surrogates"
        raise InvalidValue(text, code=error.code) from None
