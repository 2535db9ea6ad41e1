"""`signal`, `cancel`, `approve`, `reject`, `resume`: orders and their refusals."""

from __future__ import annotations

import getpass
from typing import Any

import pytest

from holdfast import Holdfast, RunInfo
from tests.cli.conftest import Office


def look(office: Office, run_id: str) -> RunInfo:
    async def see(hf: Holdfast) -> RunInfo:
        found = await hf.get_run(run_id)
        assert found is not None
        return found

    return office.do(see)


@pytest.mark.parametrize(
    ("words", "given"),
    [
        (['{"n": [1, null]}'], {"n": [1, None]}),
        (["0"], 0),
        (['"text"'], "text"),
        (["--text", "plain {words}"], "plain {words}"),
        ([], None),
    ],
)
def test_a_signal_carries_its_input(office: Office, words: list[str], given: Any) -> None:
    answer = office.ask("signal", "idle", *words)

    assert (answer.code, answer.out) == (0, "idle got the signal as entry 2\n")
    run = look(office, "idle")
    assert (run.status, run.pending_input) == ("pending", given)


def test_a_signal_with_a_key_counts_once(office: Office) -> None:
    first = office.ask("signal", "idle", "1", "--key", "k", "--name", "more", "--json")
    again = office.ask("signal", "idle", "1", "--key", "k", "--name", "more", "--json")
    other = office.ask("signal", "idle", "2", "--key", "k", "--name", "more", "--json")

    assert first.json == again.json == {"accepted": True, "reason": None, "rev": 2}
    assert (other.code, other.out) == (1, "")
    assert "was used before" in other.err


def test_a_signal_that_comes_too_late_is_a_problem(office: Office) -> None:
    answer = office.ask("signal", "done", "1")

    assert (answer.code, answer.out) == (1, "")
    assert answer.err == "holdfast: done is over and will not see the signal; entry 5 keeps it\n"
    assert office.ask("signal", "done", "1", "--json").json["accepted"] is False


@pytest.mark.parametrize("words", [["{"], ["hello"], ["1", "--text", "one"]])
def test_an_input_that_is_no_json_is_refused(office: Office, words: list[str]) -> None:
    answer = office.ask("signal", "idle", *words)

    assert answer.code == 2
    assert "--text" in answer.err
    assert look(office, "idle").rev == 1


def test_cancel_asks_and_force_ends(office: Office) -> None:
    asked = office.ask("cancel", "held", "--reason", "enough", "--actor", "ada")
    forced = office.ask("cancel", "held", "--force", "--json")

    assert (asked.code, asked.out) == (0, "held is active (cancel requested)\n")
    assert forced.json["status"] == "cancelled"
    assert "cancelled by ada" in office.ask("explain", "held").out


def test_an_approval_is_on_record(office: Office) -> None:
    answer = office.ask("approve", "asked", "--actor", "ada", "--comment", "fine", "--step", "go-live")
    again = office.ask("approve", "asked", "--actor", "ada")

    assert (answer.code, answer.out) == (0, "asked is pending\n")
    assert (again.code, again.out) == (1, "")
    assert "stale_manual_resolution" in again.err
    order = office.ask("inspect", "asked", "--json").json["command_history"][-1]
    assert (order["command"], order["actor"], order["comment"]) == ("approve", "ada", "fine")


def test_who_decides_is_who_is_logged_in_unless_told(office: Office) -> None:
    answer = office.ask("reject", "asked", "--json")

    assert (answer.json["status"], answer.json["error_kind"]) == ("failed", "rejected")
    assert getpass.getuser() in answer.json["last_error"]


def test_a_paused_run_is_resumed(office: Office) -> None:
    async def pause(hf: Holdfast) -> None:
        await hf.pause("idle", "look")

    office.do(pause)

    assert office.ask("approve", "idle").code == 1
    assert office.ask("resume", "idle").out == "idle is idle\n"


def test_an_answer_can_be_edited_and_is_held_against_what_was_seen(office: Office) -> None:
    (question,) = office.ask("approvals", "--json").json["approvals"]
    early = office.ask("approve", "asked", "--seen-rev", str(question["rev"] - 1))
    garbage = office.ask("approve", "asked", "--edited", "{")
    answer = office.ask("approve", "asked", "--edited", '{"risk": "none"}', "--seen-rev", str(question["rev"]))

    assert (early.code, garbage.code, answer.code) == (1, 2, 0)
    assert "stale_manual_resolution" in early.err
    assert "--edited" in garbage.err
    last = office.ask("journal", "asked", "--json").lines[-1]
    assert (last["kind"], last["data"]["edited"]) == ("manual_step_resolved", {"risk": "none"})


def test_a_pause_is_ended_with_a_reason(office: Office) -> None:
    async def pause(hf: Holdfast) -> None:
        await hf.pause("idle", "look")

    office.do(pause)

    assert office.ask("resume", "idle", "--step", "other").code == 1
    assert office.ask("resume", "idle", "--seen-rev", "1").code == 1
    assert office.ask("resume", "idle", "--step", "look", "--comment", "seen", "--seen-rev", "2").code == 0
    order = office.ask("inspect", "idle", "--json").json["command_history"][-1]
    assert (order["command"], order["comment"]) == ("resume", "seen")
