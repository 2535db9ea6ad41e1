"""The one door where the redaction policy meets what is about to be journalled.

Of a command, only what people look at is changed: metadata, errors, reasons and comments. Inputs, storage, results,
outputs and payloads are for programs, and pass as they are.
"""

from __future__ import annotations

from msgspec.structs import replace

from holdfast.protocol import commands
from holdfast.protocol.commands import ChildStart, Command, Staged
from holdfast.protocol.outcomes import Fail, Outcome, Retry
from holdfast.protocol.values import canonical
from holdfast.redaction import Redaction


def redacted(command: Command, redaction: Redaction, *, max_bytes: int) -> Command:
    """The command without secrets where people would see them. What is too large to be kept is left for its refusal."""
    match command:
        case commands.Settle():
            outcome, staged = _outcome(command.outcome, redaction), _staged(command.staged, redaction)
            same = outcome is command.outcome and staged is command.staged
            return command if same else replace(command, outcome=outcome, staged=staged)
        case commands.RecordStep() | commands.CallEndpoint():
            staged, error = _staged(command.staged, redaction), _error(command.error, redaction)
            same = staged is command.staged and error is command.error
            return command if same else replace(command, staged=staged, error=error)
        case commands.Create() if command.fact.metadata:
            if len(canonical(command.fact.metadata)) > max_bytes:
                return command
            fact = replace(command.fact, metadata=redaction.masked(command.fact.metadata))
            return replace(command, fact=fact)
        case commands.Pause() | commands.OpenBoundary() | commands.StartChild() if command.metadata:
            if len(canonical(command.metadata)) > max_bytes:
                return command
            return replace(command, metadata=redaction.masked(command.metadata))
        case commands.Cancel() if command.reason:
            return replace(command, reason=redaction.hidden(command.reason))
        case commands.Resolve() if command.comment:
            return replace(command, comment=redaction.hidden(command.comment))
        case _:
            return command


def _outcome(outcome: Outcome, redaction: Redaction) -> Outcome:
    if isinstance(outcome, Retry | Fail) and isinstance(outcome.error, str):
        error = redaction.scrubbed(outcome.error)
        return outcome if error == outcome.error else replace(outcome, error=error)
    return outcome


def _error(error: str | None, redaction: Redaction) -> str | None:
    return error if error is None else redaction.scrubbed(error)


def _staged(staged: Staged, redaction: Redaction) -> Staged:
    if not staged.children or not any(_tells(child) for child in staged.children):
        return staged
    return replace(staged, children=tuple(_child(child, redaction) for child in staged.children))


def _tells(child: ChildStart) -> bool:
    return bool(child.metadata or child.start.get("metadata"))


def _child(child: ChildStart, redaction: Redaction) -> ChildStart:
    """What the child is created with is metadata of its own."""
    start = child.start
    if start.get("metadata"):
        start = {**start, "metadata": redaction.masked(start["metadata"])}
    return replace(child, start=start, metadata=redaction.masked(child.metadata))
