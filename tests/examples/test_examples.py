"""Every example does what its first lines promise, as a process of its own."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[2] / "examples"


def play(name: str, *arguments: object) -> str:
    command = [sys.executable, str(EXAMPLES / name), *map(str, arguments)]
    return subprocess.run(command, check=True, capture_output=True, text=True, timeout=60).stdout


@pytest.mark.clause("OB-20", "O-63")
def test_a_chat_goes_on_where_another_process_left_it(tmp_path: Path) -> None:
    first, second = (play("chat.py", tmp_path / "chat.db") for _ in range(2))

    assert "You said 'hello', and 0 things before that." in first
    assert "You said 'what is a clog?', and 1 things before that." in first
    assert "You said 'hello', and 2 things before that." in second


@pytest.mark.clause("OB-20", "O-16")
def test_a_digest_sleeps_between_its_rounds(tmp_path: Path) -> None:
    lines = play("digest.py", tmp_path / "digest.db", "--every", "0.5", "--rounds", "2").splitlines()

    assert [line.split()[1] for line in lines] == ["notified", "run_waiting", "woke_up", "notified", "done"]


@pytest.mark.clause("O-24", "O-25", "C-9")
def test_a_function_that_is_poked_needs_no_worker(tmp_path: Path) -> None:
    asked, poked = play("serverless.py", tmp_path / "serverless.db").splitlines()

    assert re.search(r"1 tick, done \[\], come back at \d\d:\d\d:\d\d", asked)
    assert "1 tick, done ['time to stand up'], come back never" in poked


def test_an_order_survives_the_death_of_every_process(tmp_path: Path) -> None:
    told = play("order.py", tmp_path / "order.db")

    assert "to decide: expensive" in told
    assert "the order is done: {'approved_by': 'ada', 'receipt': 'receipt over 120'" in told
    assert "calls: ['reserve', 'charge', 'charge']; fsck: sound" in told


def test_invoices_are_parsed_side_by_side_and_paid_once(tmp_path: Path) -> None:
    told = play("invoices.py", tmp_path / "invoices.db")

    assert "'status': 'retrying', 'error': 'the scanner does not answer'" in told
    assert 'n1[["parse 4/4"]]:::completed' in told
    assert 'n3{{"manager"}}:::paused' in told
    assert "the run is done: {'archive': 4, 'pay': '1084.90 paid, approved by ada'}" in told
    assert "fsck: sound" in told


def test_every_night_has_its_report(tmp_path: Path) -> None:
    told = play("nightly.py", tmp_path / "nightly.db").splitlines()

    assert [line.split()[2] for line in told[:4]] == ["1", "1", "3", "1"]
    assert [line.split()[1] for line in told[4:]] == ["28", "29", "30", "31", "01", "02"]
    assert "Sun 31 Mar 03:00 CEST  done" in told


def test_the_first_run_survives_its_worker(tmp_path: Path) -> None:
    told = play("first_run.py", tmp_path / "first.db")

    assert "tick_abandoned" in told
    assert "rows and journal agree" in told
