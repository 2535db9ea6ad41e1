"""What must be true of the place a SQLite file lives in, and the fair lock between processes that share it."""

from __future__ import annotations

import fcntl
import os
import re
from pathlib import Path

from holdfast import ambient
from holdfast.errors import DatabaseError
from holdfast.store.types import Busy

_REMOTE = ("nfs", "cifs", "smb", "9p", "fuse", "afs", "ceph", "gluster", "lustre", "vboxsf", "davfs")
_MOUNTS = Path("/proc/mounts")
_ESCAPED = re.compile(r"\\([0-7]{3})")


def check_place(path: Path, mounts: Path = _MOUNTS) -> None:
    """Refuse a file that SQLite cannot keep safe here, in words."""
    folder = path.parent
    if not os.path.isdir(folder):
        raise DatabaseError(
            f"the folder {folder} does not exist or cannot be reached; create it first", code="database_unusable"
        )
    if os.path.isdir(path):
        raise DatabaseError(f"{path} is a folder; name a file in it", code="database_unusable")
    target = path if os.path.exists(path) else folder
    if not os.access(target, os.R_OK | os.W_OK) or not os.access(folder, os.W_OK):
        raise DatabaseError(f"no permission to write {target}; SQLite also needs its folder", code="database_unusable")
    kind = filesystem(folder, mounts)
    if kind.startswith(_REMOTE):
        raise DatabaseError(
            f"{folder} is on a network filesystem ({kind}); WAL corrupts there. Use a local disk, or Postgres",
            code="network_filesystem",
        )


def filesystem(folder: Path, mounts: Path = _MOUNTS) -> str:
    """The type of the filesystem that holds the folder, or '' where the kernel does not say."""
    if not mounts.exists():
        return ""
    where = os.path.realpath(folder)
    best, kind = "", ""
    for line in mounts.read_text().splitlines():
        _, point, fstype, *_ = line.split()
        # The kernel writes spaces and the like as octal escapes.
        point = _ESCAPED.sub(lambda found: chr(int(found[1], 8)), point)
        inside = where == point or where.startswith(point.rstrip("/") + "/")
        if inside and len(point) >= len(best):
            best, kind = point, fstype
    return kind


class Turnstile:
    """Two file locks that make writers take turns: who waits for *write* holds *turn*, so nobody overtakes.

    With SQLite's own busy handler a busy process starves the others for seconds. Killed holders let go of both.
    """

    def __init__(self, path: Path, *, timeout_s: float) -> None:
        self._turn = os.open(f"{path}-turn", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        self._write = os.open(f"{path}-write", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        self._timeout_s = timeout_s

    def acquire(self) -> None:
        deadline = ambient.monotonic() + self._timeout_s
        self._lock(self._turn, deadline)
        try:
            self._lock(self._write, deadline)
        finally:
            fcntl.flock(self._turn, fcntl.LOCK_UN)

    def release(self) -> None:
        fcntl.flock(self._write, fcntl.LOCK_UN)

    def close(self) -> None:
        os.close(self._turn)
        os.close(self._write)

    def _lock(self, descriptor: int, deadline: float) -> None:
        while True:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                return
            except BlockingIOError:
                if ambient.monotonic() >= deadline:
                    raise Busy("another process has been writing this database for too long", timed_out=True) from None
                ambient.pause(0.0002)
