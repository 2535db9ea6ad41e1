"""Environments of the peers: made once, at pinned versions, below `.bench`. A peer that cannot be had says why."""

from __future__ import annotations

import subprocess
import sys
import venv
from pathlib import Path

from benchmarks.processes import Broken
from benchmarks.sides import Side

INSTALL_S = 600


class Environments:
    """A virtual environment for each side that brings packages; for the others, our own."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def python(self, side: Side) -> Path:
        if not side.packages:
            return Path(sys.executable)
        return self._home(side) / "bin" / "python"

    def install(self, side: Side) -> None:
        """Make what the side needs, unless it is there; `Broken` with the installer's last word if that fails."""
        wanted = "\n".join((*side.packages, *side.npm))
        mark = self._home(side) / ".installed"
        if not wanted or (mark.exists() and mark.read_text() == wanted):
            return
        venv.create(self._home(side), clear=True)
        # Our own pip serves all of them: to give each its own takes longer than what it installs.
        pip = [sys.executable, "-m", "pip", "--python", str(self.python(side))]
        self._run(side, [*pip, "install", "-q", "--disable-pip-version-check", *side.packages])
        if side.npm:
            self.npm(side).mkdir(exist_ok=True)
            self._run(side, ["npm", "install", "--no-audit", "--no-fund", "--prefix", str(self.npm(side)), *side.npm])
        mark.write_text(wanted)

    def _home(self, side: Side) -> Path:
        return self._folder / f"venv-{side.module.rpartition('.')[2]}"

    def npm(self, side: Side) -> Path:
        return self._folder / f"npm-{side.module.rpartition('.')[2]}"

    def _run(self, side: Side, command: list[str]) -> None:
        try:
            subprocess.run(command, check=True, capture_output=True, text=True, timeout=INSTALL_S)
        except FileNotFoundError:
            raise Broken(f"{side.name}: {command[0]} is not on this machine") from None
        except subprocess.TimeoutExpired:
            raise Broken(f"{side.name}: not installed within {INSTALL_S} s") from None
        except subprocess.CalledProcessError as error:
            lines = [line for line in str(error.stderr).splitlines() if line.strip()] or ["no reason given"]
            raise Broken(f"{side.name}: cannot be installed: {lines[-1]}") from None
