"""A database with a few runs in it, and the command line to look after them."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import pytest
from typer.testing import CliRunner

from holdfast import Done, Holdfast
from holdfast.cli import app

T = TypeVar("T")


class Answer(NamedTuple):
    """What a command left behind."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        return json.loads(self.out)

    @property
    def lines(self) -> list[Any]:
        return [json.loads(line) for line in self.out.splitlines()]


class Office:
    """A database by its URL: `ask` gives a command, `do` works on it as a program does."""

    def __init__(self, url: str, schema: str = "holdfast") -> None:
        self.url = url
        self.schema = schema

    def ask(self, *words: str) -> Answer:
        result = CliRunner().invoke(app, [*words], env={**self.environment, "COLUMNS": "200"})
        assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
        return Answer(result.exit_code, result.stdout, result.stderr)

    @property
    def environment(self) -> dict[str, str]:
        return {"HOLDFAST_DATABASE_URL": self.url, "HOLDFAST_SCHEMA": self.schema}

    def do(self, work: Callable[[Holdfast], Awaitable[T]]) -> T:
        async def opened() -> T:
            async with Holdfast(self.url, schema=self.schema) as hf:
                return await work(hf)

        return asyncio.run(opened())


async def furnish(hf: Holdfast) -> None:
    """A run that is done, one that is worked on, one that asks for approval, one that rests."""
    await hf.create_run(run_id="done", session_id="s1", clog_id="chat", input={"say": "hi"})
    (claim,) = await hf.claim_next(owner="worker-1")
    await hf.emit(claim, "text", "hello \x1b[31m[red]world[/red]")
    await hf.complete(claim, Done({"answer": 42}))
    await hf.create_run(run_id="held", session_id="s1", clog_id="chat", input=1)
    await hf.claim_next(owner="worker-2", lease_ms=600_000)
    await hf.create_run(run_id="asked", session_id="s2", clog_id="mail", input=1)
    await hf.pause("asked", "go-live", kind="approval", metadata={"risk": "low"})
    await hf.create_run(run_id="idle", session_id="s2", clog_id="mail")


@pytest.fixture
def bare(tmp_path: Path) -> Office:
    """An office without a database."""
    return Office(str(tmp_path / "holdfast.db"))


@pytest.fixture
def office(bare: Office) -> Office:
    bare.do(furnish)
    return bare
