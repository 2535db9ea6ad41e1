"""The outbox: what must reach the outside, delivered at least once, with a key that tells repeats.

Nothing here decides anything about a run. A row is written with the commit of the tick that asked for it; what becomes
of it is written in its row and its audits.
"""

from __future__ import annotations

from holdfast.errors import DeadLetter, DeliveryFailed
from holdfast.outbox.backoff import calculate_backoff_with_jitter
from holdfast.outbox.outbox import Outbox
from holdfast.outbox.records import RESULT_CODES, Audit, OutboxReport, OutboxRow, ReconcileReport
from holdfast.outbox.relay import OutboxRelay
from holdfast.outbox.sinks import delivery_key
from holdfast.outbox.webhooks import Webhook, verify_signature

__all__ = [
    "RESULT_CODES",
    "Audit",
    "DeadLetter",
    "DeliveryFailed",
    "Outbox",
    "OutboxRelay",
    "OutboxReport",
    "OutboxRow",
    "ReconcileReport",
    "Webhook",
    "calculate_backoff_with_jitter",
    "delivery_key",
    "verify_signature",
]
