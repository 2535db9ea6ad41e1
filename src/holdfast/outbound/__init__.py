"""Requests to the outside: which addresses may be reached, and the one client that asks before it connects."""

from __future__ import annotations

from holdfast.outbound.addresses import Gate, Place

__all__ = ["Gate", "Place"]
