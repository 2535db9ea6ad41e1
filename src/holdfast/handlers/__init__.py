"""Clogs, and the context that a handler of theirs receives."""

from __future__ import annotations

from holdfast.handlers.clogs import Clog, Registry
from holdfast.handlers.context import BlockingContext, Context
from holdfast.handlers.ticks import BegunTick, ClaimedTick, ReceivedSignal, Tick

__all__ = ["BegunTick", "BlockingContext", "ClaimedTick", "Clog", "Context", "ReceivedSignal", "Registry", "Tick"]
