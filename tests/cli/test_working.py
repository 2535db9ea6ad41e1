"""`advance` and `worker` run a program's own clogs, wherever they are."""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from holdfast import Holdfast
from holdfast.cli.process import SWITCH_S, YOUNG
from holdfast.cli.working import sticky_ttl_s
from holdfast.redaction import HIDDEN
from tests.cli.conftest import Office

PROGRAM = """
import logging
from holdfast import Clog, Done, Holdfast

echo = Clog("echo")

@echo.on_advance
def advance(input, ctx):
    logging.getLogger("program").info("echo %s", "api_key=c4nary-of-the-program")
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
    with subprocess.Popen(_worker(place), stderr=subprocess.PIPE, text=True, cwd=place.parent) as worker:
        try:
            events = bureau.do(lambda hf: _until_done(hf, run.run_id))
        finally:
            worker.send_signal(signal.SIGTERM)
            _, told = worker.communicate(timeout=30)

    assert events[-1] == "done"
    assert worker.returncode == 0
    begun, said, ended = map(json.loads, told.splitlines())
    assert begun["message"] == f"{said['worker_id']} serves default"
    assert "has stopped after 1 ticks" in ended["message"]
    assert (said["logger"], said["level"], said["message"]) == ("program", "info", f"echo api_key={HIDDEN}")
    about = {"run_id": run.run_id, "session_id": "s", "user_id": "local", "attempt": 0}
    assert {name: said.get(name) for name in about} == about


TELLING = """
import gc, sys
from holdfast import Clog, Done, Holdfast

tell = Clog("tell")

@tell.on_advance
async def advance(input, ctx):
    return Done([gc.get_freeze_count(), gc.get_threshold()[0], round(sys.getswitchinterval(), 6)])

hf = Holdfast({url!r})
hf.register(tell)
"""


def test_a_worker_of_our_own_settles_in(bureau: Office, place: Path) -> None:
    place.write_text(TELLING.format(url=str(place.parent / "work.db")))
    run = bureau.do(lambda hf: hf.create_run(session_id="s", clog_id="tell", input=1))
    with subprocess.Popen(_worker(place), stderr=subprocess.DEVNULL, cwd=place.parent) as worker:
        try:
            bureau.do(lambda hf: _until_done(hf, run.run_id))
        finally:
            worker.send_signal(signal.SIGTERM)

    frozen, young, switch_s = bureau.do(lambda hf: hf.result(run.run_id))
    assert frozen > 1_000
    assert (young, switch_s) == (YOUNG, SWITCH_S)


def test_a_worker_before_a_person_writes_for_people(bureau: Office, place: Path) -> None:
    ours, theirs = os.openpty()
    with subprocess.Popen(_worker(place), stderr=theirs, cwd=place.parent) as worker, open(ours, "rb") as terminal:
        try:
            told = terminal.readline().decode()
        finally:
            worker.send_signal(signal.SIGTERM)
            os.close(theirs)

    assert re.fullmatch(r"[-0-9]{10} [:,0-9]{12} INFO holdfast worker-\S+ serves default\s+", told)


def _worker(place: Path) -> list[str]:
    return [sys.executable, "-c", "from holdfast.cli import main; main()", "worker", f"{place.stem}:hf"]


async def _until_done(hf: Holdfast, run_id: str) -> list[str]:
    async with asyncio.timeout(30):
        return [event.type async for event in hf.events(run_id, follow=True)]


@pytest.mark.clause("WB-12")
def test_a_lease_that_any_pause_would_cost_is_refused(bureau: Office, place: Path) -> None:
    answer = bureau.ask("worker", f"{place.stem}:hf", "--lease-ms", "9999")

    assert answer.code == 2
    assert "10000" in answer.err


@pytest.mark.clause("WB-13", "WB-17")
@pytest.mark.parametrize(
    ("given", "environment", "seconds"),
    [
        (None, None, None),
        (None, "on", 600.0),
        (None, "30", 30.0),
        (None, "off", None),
        ("on", "30", 600.0),
        ("off", "30", None),
        ("10", None, 10.0),
        ("86400", None, 86_400.0),
    ],
)
def test_how_long_sessions_keep_to_a_worker_is_said_here_or_in_the_environment(
    given: str | None, environment: str | None, seconds: float | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("HOLDFAST_STICKY_TTL", raising=False)
    if environment is not None:
        monkeypatch.setenv("HOLDFAST_STICKY_TTL", environment)

    assert sticky_ttl_s(given) == seconds


@pytest.mark.clause("WB-13", "WB-17")
@pytest.mark.parametrize("said", ["9", "86401", "soon", "nan"])
def test_a_worker_does_not_start_with_a_time_that_cannot_be_kept(bureau: Office, place: Path, said: str) -> None:
    answer = bureau.ask("worker", f"{place.stem}:hf", "--sticky-ttl", said)

    assert answer.code == 2
    assert "keeps to its worker" in answer.err
