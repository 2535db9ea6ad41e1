"""Programs that some tests need and no package index carries: found, installed, or named.

    python -m tools.system

On Debian as root they are installed. Elsewhere they are named: tests that need them are skipped on a desk and fail in
CI (where `CI` is set), so that nothing goes missing quietly.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys

PROGRAMS = {"strace": "strace", "pgbouncer": "pgbouncer", "nginx": "nginx-light", "haproxy": "haproxy"}
"""Program → Debian package."""


def missing() -> list[str]:
    """Packages of the programs that are not on the path (sbin included, where Debian puts servers)."""
    path = f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin"
    return sorted(package for program, package in PROGRAMS.items() if shutil.which(program, path=path) is None)


def install(packages: list[str]) -> None:
    # Services must not start: the tests bring up their own.
    environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive", "RUNLEVEL": "1"}
    for command in (["apt-get", "update", "-qq"], ["apt-get", "install", "-y", "-qq", *packages]):
        subprocess.run(command, check=True, env=environment, stdout=subprocess.DEVNULL)


def main() -> int:
    wanted = missing()
    if not wanted:
        return 0
    if os.geteuid() == 0 and shutil.which("apt-get"):
        print(f"installing {', '.join(wanted)}")
        install(wanted)
        wanted = missing()
    if wanted:
        print(f"some crash tests need {', '.join(wanted)}: install them, for example with apt install", file=sys.stderr)
    return 1 if wanted and os.environ.get("CI") else 0


if __name__ == "__main__":
    sys.exit(main())
