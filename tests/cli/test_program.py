"""The real program in a process of its own: exit codes, pipes, interrupts."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

import holdfast
from tests.cli.conftest import Office

PROGRAM = [sys.executable, "-c", "from holdfast.cli import main; main()"]


def environment(office: Office) -> dict[str, str]:
    """What the program is told, with the sources of these tests wherever it runs."""
    return {**os.environ, **office.environment, "PYTHONPATH": str(Path(holdfast.__file__).parents[1])}


def run(office: Office, *words: str, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*PROGRAM, *words], env=environment(office), cwd=cwd, capture_output=True, text=True, timeout=60, check=False
    )


def heeds_interrupts() -> None:
    """A shell that runs the tests in the background has made everything deaf to interrupts."""
    signal.signal(signal.SIGINT, signal.default_int_handler)


def test_exit_codes(office: Office) -> None:
    assert run(office, "runs").returncode == 0
    assert run(office, "signal", "done").returncode == 1
    assert run(office, "runs", "--db", "/nowhere/x.db").returncode == 2
    assert run(office, "runs", "--nonsense").returncode == 2


def test_without_being_told_it_looks_at_the_folder_it_is_in(tmp_path: Path) -> None:
    office = Office("")

    before = run(office, "runs", cwd=tmp_path)
    migrated = run(office, "migrate", cwd=tmp_path)

    assert (before.returncode, "there is no database ./holdfast.db" in before.stderr) == (2, True)
    assert (migrated.returncode, migrated.stderr) == (0, "")
    assert (tmp_path / "holdfast.db").exists()


def test_help_names_every_command(bare: Office) -> None:
    shown = run(bare, "--help")

    assert shown.returncode == 0
    for word in ("migrate", "runs", "inspect", "explain", "journal", "tail", "signal", "cancel", "approve", "reject"):
        assert f"  {word} " in shown.stdout
    for word in ("fsck", "rebuild", "doctor"):
        assert f"  {word} " in shown.stdout
    assert run(bare, "runs", "-h").returncode == 0
    assert run(bare, "--version").stdout.startswith("holdfast ")


@pytest.mark.parametrize("words", [("journal", "done", "--json"), ("journal", "done"), ("tail", "done")])
def test_a_reader_that_goes_away_is_no_accident(office: Office, words: tuple[str, ...]) -> None:
    read, write = os.pipe()
    os.close(read)
    process = subprocess.run(
        [*PROGRAM, *words],
        env=environment(office),
        stdout=write,
        stderr=subprocess.PIPE,
        text=True,
        timeout=60,
        check=False,
    )
    os.close(write)

    assert (process.returncode, process.stderr) == (0, "")


def test_tail_follows_until_it_is_interrupted(office: Office) -> None:
    with subprocess.Popen(
        [*PROGRAM, "tail", "idle", "--json"],
        env=environment(office),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=heeds_interrupts,
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        assert '"run_queued"' in process.stdout.readline()
        office.ask("signal", "idle", "1")
        assert '"signal_received"' in process.stdout.readline()
        process.send_signal(signal.SIGINT)
        assert process.wait(timeout=30) == 130
        assert process.stderr.read() == ""


def test_a_watched_list_stays(office: Office) -> None:
    with subprocess.Popen(
        [*PROGRAM, "runs", "--watch"],
        env=environment(office),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=heeds_interrupts,
    ) as process:
        assert process.stderr is not None
        with pytest.raises(subprocess.TimeoutExpired):
            process.wait(timeout=3)
        process.send_signal(signal.SIGINT)
        assert process.wait(timeout=30) == 130
        assert process.stderr.read() == ""
