"""`outbox` shows, delivers and requeues; `reconcile` finds and repairs. Exit codes tell programs."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from holdfast import Holdfast
from tests.cli.conftest import Office

PROGRAM = """
from holdfast import DeadLetter, Holdfast

hf = Holdfast({url!r})

@hf.deliver("email")
async def send(payload):
    if payload == "bad":
        raise DeadLetter("no such person")
    return "m-1"
"""


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a program in it, its module under a name that no other test has used."""
    module = f"sender_{tmp_path.name}".replace("-", "_")
    (tmp_path / f"{module}.py").write_text(PROGRAM.format(url=str(tmp_path / "work.db")))
    monkeypatch.chdir(tmp_path)
    return tmp_path / f"{module}.py"


@pytest.fixture
def bureau(place: Path) -> Office:
    bureau = Office(str(place.parent / "work.db"))
    assert bureau.ask("migrate").code == 0
    return bureau


@pytest.mark.clause("XB-11")
def test_once_delivers_a_batch_and_says_whether_any_row_failed(bureau: Office, place: Path) -> None:
    bureau.do(lambda hf: hf.outbox.enqueue("good", "email"))
    done = bureau.ask("outbox", f"{place.stem}:hf", "--once", "--json")
    bureau.do(lambda hf: hf.outbox.enqueue("bad", "email"))
    failed = bureau.ask("outbox", f"{place.stem}:hf", "--once")
    idle = bureau.ask("outbox", f"{place.stem}:hf", "--once")

    assert (done.code, done.json["outbox_flush_success"]) == (0, 1)
    assert failed.code == 1
    assert "outbox_flush_dead" in failed.out
    assert idle.code == 0


@pytest.mark.clause("XB-11")
def test_without_a_word_it_shows_what_waits_and_what_is_dead(bureau: Office, place: Path) -> None:
    bureau.do(lambda hf: hf.outbox.enqueue("bad", "email"))
    bureau.ask("outbox", f"{place.stem}:hf", "--once")

    shown = bureau.ask("outbox")
    told = bureau.ask("outbox", "--json").json
    made = bureau.ask("outbox", "--requeue", told["dead"][0]["outbox_id"], "--json")

    assert shown.code == 0
    assert "no such person" in shown.out
    assert told["report"]["statuses"] == {"pending": 0, "sent": 0, "dead": 1}
    assert made.code == 0
    assert bureau.ask("outbox", "--json").json["report"]["statuses"]["pending"] == 1
    assert bureau.ask("outbox", "--requeue", made.json["outbox_id"]).code == 1


@pytest.mark.clause("XB-11")
def test_the_loop_delivers_until_it_is_told_to_stop(bureau: Office, place: Path) -> None:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, "-c", "from holdfast.cli import main; main()", "outbox", f"{place.stem}:hf", "--loop"]
    process = subprocess.Popen(command, cwd=place.parent, env=environment, stderr=subprocess.PIPE, text=True)
    try:
        outbox_id = bureau.do(lambda hf: hf.outbox.enqueue("good", "email"))

        async def status(hf: Holdfast) -> str | None:
            found = await hf.outbox.get(outbox_id)
            return None if found is None else found.status

        deadline = time.monotonic() + 60
        while bureau.do(status) != "sent":
            assert time.monotonic() < deadline
            time.sleep(0.1)
        process.send_signal(signal.SIGTERM)
        _, told = process.communicate(timeout=30)
    finally:
        process.kill()
        process.wait()

    assert process.returncode == 0
    assert "1 outbox_flush_success" in told


@pytest.mark.parametrize(
    "words", [["--once", "--loop"], ["--once"], ["nowhere:hf", "--once"]], ids=["both", "no app", "unknown app"]
)
def test_what_makes_no_sense_is_a_matter_of_usage(bureau: Office, words: list[str]) -> None:
    assert bureau.ask("outbox", *words).code == 2


@pytest.mark.clause("XB-10")
def test_reconcile_reports_then_repairs(bureau: Office, bare: Office) -> None:
    async def leave_unaudited(hf: Holdfast) -> None:
        await hf.outbox.enqueue("x", "email")
        (held,) = await hf.outbox.claim_outbox("w1")
        await hf.outbox.ack_sent(held.outbox_id, "w1")

    bureau.do(leave_unaudited)

    reported = bureau.ask("reconcile", "--report")
    repaired = bureau.ask("reconcile", "--json")

    assert (reported.code, "1 found, 0 put right" in reported.out) == (1, True)
    assert (repaired.code, repaired.json["fixed"], repaired.json["ok"]) == (0, 1, True)
    assert bureau.ask("reconcile", "--report").code == 0
    assert Office(bare.url + "-nowhere").ask("reconcile").code == 2
