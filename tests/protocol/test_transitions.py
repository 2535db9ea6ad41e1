"""The table of statuses: every row of it happens, and the page that shows it is fresh."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from holdfast.protocol import facts, transitions
from holdfast.protocol.evolve import evolve
from holdfast.protocol.facts import Fact
from holdfast.protocol.graphs import Graph
from holdfast.protocol.state import TERMINAL, RunState
from tests.protocol.builders import LEASE, LIVE, NOON, SECOND, Run, active, fence, idle, pending, waiting
from tools import diagram

Row = tuple[str, str, str]


def with_mail() -> Run:
    run = active()
    run.signal("m1", "hi")
    return run


def stepping(rest: str) -> Run:
    """A run that is active by its step alone and comes back to `rest` when that is over."""
    run = LIVE[rest]()
    run.schedule("load")
    run.claim("step", "load")
    return run


def halted(status: str) -> Run:
    run = LIVE[status]()
    run.pause()
    return run


def settled(outcome: str) -> Fact:
    return facts.TickSettled(**fence("c1"), outcome=outcome, result_digest="d1", delay_us=SECOND)


def planned_work(run: Run) -> Run:
    """A workflow's run with a step that nobody holds."""
    run.put(facts.WorkflowStarted(version="1", fingerprint="f", graph=Graph(nodes=())))
    run.schedule("load")
    return run


def napping() -> Run:
    """A run that is active by its own tick alone, with a step that waits beside it."""
    run = active()
    run.put(SLEEP)
    return run


def sleeping_step() -> Run:
    """A workflow's run at rest, but for a step that waits."""
    run = idle()
    run.put(facts.WorkflowStarted(version="1", fingerprint="f", graph=Graph(nodes=())))
    run.put(SLEEP)
    return run


SLEEP = facts.AttemptScheduled(runnable_key="nap", step="nap", idempotency_key="k", delay_us=SECOND, waiting=True)
EXPAND = facts.MapExpanded(**fence("step", "load"), items=0, result_digest="d1")
COMPENSATE = facts.CompensationBegun(step="load")
CLAIM = facts.AttemptClaimed(**fence("c2"), owner_id="w1", lease_us=LEASE)
SIGNAL = facts.SignalReceived(signal_id="m1")
SCHEDULE = facts.AttemptScheduled(runnable_key="load", step="load", idempotency_key="k")
COMPLETE = facts.AttemptCompleted(**fence("step", "load"), result_digest="d1")
FAIL_STEP = facts.AttemptFailed(**fence("step", "load"), error="broken", result_digest="d1")
PAUSE = facts.ManualStepPaused(step="review", boundary="pause")
RESUME = facts.ManualStepResolved(step="review", action="resume")

# One way to reach each row that starts from a run that lives.
WAYS: dict[Row, tuple[Callable[[], Run], Fact]] = {
    ("idle", "signal", "pending"): (idle, SIGNAL),
    ("waiting", "signal", "pending"): (waiting, SIGNAL),
    ("pending", "claim", "active"): (pending, CLAIM),
    ("waiting", "claim", "active"): (waiting, CLAIM),
    ("active", "ok", "idle"): (active, settled("ok")),
    ("active", "ok", "pending"): (with_mail, settled("ok")),
    ("active", "continue", "pending"): (active, settled("continue")),
    ("active", "wait", "waiting"): (active, settled("wait")),
    ("active", "wait", "pending"): (with_mail, settled("wait")),
    ("active", "retry", "pending"): (active, settled("retry")),
    ("active", "abandon", "pending"): (active, facts.TickAbandoned(tick_id="c1", from_seq=2, reason="released")),
    ("idle", "schedule", "pending"): (idle, SCHEDULE),
    ("waiting", "schedule", "pending"): (waiting, SCHEDULE),
    ("active", "complete", "idle"): (partial(stepping, "idle"), COMPLETE),
    ("active", "complete", "pending"): (partial(stepping, "pending"), COMPLETE),
    ("active", "complete", "waiting"): (partial(stepping, "waiting"), COMPLETE),
    ("active", "fail_step", "idle"): (partial(stepping, "idle"), FAIL_STEP),
    ("active", "fail_step", "pending"): (partial(stepping, "pending"), FAIL_STEP),
    ("active", "fail_step", "waiting"): (partial(stepping, "waiting"), FAIL_STEP),
    ("active", "ok", "waiting"): (napping, settled("ok")),
    ("idle", "schedule", "waiting"): (idle, SLEEP),
    **{("active", "expand", rest): (partial(stepping, rest), EXPAND) for rest in ("idle", "pending", "waiting")},
    ("pending", "compensate", "idle"): (lambda: planned_work(idle()), COMPENSATE),
    ("pending", "compensate", "waiting"): (lambda: planned_work(waiting()), COMPENSATE),
    ("waiting", "compensate", "idle"): (sleeping_step, COMPENSATE),
    ("active", "fork", "pending"): (active, facts.RunForked(source_run_id="r0", at_rev=2)),
    **{(status, "pause", "paused"): (LIVE[status], PAUSE) for status in LIVE if status != "paused"},
    **{("paused", "resolve", status): (partial(halted, status), RESUME) for status in LIVE if status != "paused"},
    **{
        (status, "end", terminal): (begin, facts.RunTerminal(status=terminal))
        for status, begin in LIVE.items()
        for terminal in TERMINAL
    },
}
BEGINNINGS: dict[Row, Fact] = {
    (transitions.NEW, "create", "idle"): facts.RunCreated(session_id="s", clog_id="c"),
    (transitions.NEW, "create", "pending"): facts.RunCreated(session_id="s", clog_id="c", has_input=True),
}


