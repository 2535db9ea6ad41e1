"""`journal` and `tail`: every fact, and what watchers see."""

from __future__ import annotations

import pytest

from holdfast import Event, Holdfast
from holdfast.protocol import commands
from tests.cli.conftest import Office


@pytest.mark.clause("H-S9")
def test_the_journal_shows_every_fact_and_no_hash(office: Office) -> None:
    answer = office.ask("journal", "done", "--json")

    assert [(entry["rev"], entry["kind"]) for entry in answer.lines] == [
        (1, "run_created"),
        (2, "attempt_claimed"),
        (3, "event"),
        (4, "run_terminal"),
    ]
    assert answer.lines[0]["data"]["input"] == {"say": "hi"}
    assert answer.lines[1]["data"]["owner_id"] == "worker-1"
    assert "token" not in answer.out + office.ask("journal", "done").out


def test_a_part_of_the_journal_can_be_asked_for(office: Office) -> None:
    def revs(*words: str) -> list[int]:
        return [entry["rev"] for entry in office.ask("journal", "done", "--json", *words).lines]

    assert revs("--after", "1", "--limit", "2") == [2, 3]
    assert revs("--after", "4") == []
    assert revs("--limit", "0") == []


def test_the_journal_is_a_table_for_people(office: Office) -> None:
    header, *rows = office.ask("journal", "done").out.splitlines()

    assert header.split() == ["rev", "at", "kind", "data"]
    assert '{"say":"hi"}' in rows[0]


def test_tail_ends_with_the_run(office: Office) -> None:
    answer = office.ask("tail", "done", "--json")

    assert (answer.code, [event["type"] for event in answer.lines]) == (
        0,
        ["run_queued", "run_started", "text", "done"],
    )
    assert [event["seq"] for event in office.ask("tail", "done", "--json", "--after", "2").lines] == [3, 4]
    assert [event["seq"] for event in office.ask("tail", "held", "--json", "--limit", "1").lines] == [1]
    assert [event["seq"] for event in office.ask("tail", "held", "--json", "--no-follow").lines] == [1, 2]


def test_what_a_run_says_cannot_steer_the_terminal(office: Office) -> None:
    shown = office.ask("tail", "done").out + office.ask("journal", "done").out

    assert "\x1b" not in shown
    assert "hello \\x1b[31m[red]world[/red]" in shown


def test_a_deleted_run_is_gone_but_for_its_journal(office: Office) -> None:
    async def delete(hf: Holdfast) -> list[Event]:
        await hf.journal.execute("done", commands.Delete())
        return [event async for event in hf.events("done")]

    assert office.do(delete) == []
    assert office.ask("tail", "done").code == 2
    assert office.ask("inspect", "done").code == 2
    assert "done" not in office.ask("runs").out
    assert office.ask("journal", "done", "--json").lines[-1]["kind"] == "run_deleted"
