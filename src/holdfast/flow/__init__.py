"""Durable functions: code with named steps that survives its process, because it can be run again from its memory."""

from __future__ import annotations

from holdfast.flow.answers import Decision, StepFailed
from holdfast.flow.checking import FlowMismatch, check_flow
from holdfast.flow.context import FlowContext
from holdfast.flow.definition import Flow, Flows

__all__ = ["Decision", "Flow", "FlowContext", "FlowMismatch", "Flows", "StepFailed", "check_flow"]
