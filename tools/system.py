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
from pathlib import Path

PROGRAMS = {
    "strace": "strace",
    "pgbouncer": "pgbouncer",
    "nginx": "nginx-light",
    "haproxy": "haproxy",
    "promtool": "prometheus",
    "npm": "npm",
    "docker-compose": "docker-compose",
    # The page in a real browser; nothing else needs these.
    "chromium": "chromium",
    "chromedriver": "chromium-driver",
}
"""Program → Debian package."""
PROVIDER = Path(__file__).parents[1] / "tests/http_oauth/provider"
"""The OpenID provider that tests talk to, and the lock file with its packages."""


def missing() -> list[str]:
    """Packages of the programs that are not on the path (sbin included, where Debian puts servers)."""
    path = f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin"
    return sorted(package for program, package in PROGRAMS.items() if shutil.which(program, path=path) is None)


def install(packages: list[str]) -> None:
    # Services must not start: the tests bring up their own.
    environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive", "RUNLEVEL": "1"}
    for command in (
        ["apt-get", "update", "-qq"],
        ["apt-get", "install", "-y", "-qq", "--no-install-recommends", *packages],
    ):
        subprocess.run(command, check=True, env=environment, stdout=subprocess.DEVNULL)


def install_provider() -> None:
    """The packages of the lock file, unless they are there."""
    wanted, found = PROVIDER / "package-lock.json", PROVIDER / "node_modules/.package-lock.json"
    is_there = found.exists() and found.stat().st_mtime >= wanted.stat().st_mtime
    if shutil.which("npm") and not is_there:
        print("installing the test provider's packages")
        command = ["npm", "ci", "--no-audit", "--no-fund", "--silent"]
        subprocess.run(command, check=True, cwd=PROVIDER, stdout=subprocess.DEVNULL)


def main() -> int:
    wanted = missing()
    if wanted and os.geteuid() == 0 and shutil.which("apt-get"):
        print(f"installing {', '.join(wanted)}")
        install(wanted)
        wanted = missing()
    install_provider()
    if wanted:
        print(f"some tests need {', '.join(wanted)}: install them, for example with apt install", file=sys.stderr)
    return 1 if wanted and os.environ.get("CI") else 0


if __name__ == "__main__":
    sys.exit(main())
