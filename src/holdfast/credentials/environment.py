"""What the environment says about secrets, providers and our own address; refused in words where it must not be so."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from ipaddress import ip_address
from pathlib import Path
from typing import Literal
from urllib.parse import SplitResult, parse_qsl, urlsplit

import msgspec

from holdfast.errors import Misconfigured, NotFound
from holdfast.outbound import Gate

Environment = Mapping[str, str]
Profile = Literal["dev-local", "prod"]
LOOPBACK = ("127.0.0.0/8", "::1/128")
LOCAL_URL = "http://127.0.0.1:8787"
LOGIN_PROVIDER = "oidc"
_ISSUER = re.compile(r"HOLDFAST_OAUTH_([A-Z][A-Z0-9_]{0,31})_ISSUER")


def told(name: str, environment: Environment | None = None) -> str | None:
    """The value of a variable, or what stands in the file that `<name>_FILE` names; None if neither says anything."""
    known = os.environ if environment is None else environment
    value, path = known.get(name), known.get(f"{name}_FILE")
    if value and path:
        raise Misconfigured(f"{name} and {name}_FILE are both set; keep one of them")
    if not path:
        return value.strip() if value and value.strip() else None
    try:
        return Path(path).read_text(encoding="utf-8").strip() or None
    except (OSError, UnicodeDecodeError) as error:
        raise Misconfigured(f"{name}_FILE names {path}, which cannot be read: {error}") from error


def profile_of(environment: Environment | None = None) -> Profile:
    """How strict to be: `dev-local` unless HOLDFAST_PROFILE says `prod`."""
    profile = told("HOLDFAST_PROFILE", environment) or "dev-local"
    if profile not in ("dev-local", "prod"):
        raise Misconfigured(f"HOLDFAST_PROFILE is {profile!r}; use dev-local or prod")
    return "prod" if profile == "prod" else "dev-local"


def gate_of(environment: Environment | None = None) -> Gate:
    """Whom we may ask: public places and networks in HOLDFAST_OUTBOUND_ALLOW; on a desk this machine too."""
    named = (told("HOLDFAST_OUTBOUND_ALLOW", environment) or "").split(",")
    here = LOOPBACK if profile_of(environment) == "dev-local" else ()
    return Gate((*(each.strip() for each in named if each.strip()), *here))


class Site(msgspec.Struct, frozen=True, kw_only=True):
    """Where we are and how strict we must be. The address is told, never taken from a request."""

    profile: Profile
    url: str

    @classmethod
    def of_environment(cls, environment: Environment | None = None, *, url: str | None = None) -> Site:
        """Raises `Misconfigured` for a profile nobody knows and an address that the profile does not allow."""
        profile = profile_of(environment)
        chosen = told("HOLDFAST_PUBLIC_URL", environment) or url
        if profile == "prod" and chosen is None:
            raise Misconfigured(
                "the prod profile needs HOLDFAST_PUBLIC_URL, the https address that browsers use",
                code="public_url_required",
            )
        return cls(profile=profile, url=_checked(chosen or LOCAL_URL, strict=profile == "prod"))

    @property
    def is_secure(self) -> bool:
        return self.url.startswith("https://")

    @property
    def origin(self) -> str:
        """What a browser calls us: scheme, host and port."""
        parts = urlsplit(self.url)
        return f"{parts.scheme}://{parts.netloc}"

    def cookie(self, name: str) -> str:
        """The cookie's full name. With the prefix no other host can set it; browsers take that over https only."""
        return f"__Host-{name}" if self.is_secure else name


class Provider(msgspec.Struct, frozen=True, kw_only=True):
    """An OAuth provider as the environment describes it."""

    name: str
    issuer: str
    client_id: str
    client_secret: str | None
    scopes: str
    params: dict[str, str] = {}
    """What its authorization requests need beyond the standard, such as `prompt=consent`."""

    def __repr__(self) -> str:
        return f"Provider({self.name!r}, issuer={self.issuer!r})"


def providers(environment: Environment | None = None) -> dict[str, Provider]:
    """Every provider that has an issuer, by its name in lower case."""
    known = os.environ if environment is None else environment
    found = (match[1] for match in map(_ISSUER.fullmatch, sorted(known)) if match and known[match[0]].strip())
    return {name.lower(): _provider(name, known) for name in found}


def known_provider(name: str, environment: Environment | None = None) -> Provider:
    """The provider of this name, or `NotFound`."""
    found = providers(environment).get(name)
    if found is None:
        raise NotFound(
            f"no provider {name!r} is configured; set HOLDFAST_OAUTH_{name.upper()}_ISSUER and _CLIENT_ID"
            if _ISSUER.fullmatch(f"HOLDFAST_OAUTH_{name.upper()}_ISSUER")
            else "there is no such provider",
            code="unknown_provider",
        )
    return found


def login_provider(environment: Environment | None = None) -> Provider:
    """Who tells us who people are: the provider that HOLDFAST_LOGIN_PROVIDER names, else the one called `oidc`."""
    return known_provider((told("HOLDFAST_LOGIN_PROVIDER", environment) or LOGIN_PROVIDER).lower(), environment)


def _provider(name: str, environment: Environment) -> Provider:
    prefix = f"HOLDFAST_OAUTH_{name}"
    client_id = told(f"{prefix}_CLIENT_ID", environment)
    if client_id is None:
        raise Misconfigured(f"{prefix}_ISSUER is set and {prefix}_CLIENT_ID is not")
    return Provider(
        name=name.lower(),
        issuer=environment[f"{prefix}_ISSUER"].strip(),
        client_id=client_id,
        client_secret=told(f"{prefix}_CLIENT_SECRET", environment),
        scopes=told(f"{prefix}_SCOPES", environment) or "openid",
        params=dict(parse_qsl(told(f"{prefix}_PARAMS", environment) or "")),
    )


def _checked(url: str, *, strict: bool) -> str:
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.hostname or parts.query or parts.fragment or "@" in url:
        raise Misconfigured("HOLDFAST_PUBLIC_URL must be an address such as https://agents.example.org")
    if strict and (parts.scheme != "https" or _is_local(parts)):
        text = f"HOLDFAST_PUBLIC_URL is {url}; the prod profile takes public https addresses only"
        raise Misconfigured(text, code="public_url_required")
    return url.rstrip("/")


def _is_local(parts: SplitResult) -> bool:
    host = (parts.hostname or "").rstrip(".").lower()
    if host == "localhost" or host.endswith(".localhost"):
        return True
    try:
        return not Gate().is_open(ip_address(host))
    except ValueError:
        return False
