"""A workload under `strace`: every file operation it made, in order; or faults injected into its system calls."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

from tests.crash.programs import require

ROOT = Path(__file__).parents[2]
CALLS = "openat,pwrite64,write,ftruncate,fdatasync,fsync,unlink"
# Longer than any single write, so that no data is cut short in the log.
STRING_MAX = 1 << 18
DEADLINE_S = 60


class Write(NamedTuple):
    path: str
    offset: int
    data: bytes


class Truncate(NamedTuple):
    path: str
    size: int


class Create(NamedTuple):
    path: str


class Unlink(NamedTuple):
    path: str


class Sync(NamedTuple):
    """Everything done to this file or folder before operation number `began` is on disk."""

    path: str
    began: int


class Line(NamedTuple):
    """A line that the workload wrote for its watcher."""

    text: str


Operation = Write | Truncate | Create | Unlink | Sync | Line


class Result(NamedTuple):
    """How a workload ended and what it said."""

    exit: int
    lines: list[str]

    def acks(self) -> set[tuple[str, int]]:
        return {ack for line in self.lines if (ack := acked(line))}

    def said(self, word: str) -> list[str]:
        """The rest of every line that begins with the word."""
        return [line.partition(" ")[2] for line in self.lines if line.startswith(f"{word} ")]


def acked(line: str) -> tuple[str, int] | None:
    """The (thread, revision) that a line promises."""
    word, _, rest = line.partition(" ")
    thread, _, rev = rest.rpartition(" ")
    return (thread, int(rev)) if word == "ack" else None


class Workload(NamedTuple):
    """How long the workload is, and what is different about its database."""

    sessions: int = 1
    rounds: int = 2
    pragmas: str = ""
    patience_s: float | None = None

    def command(self, folder: Path) -> list[str]:
        places = [str(folder / "db"), str(folder / "acks")]
        return [sys.executable, "-m", "tests.crash.workload", *places, str(self.sessions), str(self.rounds)]

    def environment(self) -> dict[str, str]:
        patience = {} if self.patience_s is None else {"CRASH_PATIENCE_S": str(self.patience_s)}
        return {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "CRASH_PRAGMAS": self.pragmas, **patience}


def strike(folder: Path, workload: Workload, fault: str) -> Result:
    """The workload on `folder/db`, struck by one of strace's faults: `call:error=…:when=…` or `call:signal=…`."""
    return _run(folder, workload, ["-o", os.devnull, "-e", f"inject={fault}"])


def record(folder: Path, workload: Workload) -> list[Operation]:
    """Every operation of the undisturbed workload on the files in `folder`."""
    log = folder / "strace.log"
    options = ["--seccomp-bpf", "-y", "-xx", "-s", str(STRING_MAX), "-o", str(log), "-e", f"trace={CALLS}"]
    result = _run(folder, workload, options)
    assert result.exit == 0, f"the workload ended with {result.exit}: {result.lines[-3:]}"
    with log.open(encoding="ascii") as lines:
        return list(_Parser(folder).operations(lines))


def _run(folder: Path, workload: Workload, options: list[str]) -> Result:
    command = [require("strace"), "-f", "-q", "-e", "signal=none", *options, *workload.command(folder)]
    with subprocess.Popen(command, cwd=ROOT, env=workload.environment(), start_new_session=True) as process:
        try:
            process.wait(DEADLINE_S)
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
    acks = folder / "acks"
    lines = acks.read_text(encoding="ascii").splitlines() if acks.exists() else []
    return Result(process.returncode, lines)


_CALL = re.compile(r"(\d+) +(\w+)\((.*)")
_RESUMED = re.compile(r"(\d+) +<\.\.\. (\w+) resumed>.*= (-?\d+)")
_FILE = re.compile(r"\d+<([^>]*)>(.*)")
_TEXT = re.compile(r'"((?:\\x[0-9a-f]{2})*)"')
_NUMBERS = re.compile(r", (\d+)")


class _Parser:
    """The lines of a log as operations. A write counts from its beginning, a sync from its end."""

    def __init__(self, folder: Path) -> None:
        self._folder = str(folder)
        self._count = 0
        self._syncs: dict[str, Sync] = {}

    def operations(self, lines: Iterable[str]) -> Iterator[Operation]:
        for line in lines:
            operation = self._operation(line)
            if operation is not None:
                self._count += 1
                yield operation

    def _operation(self, line: str) -> Operation | None:
        resumed = _RESUMED.match(line)
        if resumed:
            return self._resumed(resumed)
        call = _CALL.match(line)
        if call is None or " = -1 " in line[-80:]:
            return None
        task, name, arguments = call.groups()
        if name in ("openat", "unlink"):
            return self._of_name(name, arguments)
        return self._of_file(task, name, arguments, unfinished="<unfinished" in line[-40:])

    def _resumed(self, resumed: re.Match[str]) -> Operation | None:
        task, name, result = resumed.groups()
        sync = self._syncs.pop(task, None)
        return sync if name in ("fsync", "fdatasync") and result == "0" else None

    def _of_name(self, name: str, arguments: str) -> Operation | None:
        text = _TEXT.search(arguments)
        path = _plain(text[1]) if text else ""
        if not self._watched(path):
            return None
        if name == "unlink":
            return Unlink(path)
        return Create(path) if "O_CREAT" in arguments else None

    def _of_file(self, task: str, name: str, arguments: str, *, unfinished: bool) -> Operation | None:
        file = _FILE.match(arguments)
        path = _plain(file[1]) if file else ""
        if file is None or not self._watched(path):
            return None
        if name in ("fsync", "fdatasync"):
            return self._sync(task, Sync(path, self._count), unfinished=unfinished)
        if name == "ftruncate":
            return Truncate(path, int(_numbers(file[2])[0]))
        return self._write(name, path, file[2])

    def _sync(self, task: str, sync: Sync, *, unfinished: bool) -> Sync | None:
        if not unfinished:
            return sync
        self._syncs[task] = sync
        return None

    def _write(self, name: str, path: str, rest: str) -> Operation | None:
        text = _TEXT.search(rest)
        assert text is not None, f"unreadable write to {path}"
        data = bytes.fromhex(text[1].replace("\\x", ""))
        size, *offset = _numbers(rest[text.end() :])
        assert size == len(data), f"the log holds {len(data)} of {size} bytes written to {path}"
        if path == f"{self._folder}/acks":
            return Line(data.decode().strip())
        return Write(path, offset[0], data) if name == "pwrite64" else None

    def _watched(self, path: str) -> bool:
        return path == self._folder or path.startswith(f"{self._folder}/")


def _plain(text: str) -> str:
    return bytes.fromhex(text.replace("\\x", "")).decode() if text.startswith("\\x") else text


def _numbers(text: str) -> list[int]:
    return [int(number) for number in _NUMBERS.findall(text)]
