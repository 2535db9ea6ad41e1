"""`journal` and `tail`: every fact, and what watchers see."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from holdfast import Event, FlowContext, Holdfast
from holdfast.cli.words import words
from holdfast.protocol import commands
from holdfast.testing import VirtualClock
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


def a_days_work(hf: Holdfast) -> Any:
    """A flow that meets everything that can happen to one."""
    calls: list[int] = []

    async def flaky() -> None:
        calls.append(1)
        if len(calls) == 1:
            raise ConnectionError("down")

    @hf.flow("leaf")
    async def leaf(ctx: FlowContext, input: Any) -> str:
        return "leaf"

    @hf.flow("day")
    async def day(ctx: FlowContext, input: Any) -> str:
        await ctx.step("flaky", flaky)
        await ctx.run(leaf, key="k")
        await ctx.step("charge", lambda: None, irreversible=True)
        await ctx.receive("go")
        await ctx.pause("look", details={"why": "odd"})
        await ctx.approval("sure", details={"amount": 5})
        await ctx.emit("note", "mine")
        return "over"

    return day


async def lived(url: str) -> None:
    async with Holdfast(url, clock=VirtualClock()) as hf:
        await hf.start(a_days_work(hf), session_id="s", run_id="day")
        await hf.drain()
        await hf.signal("day", name="go")
        await hf.drain()
        await hf.resume("day", actor="ann")
        await hf.drain()
        await hf.approve("day", actor="ann", comment="fine")
        await hf.drain()


def test_tail_speaks_in_words(bare: Office) -> None:
    asyncio.run(lived(bare.url))

    said = bare.ask("tail", "day").out

    for told in (
        "is queued for clog day on queue default",
        "is worked on",
        "step 'flaky' failed: down; it is tried again",
        "step 'flaky' is done",
        "started child run ",
        "waits for child run ",
        " is done",
        "step 'charge' begins",
        "waits for signal 'go'",
        "got signal 'go'",
        "is paused at 'look': {'why': 'odd'}",
        "ann resumed 'look'",
        "asks for approval of 'sure': {'amount': 5}",
        "ann approved 'sure': fine",
        "mine",
        "is done: over",
    ):
        assert told in said, told


@pytest.mark.parametrize(
    ("type", "data", "said"),
    [
        ("run_waiting", {"until_us": None, "delay_us": 1_500_000}, "waits for 0:00:01.500000"),
        ("run_waiting", {"until_us": 0, "awaits": ["signal:"]}, "waits for a signal or until 1970-01-01 00:00:00 UTC"),
        ("run_waiting", {}, "waits for a signal"),
        ("run_retrying", {"error": "down", "delay_us": 500_000}, "failed: down; it is tried again in 500 ms"),
        ("run_idle", {}, "rests"),
        ("step_complete", {"step_id": "a", "status": "failed", "error": "no"}, "step 'a' failed: no"),
        ("approval_expired", {"step": "a"}, "nobody answered 'a' in time"),
        ("approval_resolved", {"step": "a", "action": "reject", "actor": None}, "somebody rejected 'a'"),
        ("cancel_requested", {"actor": "ann", "reason": "enough"}, "ann wants it to stop: enough"),
        ("tick_abandoned", {"from_seq": 3}, "a try ended early; what it said from entry 3 on is dropped"),
        ("anomaly", {"entry_kind": "tick_settled", "reason": "stale_claim"}, "refused a tick_settled: stale_claim"),
        ("done", {"run_status": "failed", "error": "no"}, "failed: no"),
        ("done", {"run_status": "cancelled"}, "was cancelled"),
        ("run_started", {"attempt": "x"}, "is worked on"),
        ("run_started", {"attempt": 1}, "is worked on, try 2"),
        ("run_waiting", {"until_us": 1 << 80, "awaits": 7}, "waits for a signal"),
        ("run_started", "words of a handler", None),
        ("note", {}, None),
    ],
)
def test_events_of_the_library_have_words(type: str, data: Any, said: str | None) -> None:
    assert words(type, data) == said
