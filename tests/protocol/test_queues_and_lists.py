"""The dispatch view of a queue and the list of runs, folded from entries alone."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from holdfast.protocol import catalog, dispatch, facts
from holdfast.protocol.catalog import Listed
from holdfast.protocol.facts import Fact
from holdfast.protocol.outcomes import Done, Retry
from tests.protocol.builders import LEASE, NOON, SECOND, Run, active, ended, idle, paused, pending, waiting


def entries_of(**runs: Run) -> Iterator[tuple[str, Fact, int]]:
    """The entries of several runs, as a view reads them."""
    for run_id, run in runs.items():
        yield from ((run_id, fact, at) for fact, at in run.entries)


@pytest.mark.clause("S-15")
def test_a_queue_shows_what_is_visible_oldest_first() -> None:
    later = Run(has_input=True, delay_us=SECOND)

    view = dispatch.fold(entries_of(later=later, now=pending(), asleep=waiting(), resting=idle()))

    assert [item.run_id for item in view.visible(NOON)] == ["now"]
    assert [item.run_id for item in view.visible(NOON + SECOND)] == ["now", "asleep", "later"]


@pytest.mark.clause("S-35")
def test_a_claim_hides_its_item_until_the_lease_ends() -> None:
    view = dispatch.fold(entries_of(r1=active()))

    (item,) = view.attempts
    assert (item.status, item.claim_id, item.owner_id, item.lease_until) == ("claimed", "c1", "w1", NOON + LEASE)
    assert view.visible(NOON + LEASE) == ()
    assert view.expired(NOON + LEASE - 1) == ()
    assert view.expired(NOON + LEASE) == (item,)


@pytest.mark.clause("H-S5")
def test_a_paused_run_is_neither_visible_nor_expired() -> None:
    held = active()
    held.pause()

    view = dispatch.fold(entries_of(a=paused(), b=held))

    assert [(item.status, item.paused) for item in view.attempts] == [("available", True), ("claimed", True)]
    assert view.visible(NOON + LEASE) == view.expired(NOON + LEASE) == ()


@pytest.mark.clause("SB-4")
def test_an_item_is_available_claimed_or_waiting_for_its_next_try() -> None:
    retrying = active()
    retrying.settle(Retry("again"))

    view = dispatch.fold(entries_of(a=pending(), b=active(), c=retrying))

    assert [(item.status, item.attempt) for item in view.attempts] == [
        ("available", 0),
        ("claimed", 0),
        ("retry_scheduled", 1),
    ]


@pytest.mark.clause("S-61")
def test_an_ended_run_vanishes_from_its_queue() -> None:
    run = active()
    run.settle(Done())

    view = dispatch.fold(entries_of(r1=run))

    assert view.attempts == ()


def test_steps_are_items_of_their_own() -> None:
    run = pending()
    run.schedule("load", delay_us=SECOND)

    view = dispatch.fold(entries_of(r1=run))

    assert {(item.runnable_key, item.visible_at) for item in view.attempts} == {("", NOON), ("load", NOON + SECOND)}


def test_the_list_of_runs_tells_where_they_are_and_how_they_ended_and_no_more() -> None:
    runs = {"live": Run(session_id="s2", clog_id="digest", queue="slow"), "over": ended("failed")}

    listed = catalog.fold(entries_of(**runs))

    assert listed == {
        "live": Listed(run_id="live", session_id="s2", clog_id="digest", queue="slow", created_at=NOON),
        "over": Listed(
            run_id="over", session_id="s1", clog_id="chat", queue="default", created_at=NOON, ended="failed"
        ),
    }


def test_a_run_is_listed_once_with_its_first_beginning_and_its_first_end() -> None:
    run = ended("done")
    run.put(facts.RunCreated(session_id="other", clog_id="other"))
    run.put(facts.RunTerminal(status="failed"))

    listed = catalog.fold([("nobody", facts.RunTerminal(status="done"), NOON), *entries_of(r1=run)])

    assert {key: (item.clog_id, item.ended) for key, item in listed.items()} == {"r1": ("chat", "done")}


def test_the_list_is_built_from_its_own_kinds_alone() -> None:
    entries = list(entries_of(a=active(), b=ended()))

    needed = [entry for entry in entries if entry[1].kind in catalog.KINDS]

    assert catalog.fold(needed) == catalog.fold(entries)
