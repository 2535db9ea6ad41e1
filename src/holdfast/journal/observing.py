"""`Observer`: whoever counts what one process does. Nobody does unless a runtime is told to."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

from holdfast.journal.planner import Executed
from holdfast.protocol.commands import Command


class Slotted(Protocol):
    """A worker, to those who count."""

    @property
    def slots(self) -> Mapping[str, int]: ...


class Observer(Protocol):
    """Told after the fact, where it happened: it must neither wait nor raise, because ticks wait for it.

    All but `beat` are told in the runtime's own loop, `beat` in the thread of the pulse. What a process did just before
    it was killed may be on disk and told to nobody.
    """

    def executed(self, command: Command, executed: Executed) -> None:
        """A command was carried out or refused; what it wrote is on disk."""

    def created(self, count: int) -> None:
        """So many runs were created together."""

    def claimed(self, waited_us: Sequence[int], *, taken_over: int, lost: int) -> None:
        """One look for work: how long each item that was taken had been due, how many leases that ran out were taken
        over, and how many of those became nobody's here."""

    def beat(self, late_s: float) -> None:
        """Claims were kept alive, the first of them so long after it was time."""

    def delivered(self, code: str) -> None:
        """A try to deliver a row of the outbox ended with this result code."""

    def began(self, worker: Slotted) -> None:
        """A worker takes work from now on."""

    def left(self, worker: Slotted) -> None:
        """The worker has stopped."""
