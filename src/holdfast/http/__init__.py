"""The server: runs, sessions and event streams over HTTP, for any ASGI host or by `holdfast serve`."""

from __future__ import annotations

from holdfast.http.app import create_app
from holdfast.http.callers import Caller
from holdfast.http.limits import Limits

__all__ = ["Caller", "Limits", "create_app"]
