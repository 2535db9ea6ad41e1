"""`runs`, `inspect`, `explain`: what people and programs see."""

from __future__ import annotations

import pytest

from holdfast import Holdfast, Workflow
from tests.cli.conftest import Office


def test_runs_are_listed_newest_first(office: Office) -> None:
    answer = office.ask("runs")

    assert answer.code == 0
    header, *rows = answer.out.splitlines()
    assert header.split() == ["run", "status", "clog", "session", "queue", "attempt", "created", "updated"]
    assert [row.split()[:3] for row in rows] == [
        ["idle", "idle", "mail"],
        ["asked", "paused", "mail"],
        ["held", "active", "chat"],
        ["done", "done", "chat"],
    ]


@pytest.mark.parametrize(
    ("words", "found"),
    [
        (["--session", "s1"], ["held", "done"]),
        (["--clog", "mail", "--status", "idle"], ["idle"]),
        (["--status", "idle", "--status", "done"], ["idle", "done"]),
        (["--user", "nobody"], []),
        (["--user", "local", "--limit", "1"], ["idle"]),
    ],
)
def test_a_list_is_narrowed(office: Office, words: list[str], found: list[str]) -> None:
    assert [run["run_id"] for run in office.ask("runs", "--json", *words).json["runs"]] == found


@pytest.mark.clause("SB-10")
def test_a_long_list_is_read_page_by_page(office: Office) -> None:
    first = office.ask("runs", "--limit", "3", "--json").json
    second = office.ask("runs", "--limit", "3", "--json", "--cursor", first["next"]).json

    assert [run["run_id"] for run in second["runs"]] == ["done"]
    assert second["next"] is None
    assert f"more: --cursor {first['next']}" in office.ask("runs", "--limit", "3").out


def test_an_empty_list_says_so(office: Office) -> None:
    assert office.ask("runs", "--session", "nobody").out == "no runs\n"


@pytest.mark.clause("SB-7")
def test_inspect_shows_the_picture(office: Office) -> None:
    answer = office.ask("inspect", "held")

    assert answer.code == 0
    for word in ("attempt_claimed", "worker-2", "Ticks", "Orders", "start"):
        assert word in answer.out
    assert "approval of go-live" in office.ask("inspect", "asked").out


@pytest.mark.clause("SB-7", "H-S9")
def test_inspect_for_programs_is_the_snapshot(office: Office) -> None:
    async def see(hf: Holdfast) -> dict[str, object]:
        seen = await hf.inspect("held")
        assert seen is not None
        return seen.to_dict()

    answer = office.ask("inspect", "held", "--json")

    expected = office.do(see)
    assert {**answer.json, "seen_at": None} == {**expected, "seen_at": None}
    assert "token" not in answer.out


@pytest.mark.clause("SB-8")
def test_explain_says_it_in_words(office: Office) -> None:
    asked = office.ask("explain", "asked")

    assert asked.code == 0
    assert "It needs approval: someone must approve or reject step 'go-live'." in asked.out
    assert "resolve_manual_step" in asked.out
    assert office.ask("explain", "done", "--json").json["reason"] == "terminal"


@pytest.mark.parametrize("command", ["inspect", "explain", "journal", "tail", "signal", "cancel", "approve", "reject"])
def test_a_run_that_is_not_there_is_a_mistake_of_the_caller(office: Office, command: str) -> None:
    answer = office.ask(command, "nobody")

    assert (answer.code, answer.out) == (2, "")
    assert answer.err == "holdfast: there is no run nobody\n"


@pytest.mark.parametrize(
    "words",
    [
        ["runs", "--status", "busy"],
        ["runs", "--limit", "0"],
        ["runs", "--cursor", "garbage"],
        ["inspect"],
        ["inspect", "not an id"],
        ["dance"],
        ["runs", "--nonsense"],
    ],
)
def test_what_makes_no_sense_is_refused_in_words(office: Office, words: list[str]) -> None:
    answer = office.ask(*words)

    assert (answer.code, answer.out) == (2, "")
    assert answer.err
    assert "Traceback" not in answer.err


def test_the_inbox_lists_what_people_are_asked(office: Office) -> None:
    async def pause(hf: Holdfast) -> None:
        await hf.pause("idle", "look", expires=7_230)

    office.do(pause)
    asked = office.ask("approvals")
    everything = office.ask("approvals", "--pauses", "--json").json["approvals"]

    header, row = asked.out.splitlines()
    assert header.split() == ["run", "asks", "step", "details", "since", "until", "rev", "clog", "session"]
    assert row.split()[:4] == ["asked", "approval", "go-live", '{"risk":"low"}']
    assert [(each["run_id"], each["kind"]) for each in everything] == [("idle", "pause"), ("asked", "approval")]
    assert everything[0]["expires_at"] is not None
    assert "2 h" in office.ask("approvals", "--pauses").out
    assert (everything[1]["details"], everything[1]["rev"]) == ({"risk": "low"}, 2)


def test_the_inbox_can_be_narrowed_and_turned_over(office: Office) -> None:
    async def pause(hf: Holdfast) -> None:
        await hf.pause("idle", "look")

    office.do(pause)
    first = office.ask("approvals", "--pauses", "--limit", "1", "--json").json
    second = office.ask("approvals", "--pauses", "--limit", "1", "--cursor", first["next"], "--json").json

    assert [page["approvals"][0]["run_id"] for page in (first, second)] == ["idle", "asked"]
    assert second["next"] is None
    assert "more: --cursor" in office.ask("approvals", "--pauses", "--limit", "1").out
    assert office.ask("approvals", "--session", "s1").out == "nobody is asked anything\n"
    assert office.ask("approvals", "--clog", "chat", "--json").json == {"approvals": [], "next": None}
    assert office.ask("approvals", "--user", "nobody", "--json").json["approvals"] == []
    assert office.ask("approvals", "--cursor", "x").code == 2


@pytest.mark.clause("SB-9")
def test_the_steps_of_a_workflow_are_shown_and_drawn(office: Office) -> None:
    flow = Workflow("billing", version="7")
    flow.wait("cooldown", seconds=3_600)
    flow.approval("manager", after=["cooldown"])

    async def begin(hf: Holdfast) -> None:
        hf.register(flow)
        await hf.start(flow, session_id="s9", run_id="w")
        await hf.advance()

    office.do(begin)

    shown = office.ask("graph", "w").out
    assert [line.split() for line in shown.splitlines()[-2:]] == [
        ["cooldown", "wait", "pending"],
        ["manager", "approval", "waiting", "cooldown"],
    ]
    assert office.ask("graph", "w", "--json").json["version"] == "7"
    assert office.ask("graph", "w", "--mermaid").out.splitlines()[:2] == [
        "flowchart TD",
        '    n0("cooldown"):::pending',
    ]
    assert "no steps" in office.ask("graph", "idle").out
    assert office.ask("graph", "nobody").err == "holdfast: there is no run nobody\n"
