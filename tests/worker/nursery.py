"""A process that has everything imported and forks workers from itself, so that a storm can kill three in a second.

It also kills and reaps them. A process that has ended keeps its number until it is reaped here, so a signal can never
reach a stranger.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from types import TracebackType
from typing import Any, Self

ROOT = Path(__file__).parents[2]


class Nursery:
    """The mother process, and the numbers of its children that were not reaped yet."""

    def __init__(self, module: str = "tests.worker.programs") -> None:
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT / "src"), str(ROOT), *sys.path])}
        command = [sys.executable, "-m", module]
        self._mother = subprocess.Popen(
            command, cwd=ROOT, env=environment, text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )
        self.children: list[int] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: type[BaseException] | BaseException | TracebackType | None) -> None:
        self.end_all()
        self._mother.stdin.close()  # type: ignore[union-attr]
        self._mother.wait(30)
        self._mother.stdout.close()  # type: ignore[union-attr]

    def start(self, role: str, **given: Any) -> int:
        """A new child in this role; its number."""
        pid = int(self._ask("start", role, given))
        self.children.append(pid)
        return pid

    def send(self, pid: int, signal: int) -> None:
        self._ask("send", pid, signal)

    def wait(self, pid: int, within_s: float = 60.0) -> int:
        """How it ended: its exit code, or the negative number of the signal that ended it."""
        code = self.ended(pid, within_s)
        assert code is not None, f"process {pid} did not end within {within_s:.0f} s"
        return code

    def ended(self, pid: int, within_s: float = 0.0) -> int | None:
        """The same, or None if it lives on."""
        code: int | None = self._ask("wait", pid, within_s)
        if code is not None:
            self.children.remove(pid)
        return code

    def kill(self, pid: int) -> None:
        self.send(pid, 9)
        self.wait(pid)

    def end_all(self) -> None:
        for pid in tuple(self.children):
            self.kill(pid)

    def _ask(self, *question: Any) -> Any:
        assert self._mother.stdin is not None
        assert self._mother.stdout is not None
        self._mother.stdin.write(json.dumps(question) + "\n")
        self._mother.stdin.flush()
        return json.loads(self._mother.stdout.readline())
