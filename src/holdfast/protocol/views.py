"""One set of statuses, and how two of its audiences name them. The eight words themselves are the contract."""

from __future__ import annotations

from holdfast.protocol.state import Status

WEB: dict[Status, str] = {
    "pending": "queued",
    "waiting": "queued",
    "active": "running",
    "paused": "running",
    "idle": "completed",
    "done": "completed",
    "failed": "failed",
    "cancelled": "cancelled",
}
"""What a browser sees beside the exact word. A run at rest counts as completed, and can go on."""

OCEAN: dict[Status, str] = {
    "idle": "idle",
    "pending": "pending",
    "active": "active",
    "waiting": "waiting",
    "paused": "waiting",
    "done": "done",
    "failed": "failed",
    "cancelled": "failed",
}
"""The six words of a world without people who pause and cancel."""