def test_the_table_has_no_other_rows() -> None:
    assert WAYS.keys() | BEGINNINGS.keys() == transitions.TRANSITIONS


@pytest.mark.clause("O-11", "S-60", "C-1")
@pytest.mark.parametrize("row", sorted(WAYS), ids=" ".join)
def test_every_row_of_the_table_happens(row: Row) -> None:
    begin, fact = WAYS[row]
    run = begin()
    if isinstance(fact, facts.AttemptClaimed):
        run.sleep(SECOND)
    before = run.state.status

    assert run.put(fact) is None

    assert (before, transitions.cause(fact), run.state.status) == row


@pytest.mark.clause("O-11", "C-1")
@pytest.mark.parametrize("row", sorted(BEGINNINGS), ids=" ".join)
def test_every_beginning_of_the_table_happens(row: Row) -> None:
    state = evolve(RunState(run_id="r1"), BEGINNINGS[row], NOON)

    assert (transitions.NEW, transitions.cause(BEGINNINGS[row]), state.status) == row


@pytest.mark.clause("C-1")
def test_the_table_knows_the_eight_statuses_and_three_of_them_are_final() -> None:
    targets = {target for _, _, target in transitions.TRANSITIONS}
    sources = {source for source, _, _ in transitions.TRANSITIONS}

    assert targets == {"idle", "pending", "active", "waiting", "paused", "done", "failed", "cancelled"}
    assert targets - sources == TERMINAL == {"done", "failed", "cancelled"}


@pytest.mark.parametrize("kind", ["attempt_heartbeat", "anomaly", "event", "cancel_requested", "runnable_applied"])
def test_a_fact_that_moves_no_status_has_no_cause(kind: str) -> None:
    words = dict.fromkeys(facts.required_fields(kind), "x")

    assert transitions.cause(facts.from_value(kind, words | ({"lease_us": 1} if "lease_us" in words else {}))) is None


def test_the_diagram_draws_every_row_and_every_end() -> None:
    lines = transitions.diagram().splitlines()

    assert lines[0] == "stateDiagram-v2"
    assert "    [*] --> pending: create" in lines
    assert "    active --> waiting: wait" in lines
    assert [line for line in lines if line.endswith("--> [*]")] == [
        f"    {status} --> [*]" for status in sorted(TERMINAL)
    ]
    assert len(lines) == 1 + len(transitions.TRANSITIONS) + len(TERMINAL)


class TestPage:
    def test_the_page_in_the_documentation_is_fresh(self) -> None:
        assert diagram.main(["--check"]) == 0

    def test_a_written_page_passes_the_check(self, tmp_path: Path) -> None:
        (tmp_path / "docs").mkdir()

        assert diagram.main([], root=tmp_path) == 0
        assert diagram.main(["--check"], root=tmp_path) == 0

        assert "```mermaid\nstateDiagram-v2\n" in (tmp_path / "docs/run-states.md").read_text(encoding="utf-8")

    @pytest.mark.parametrize("page", [None, "an older page\n"], ids=["missing", "stale"])
    def test_a_stale_page_fails_the_check(
        self, tmp_path: Path, capsys: pytest.CaptureFixture[str], page: str | None
    ) -> None:
        (tmp_path / "docs").mkdir()
        if page is not None:
            (tmp_path / "docs/run-states.md").write_text(page, encoding="utf-8")

        assert diagram.main(["--check"], root=tmp_path) == 1
        assert "make diagram" in capsys.readouterr().out
