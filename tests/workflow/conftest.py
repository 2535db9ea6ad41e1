"""Workflows on a runtime in this process: memory, a file, a real Postgres. After every test journal and rows agree."""

from __future__ import annotations

from tests.runtime.conftest import another, configuration, hf

__all__ = ["another", "configuration", "hf"]
