"""`schedules`: put, list, pause, resume, delete and trigger, in words and in JSON."""

from __future__ import annotations

import pytest

from holdfast import Holdfast, RunInfo
from tests.cli.conftest import Office

PUT = ("schedules", "put", "nightly", "--clog", "report", "--session", "s", "--cron", "0 3 1 1 *")


def test_a_schedule_is_made_changed_and_listed(office: Office) -> None:
    made = office.ask(*PUT, "--timezone", "Europe/Berlin", "--input", '{"n": 1}', "--json")
    changed = office.ask(*PUT, "--text", "plain", "--queue", "slow", "--priority", "3", "--missed", "skip")
    listed = office.ask("schedules", "list", "--json")
    shown = office.ask("schedules", "list")

    assert (made.code, changed.code, shown.code) == (0, 0, 0)
    assert (made.json["timezone"], made.json["input"], made.json["paused"]) == ("Europe/Berlin", {"n": 1}, False)
    assert changed.out.startswith("nightly is running; next at ")
    (found,) = listed.json["schedules"]
    assert (found["input"], found["queue"], found["priority"], found["missed"]) == ("plain", "slow", 3, "skip")
    assert (found["timezone"], listed.json["next"]) == ("UTC", None)
    assert "0 3 1 1 * UTC" in shown.out


def test_an_instant_is_an_instant_anywhere(office: Office) -> None:
    put = ("schedules", "put", "once", "--clog", "report", "--session", "s")

    made = office.ask(*put, "--at", "2099-01-01T09:00+01:00", "--json")

    assert (made.json["at"], made.json["input"]) == ("2099-01-01T08:00:00Z", None)
    assert "once, 2099-01-01 08:00:00 UTC" in office.ask("schedules", "list").out


def test_pause_resume_and_delete(office: Office) -> None:
    office.ask(*PUT)

    paused, kept = office.ask("schedules", "pause", "nightly"), office.ask(*PUT)
    resumed = office.ask("schedules", "resume", "nightly")
    deleted = office.ask("schedules", "delete", "nightly")
    again = office.ask("schedules", "delete", "nightly")

    assert (paused.out, kept.out) == ("nightly is paused\n", "nightly is paused\n")
    assert resumed.out.startswith("nightly is running; next at ")
    assert deleted.out == "nightly is deleted; its runs stay\n"
    assert (again.code, again.err) == (2, "holdfast: there is no schedule nightly\n")
    assert office.ask("schedules", "list", "--json").json["schedules"] == []


def test_a_trigger_counts_once_for_each_key(office: Office) -> None:
    async def runs(hf: Holdfast) -> list[str]:
        return [run.run_id for run in (await hf.list_runs(clog_id="report")).items]

    office.ask(*PUT, "--input", "7")

    first = office.ask("schedules", "trigger", "nightly", "--key", "k", "--json")
    again = office.ask("schedules", "trigger", "nightly", "--key", "k")
    new = office.ask("schedules", "trigger", "nightly", "--key", "k", "--new")
    window = office.ask("schedules", "trigger", "nightly", "--window", "2020-01-01T03:00Z", "--json")

    run_id = first.json["run_id"]
    assert (first.json["status"], first.json["pending_input"]) == ("pending", 7)
    assert again.out == f"{run_id} is pending\n"
    assert (new.code, new.out) == (1, "nightly has started this run before\n")
    assert sorted(office.do(runs)) == sorted([run_id, window.json["run_id"]])


def test_whose_schedule_it_is(office: Office) -> None:
    async def see(hf: Holdfast) -> RunInfo | None:
        return await hf.as_user("ada").schedules.trigger("nightly", key="k")

    office.ask(*PUT[:6], "of-ada", *PUT[7:], "--user", "ada")

    assert office.ask("schedules", "pause", "nightly").code == 2
    assert office.ask("schedules", "list", "--user", "ada").out.count("nightly") == 1
    assert office.ask("schedules", "list", "--user", "bob", "--json").json["schedules"] == []
    run = office.do(see)
    assert run is not None
    assert office.ask("schedules", "trigger", "nightly", "--key", "k", "--user", "ada").out.startswith(run.run_id)


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        ([*PUT[:-1], "0 25 * * *"], "cannot be read"),
        ([*PUT, "--timezone", "Mars/Base"], "there is no time zone"),
        ([*PUT[:-2]], "either a cron text or an instant"),
        ([*PUT, "--at", "2099-01-01T09:00Z"], "either a cron text or an instant"),
        ([*PUT[:-2], "--at", "tomorrow"], "is no instant"),
        ([*PUT[:-2], "--at", "2099-01-01T09:00"], "aware datetime"),
        ([*PUT, "--missed", "some"], "latest, all, skip"),
        ([*PUT, "--input", "{"], "is not JSON"),
        (["schedules", "put", "every night", *PUT[3:]], "name must be"),
    ],
)
def test_what_makes_no_sense_is_refused(office: Office, words: list[str], complaint: str) -> None:
    answer = office.ask(*words)

    assert (answer.code, answer.out) == (2, "")
    assert complaint in answer.err
    assert office.ask("schedules", "list", "--json").json["schedules"] == []
