"""`advance` and `worker` run a program's own clogs, wherever they are."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from holdfast import Holdfast
from tests.cli.conftest import Office

PROGRAM = """
from holdfast import Clog, Done, Holdfast

echo = Clog("echo")

@echo.on_advance
async def advance(input, ctx):
    return Done(input)

hf = Holdfast({url!r})
hf.register(echo)
number = 7

def make():
    return hf
"""


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a program in it, its module under a name that no other test has used."""
    module = f"program_{tmp_path.name}".replace("-", "_")
    (tmp_path / f"{module}.py").write_text(PROGRAM.format(url=str(tmp_path / "work.db")))
    monkeypatch.chdir(tmp_path)
    return tmp_path / f"{module}.py"


@pytest.fixture
def bureau(place: Path) -> Office:
    bureau = Office(str(place.parent / "work.db"))
    assert bureau.ask("migrate").code == 0
    return bureau


@pytest.mark.clause("O-25", "O-26")
def test_advance_gives_what_is_due_a_tick(bureau: Office, place: Path) -> None:
    run = bureau.do(lambda hf: hf.create_run(session_id="s", clog_id="echo", input=1))

    answer = bureau.ask("advance", f"{place.stem}:hf", "--json")

    assert answer.code == 0
    assert answer.json["advanced"] == 1
    assert [(each["run_id"], each["outcome"]) for each in answer.json["results"]] == [(run.run_id, "done")]
    assert "0 advanced" in bureau.ask("advance", f"{place.stem}:make").out


def test_a_program_that_is_not_there_is_refused_in_words(bureau: Office, place: Path) -> None:
    for name, words in {
        "nowhere:hf": "cannot be imported",
        place.stem: f"{place.stem}:hf",
        f"{place.stem}:nobody": "has no nobody",
        f"{place.stem}:number": "not a Holdfast",
    }.items():
        answer = bureau.ask("advance", name)
        assert (answer.code, words in answer.err) == (2, True), answer
    answer = bureau.ask("worker")
    assert (answer.code, "HOLDFAST_APP" in answer.err) == (2, True)


@pytest.mark.clause("W-14")
def test_a_worker_works_until_it_is_told_to_stop(bureau: Office, place: Path) -> None:
    run = bureau.do(lambda hf: hf.create_run(session_id="s", clog_id="echo", input="hello"))
    command = [sys.executable, "-c", "from holdfast.cli import main; main()", "worker", f"{place.stem}:hf"]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True, cwd=place.parent, env={**os.environ}) as worker:
        try:
            events = bureau.do(lambda hf: _until_done(hf, run.run_id))
        finally:
            worker.send_signal(signal.SIGTERM)
            _, told = worker.communicate(timeout=30)

    assert events[-1] == "done"
    assert worker.returncode == 0
    assert "serves default" in told
    assert "has stopped after 1 ticks" in told


async def _until_done(hf: Holdfast, run_id: str) -> list[str]:
    async with asyncio.timeout(30):
        return [event.type async for event in hf.events(run_id, follow=True)]
