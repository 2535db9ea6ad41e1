"""Programs that fault tests need from the system: found, or asked for in words."""

from __future__ import annotations

import os
import shutil

import pytest

from tools.system import PROGRAMS


def require(name: str) -> str:
    """The path of a program. Where it is missing the test fails in CI, and is skipped on a desk."""
    found = shutil.which(name, path=f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin")
    if found is not None:
        return found
    text = f"this test needs {name}: apt-get install {PROGRAMS.get(name, name)}"
    if os.environ.get("CI"):
        pytest.fail(text)
    pytest.skip(text)
