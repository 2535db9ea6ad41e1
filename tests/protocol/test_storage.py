"""Scoped storage: a tick writes once for each clog, with its end, and only rows that are still as it read them."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from immutables import Map
from msgspec.structs import replace

from holdfast.protocol import commands, facts
from holdfast.protocol.decide import decide
from holdfast.protocol.outcomes import Done, Ok
from holdfast.protocol.state import PENDING, RunState, Stored
from holdfast.protocol.storage import ClogWrites, StagedWrite, has_changed, is_accepted_write, shared_name, version
from tests.protocol.builders import BOOKKEEPING, LEASE, NOON, SECOND, Run, active, changes, fence
from tests.protocol.strategies import Lived, law, wild_lives

RUN_ROW = ("chat", "", "")


def writing(*writes: StagedWrite, clog_id: str = "chat") -> commands.Staged:
    return commands.Staged(storage=(ClogWrites(clog_id=clog_id, writes=writes),))


def settle(run: Run, staged: commands.Staged, outcome: Any = None, claim: str = "c1") -> Any:
    return run.do(commands.Settle(**fence(claim), outcome=outcome or Ok(), staged=staged))


def written(tick_id: str = "c1", *writes: facts.StorageWrite, clog_id: str = "chat") -> facts.StorageWritten:
    return facts.StorageWritten(tick_id=tick_id, clog_id=clog_id, writes=list(writes))


def begun() -> Run:
    run = active()
    run.do(commands.BeginTick(tick_id="t1"))
    return run


def call(run: Run, staged: commands.Staged, **options: Any) -> Any:
    told = {"clog_id": "chat", "method": "sum", **options}
    return run.do(commands.CallEndpoint(tick_id="t1", staged=staged, **told))


@law
@given(wild_lives)
def test_every_row_says_when_and_where_it_was_written(lives: list[Lived]) -> None:
    facts_at = {life.after.rev: (life.fact, life.at) for life in lives}
    for life in lives:
        for (clog_id, tick_id, _), row in life.after.storage.items():
            fact, at = facts_at[row.rev]
            assert isinstance(fact, facts.StorageWritten)
            assert (fact.clog_id, at) == (clog_id, row.at)
            assert tick_id in ("", fact.tick_id)


@law
@given(wild_lives)
def test_only_an_accepted_write_changes_rows(lives: list[Lived]) -> None:
    for life in lives:
        if life.before.storage != life.after.storage:
            assert is_accepted_write(life.fact, life.before, life.after)


def test_rows_are_written_with_the_outcome_that_follows_them() -> None:
    run = active()

    decision = settle(run, writing(StagedWrite(scope="run", value=1), StagedWrite(scope="tick", row_id="a", value=2)))

    assert [fact.kind for fact in decision.facts] == ["storage_written", "tick_settled"]
    assert run.state.storage == Map(
        {RUN_ROW: Stored(rev=3, at=NOON, value=1), ("chat", "c1", "a"): Stored(rev=3, at=NOON, value=2)}
    )
    assert run.state.ticks["c1"].spent == ("w:chat",)


def test_a_write_of_nothing_leaves_no_fact() -> None:
    assert [fact.kind for fact in settle(active(), writing()).facts] == ["tick_settled"]


def test_rows_are_cleared_one_by_one_or_all_of_a_tick() -> None:
    run = begun()
    call(run, writing(*(StagedWrite(scope="tick", row_id=name, value=name) for name in "ab")))
    call(run, writing(StagedWrite(scope="tick", row_id="c", value="c"), clog_id="other"), clog_id="other")
    run.do(commands.BeginTick(tick_id="t2"))
    one = facts.StorageWrite(scope="run", cleared=True)
    run.put(written("t2", facts.StorageWrite(scope="tick", row_id="x", value=1), one))
    assert len(run.state.storage) == 4

    run.do(commands.BeginTick(tick_id="t3"))
    run.put(written("t1", facts.StorageWrite(scope="tick", cleared=True), clog_id="third"))

    assert set(run.state.storage) == {("chat", "t2", "x")}
    run.put(written("t2", facts.StorageWrite(scope="tick", row_id="x", cleared=True), clog_id="fourth"))
    assert set(run.state.storage) == {("chat", "t2", "x")}


def test_a_row_that_changed_since_it_was_read_turns_the_tick_into_a_retry() -> None:
    run = active()
    seen_before = StagedWrite(scope="run", value=2, seen="9")

    decision = settle(run, writing(seen_before), Done("judged by what is no longer so"))

    assert [fact.kind for fact in decision.facts] == ["tick_settled"]
    assert (run.state.status, run.state.last_error, len(run.state.storage)) == ("pending", "STORAGE_CONFLICT", 0)


def test_a_row_is_as_it_was_read_if_its_version_is() -> None:
    run = active()
    settle(run, writing(StagedWrite(scope="run", value=1)))
    staged = writing(StagedWrite(scope="run", value=2, seen="3")).storage

    assert not has_changed(run.state, "c1", staged)
    assert has_changed(RunState(run_id="r1"), "c1", staged)
    assert (version(None), version(run.state.storage[RUN_ROW])) == ("", "3")


@pytest.mark.parametrize(("scope", "name"), [("session", "session/s1/chat"), ("global", "global/local/chat")])
def test_shared_rows_are_judged_by_what_the_slice_shows(scope: str, name: str) -> None:
    run = active()
    staged = writing(StagedWrite(scope=scope, value=1, seen="r0:4", name=name))
    current, changed = replace(run.state, shared=Map({name: "r0:4"})), replace(run.state, shared=Map({name: "r0:5"}))

    assert shared_name(scope, "chat", user_id="local", session_id="s1") == name
    assert not has_changed(current, "c1", staged.storage)
    assert has_changed(changed, "c1", staged.storage)
    kept = decide(current, commands.Settle(**fence("c1"), outcome=Ok(), staged=staged), NOON)
    assert [fact.kind for fact in kept.facts] == ["storage_written", "tick_settled"]
    for fact in kept.facts:
        run.put(fact)
    assert len(run.state.storage) == 0


def test_clearing_all_rows_of_a_tick_conflicts_with_nothing() -> None:
    run = begun()
    call(run, writing(StagedWrite(scope="tick", row_id="a", value=1)))

    staged = writing(StagedWrite(scope="tick", cleared=True), clog_id="other")

    assert not has_changed(run.state, "t1", staged.storage)


def test_a_journal_that_repeats_a_write_counts_it_once() -> None:
    run = begun()
    fact = written("t1", facts.StorageWrite(scope="run", value=1))
    run.put(fact)
    before = run.state

    assert run.put(fact) is None
    assert run.put(written("t1", facts.StorageWrite(scope="run", value="another"))) is None

    assert changes(before, run.state) <= BOOKKEEPING
    assert not is_accepted_write(fact, before, run.state)


def test_only_a_tick_that_holds_its_claim_or_was_begun_writes() -> None:
    write = facts.StorageWrite(scope="run", value=1)
    unknown, late, over = active(), active(), active()
    late.sleep(LEASE)
    over.settle(Ok())

    assert unknown.put(written("nobody", write)) == "stale_claim"
    assert late.put(written("c1", write)) == "expired_claim"
    assert over.put(written("c1", write)) == "stale_claim"
    assert [len(run.state.storage) for run in (unknown, late, over)] == [0, 0, 0]


def test_an_endpoint_that_judged_by_an_old_row_keeps_nothing_but_its_call() -> None:
    run = begun()

    decision = call(run, writing(StagedWrite(scope="run", value=1, seen="9")), spent=("r:chat", "w:chat"))

    assert decision.refusal == "STORAGE_CONFLICT"
    assert [fact.kind for fact in decision.facts] == ["endpoint_called"]
    assert run.state.ticks["t1"].spent == ("r:chat", "w:chat")
    assert len(run.state.storage) == 0


def test_a_row_that_is_there_can_be_cleared() -> None:
    run = begun()
    run.put(written("t1", facts.StorageWrite(scope="run", value=1), facts.StorageWrite(scope="tick", row_id="a")))

    run.do(commands.BeginTick(tick_id="t2"))
    run.put(written("t2", facts.StorageWrite(scope="run", cleared=True)))

    assert set(run.state.storage) == {("chat", "t1", "a")}


def test_rows_are_dated_when_their_commit_is() -> None:
    run = begun()
    run.put(written("t1", facts.StorageWrite(scope="tick", row_id="a", value=1), clog_id="other"))
    run.now = PENDING
    run.put(written("t1", facts.StorageWrite(scope="run", value=1)))

    resolved = run.state.resolved(NOON + SECOND)

    assert {row.at for row in resolved.storage.values()} == {NOON, NOON + SECOND}


def test_a_fork_has_the_rows_of_its_original() -> None:
    run = active()
    settle(run, writing(StagedWrite(scope="run", value=1)))
    before = run.state.storage

    run.put(facts.RunForked(source_run_id="r0", at_rev=4))

    assert run.state.storage == before
