"""`/api/settings`: what a user has chosen, and previews of the keys they gave. Never a key."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Body, Header
from pydantic import BaseModel, Field
from starlette.requests import Request
from starlette.responses import Response

from holdfast.credentials import Grant, UserSettings
from holdfast.errors import Conflict
from holdfast.facade import Holdfast
from holdfast.http.callers import Caller
from holdfast.http.problems import documented
from holdfast.http.routing import Route
from holdfast.moments import to_us

OPENAI = "openai"
Ms = Annotated[int, Field(description="Milliseconds since the epoch.")]
Key = Annotated[str | None, Field(max_length=1_024, description="Sealed at once; an empty one clears.")]
IfMatch = Annotated[str | None, Header(alias="If-Match", description="Only if the settings still have this ETag.")]


class SettingsView(BaseModel):
    """The settings of the caller."""

    provider: Literal["openai", "anthropic"] | None = None
    model: str | None = None
    reasoning: Literal["low", "medium", "high"] | None = None
    openai_api_key_set: bool
    openai_api_key_preview: str | None = None
    openai_oauth_connected: bool
    openai_oauth_reauth_required: bool
    openai_oauth_expires_at: Ms | None = None
    openai_oauth_account_id: str | None = None
    anthropic_api_key_set: bool
    anthropic_api_key_preview: str | None = None
    updated_at: Ms | None = None


class SettingsPatch(BaseModel):
    """What to change; what is not said stays. Clearing wins over setting."""

    provider: Literal["openai", "anthropic"] | None = None
    model: Annotated[str | None, Field(max_length=256)] = None
    reasoning: Literal["low", "medium", "high"] | None = None
    clear_reasoning: bool = False
    openai_api_key: Key = None
    clear_openai_api_key: bool = False
    clear_openai_oauth: bool = False
    anthropic_api_key: Key = None
    clear_anthropic_api_key: bool = False

    def changes(self) -> dict[str, str | None]:
        """The settings that change, None for those that are cleared."""
        told = {name: getattr(self, name) for name in ("provider", "reasoning") if getattr(self, name) is not None}
        texts = {name: getattr(self, name) for name in ("model", "openai_api_key", "anthropic_api_key")}
        told |= {name: text.strip() or None for name, text in texts.items() if text is not None}
        cleared = ("reasoning", "openai_api_key", "anthropic_api_key")
        return {**told, **{name: None for name in cleared if getattr(self, f"clear_{name}")}}


def settings_routes(hf: Holdfast, caller: Caller) -> APIRouter:
    """`GET` and `PATCH /api/settings` of whoever calls. A change on an `If-Match` that is old answers 412."""
    router = APIRouter(route_class=Route, tags=["settings"])
    told: dict[str, Any] = {"response_model": SettingsView, "response_model_exclude_none": True}

    async def view(response: Response, user_id: str) -> SettingsView:
        settings, grant = await hf.settings.get(user_id), await hf.credentials.get(OPENAI, user_id)
        response.headers["ETag"] = _etag(settings, grant)
        response.headers["Cache-Control"] = "no-store"
        return _shown(settings, grant)

    @router.get("/api/settings", responses=documented(401, 409, 503), **told)
    async def read_settings(request: Request, response: Response) -> SettingsView:
        """The caller's settings."""
        return await view(response, await caller(request))

    @router.patch("/api/settings", responses=documented(400, 401, 403, 409, 412, 413, 422, 503), **told)
    async def change_settings(
        request: Request, response: Response, patch: Annotated[SettingsPatch, Body()], if_match: IfMatch = None
    ) -> SettingsView:
        """Change some of the caller's settings. The next run uses them."""
        user_id = await caller(request)
        expected = None if if_match is None else await _expected(hf, user_id, if_match)
        await hf.settings.change(patch.changes(), user_id, expected_version=expected)
        if patch.clear_openai_oauth:
            await hf.credentials.disconnect(OPENAI, user_id)
        return await view(response, user_id)

    return router


async def _expected(hf: Holdfast, user_id: str, if_match: str) -> int:
    """The version that may be changed: the one that stands there now, if it is the one that was seen."""
    settings, grant = await hf.settings.get(user_id), await hf.credentials.get(OPENAI, user_id)
    seen = {each.strip() for each in if_match.split(",")}
    if not seen & {"*", _etag(settings, grant)}:
        raise Conflict("the settings have changed since; read them again", code="version_changed")
    return settings.version


def _etag(settings: UserSettings, grant: Grant | None) -> str:
    return f'"s{settings.version}-g{0 if grant is None else grant.version}"'


def _shown(settings: UserSettings, grant: Grant | None) -> SettingsView:
    connected = grant is not None and grant.status == "connected"
    changed = [each for each in (settings.updated_at, None if grant is None else grant.updated_at) if each is not None]
    return SettingsView(
        provider=settings.provider,
        model=settings.model,
        reasoning=settings.reasoning,
        openai_api_key_set="openai" in settings.previews,
        openai_api_key_preview=settings.previews.get("openai"),
        openai_oauth_connected=connected,
        openai_oauth_reauth_required=grant is not None and not connected,
        openai_oauth_expires_at=_ms(None if grant is None else grant.expires_at),
        openai_oauth_account_id=None if grant is None else grant.account_id,
        anthropic_api_key_set="anthropic" in settings.previews,
        anthropic_api_key_preview=settings.previews.get("anthropic"),
        updated_at=_ms(max(changed, default=None)),
    )


def _ms(moment: datetime | None) -> int | None:
    return None if moment is None else to_us(moment) // 1_000
