"""Secrets and who is calling: sealed grants and keys, API keys, settings, authorizations, browser sessions.

Nothing here decides anything about a run, and nothing here is written in clear. Its libraries come with the `server`
extra and are asked for when they are first needed.
"""

from __future__ import annotations

from holdfast.credentials.api_keys import ApiKey, ApiKeys, NewApiKey
from holdfast.credentials.browser_sessions import BrowserSessions
from holdfast.credentials.credentials import Credentials, Office
from holdfast.credentials.environment import Provider, Site, login_provider, providers
from holdfast.credentials.grants import Grant, Grants, Tokens
from holdfast.credentials.handshakes import Begun, Ended, Handshakes
from holdfast.credentials.keyring import KeyRing, new_key
from holdfast.credentials.settings import Settings, UserSettings
from holdfast.credentials.vault import Rotation, Vault

__all__ = [
    "ApiKey",
    "ApiKeys",
    "Begun",
    "BrowserSessions",
    "Credentials",
    "Ended",
    "Grant",
    "Grants",
    "Handshakes",
    "KeyRing",
    "NewApiKey",
    "Office",
    "Provider",
    "Rotation",
    "Settings",
    "Site",
    "Tokens",
    "UserSettings",
    "Vault",
    "login_provider",
    "new_key",
    "providers",
]
