"""Laws of runs: the rows are the fold (P1, P3–P5, P7, P8), and what claims, ends and signals may do (D, R)."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence

import msgspec
from msgspec.structs import replace

from holdfast.errors import InvalidEntry
from holdfast.invariants.problems import Problem
from holdfast.invariants.threads import THREAD_LAWS, head_is_the_last
from holdfast.journal import rows
from holdfast.journal.entries import fact_of
from holdfast.protocol import facts
from holdfast.protocol.catalog import Listed
from holdfast.protocol.evolve import evolve
from holdfast.protocol.facts import Fact
from holdfast.protocol.state import RunState
from holdfast.store import INDEXES, RUNS, UNBOUND, Entry, Row, RunRows

TOMBSTONES = INDEXES["tombstones"]

REST = ("idle", "done", "failed", "cancelled")
MOVING = ("pending", "active", "waiting")

STATES_COMPARED = 16


class RunSnapshot(msgspec.Struct):
    """One run's rows and entries, and its state after each entry as far as they can be read."""

    run_id: str
    stored: RunRows
    facts: list[Fact | None]
    states: list[RunState]

    @property
    def thread(self) -> str:
        return f"run:{self.run_id}"

    @property
    def entries(self) -> list[Entry]:
        return self.stored.entries

    @property
    def whole(self) -> RunState | None:
        """The state after the last entry, if every entry could be read."""
        return self.states[-1] if self.states and len(self.states) == len(self.entries) else None

    def steps(self) -> Iterator[tuple[RunState, Fact, RunState]]:
        """Each readable entry with the states before and after it."""
        before = RunState(run_id=self.run_id)
        for fact, after in zip(self.facts, self.states, strict=False):
            assert fact is not None
            yield before, fact, after
            before = after

    def column(self, name: str) -> object:
        """A value of the run's own row, or None without a row."""
        found = self.stored.tables["runs"]
        return found[0][RUNS.names.index(name)] if found else None

    @property
    def recorded_head(self) -> int | None:
        """The last revision as the run's row, or its tombstone, knows it; None where neither says."""
        rev = self.column("rev")
        stones = [row[TOMBSTONES.names.index("rev")] for row in self.stored.tables["tombstones"]]
        return rev if isinstance(rev, int) else next((rev for rev in stones if rev > 0), None)


def snapshot(run_id: str, stored: RunRows) -> RunSnapshot:
    """Fold the entries once; every law then looks at the same picture."""
    decoded = [_fact(entry) for entry in stored.entries]
    states: list[RunState] = []
    state = RunState(run_id=run_id)
    for entry, fact in zip(stored.entries, decoded, strict=True):
        if fact is None:
            break
        state = evolve(state, fact, entry.at)
        states.append(state)
    return RunSnapshot(run_id, stored, decoded, states)


def entries_decode(run: RunSnapshot) -> Iterator[Problem]:
    """J10: every entry of a run is a known fact."""
    for entry, fact in zip(run.entries, run.facts, strict=True):
        if fact is None:
            yield Problem("J10", run.thread, f"entry {entry.rev} ({entry.kind}) cannot be read as a fact")


def head_is_the_row(run: RunSnapshot) -> Iterator[Problem]:
    """J11: the revision in the run's row, or in its tombstone, is the head of its thread."""
    head = run.recorded_head
    if head is not None:
        yield from head_is_the_last(run.entries, run.thread, head)
    elif run.entries:
        what = "tombstone" if run.whole and run.whole.deleted else "row"
        yield Problem("P7", run.thread, f"the run has entries but no {what}")


def rows_are_the_fold(run: RunSnapshot) -> Iterator[Problem]:
    """P1, P7: refolding the entries gives exactly the rows, field by field."""
    if run.whole is None or run.recorded_head is None:
        return
    for name, wanted in rows.all_rows(run.whole).items():
        yield from _compare(run.thread, name, wanted, run.stored.tables[name])


def rows_have_a_run(run: RunSnapshot) -> Iterator[Problem]:
    """P7: no row speaks of a run that is not there. Where the database does not see to it, we look."""
    if run.entries or run.recorded_head is not None:
        return
    for name in UNBOUND:
        table = INDEXES[name]
        for row in run.stored.tables[name]:
            key = [row[table.names.index(column)] for column in table.key]
            yield Problem("P7", run.thread, f"{name}{key} is there, its run is not")


def fold_is_repeatable(run: RunSnapshot) -> Iterator[Problem]:
    """P3, P5: folding again gives the same state, and never fails on an entry that can be read."""
    again = snapshot(run.run_id, run.stored).states
    # A state grows with its run, so comparing all of them would cost the square: a few on the way, and the last.
    places = {*range(0, len(run.states), len(run.states) // STATES_COMPARED + 1), len(run.states) - 1}
    if len(again) != len(run.states) or any(again[place] != run.states[place] for place in places if run.states):
        yield Problem("P5", run.thread, "two folds of the same entries differ")


def duplicates_change_nothing(run: RunSnapshot) -> Iterator[Problem]:
    """P4: a fact that was accepted changes nothing when it comes again at the same instant."""
    for _, fact, after in run.steps():
        again = evolve(after, fact, after.at)
        if not _same(after, again):
            yield Problem("P4", run.thread, f"repeating entry {after.rev} ({fact.kind}) would change the run")


def nothing_follows_the_end(run: RunSnapshot) -> Iterator[Problem]:
    """R1, D7: a run that is over stays as it ended."""
    ends = ("status", "finished_at", "output_rev", "attempt", "last_error", "work", "boundary", "ticks")
    for before, fact, after in run.steps():
        # A fork lets go of its original's ticks.
        kept = ends[:-1] if isinstance(fact, facts.RunForked) else ends
        if before.terminal and any(getattr(before, name) != getattr(after, name) for name in kept):
            yield Problem("R1", run.thread, f"entry {after.rev} ({fact.kind}) changed a run that was over")


def claims_do_not_overlap(run: RunSnapshot) -> Iterator[Problem]:
    """D1, D3: an item is claimed only when it is visible and nobody's lease on it still runs."""
    for before, fact, after in run.steps():
        if not isinstance(fact, facts.AttemptClaimed) or _same(before, after):
            continue
        work = before.work.get(fact.runnable_key)
        if work is None or after.at < work.visible_at:
            yield Problem("D3", run.thread, f"entry {after.rev} claims what was not visible")
        elif work.claim is not None and after.at < work.claim.lease_until:
            yield Problem("D1", run.thread, f"entry {after.rev} claims what another claim still held")


def results_carry_the_claim(run: RunSnapshot) -> Iterator[Problem]:
    """D2: every accepted heartbeat and result is of the claim that held the item at that instant."""
    for before, fact, after in run.steps():
        if not isinstance(fact, facts.Fenced) or isinstance(fact, facts.AttemptClaimed) or _same(before, after):
            continue
        work = before.work.get(fact.runnable_key)
        claim = work.claim if work else None
        held = claim is not None and (claim.claim_id, claim.claim_token_hash) == (fact.claim_id, fact.claim_token_hash)
        if not held or (claim is not None and after.at >= claim.lease_until):
            yield Problem("D2", run.thread, f"entry {after.rev} ({fact.kind}) was accepted from a lost claim")


def tokens_serve_one_claim(run: RunSnapshot) -> Iterator[Problem]:
    """D14: one token hash never serves two claims."""
    seen: dict[str, str] = {}
    for before, fact, after in run.steps():
        if not isinstance(fact, facts.AttemptClaimed) or _same(before, after):
            continue
        if seen.setdefault(fact.claim_token_hash, fact.claim_id) != fact.claim_id:
            yield Problem("D14", run.thread, f"claims {seen[fact.claim_token_hash]} and {fact.claim_id} share a token")


def signals_are_consumed_in_order(run: RunSnapshot) -> Iterator[Problem]:
    """R8: a signal is consumed at most once, and none is passed over; a flow passes over those of other names."""
    for before, fact, after in run.steps():
        gone = [seq for seq in before.mailbox if seq not in after.mailbox]
        waiting = list(before.mailbox)
        if isinstance(fact, facts.SignalTaken):
            names = {before.signals[seq].name for seq in gone}
            waiting = [seq for seq in waiting if before.signals[seq].name in names and seq != before.input_rev]
        if gone and gone != waiting[: len(gone)]:
            yield Problem("R8", run.thread, f"entry {after.rev} consumed signal {gone[-1]} before an older one")


def work_is_claimable_or_owned(run: RunSnapshot) -> Iterator[Problem]:
    """D9: a run that should move has an open item; a run at rest or over has none."""
    status, items = run.column("status"), len(run.stored.tables["work"])
    if status in MOVING and not items:
        yield Problem("D9", run.thread, f"the run is {status} but nothing of it can be claimed")
    if status in REST and items:
        yield Problem("D9", run.thread, f"the run is {status} but {items} of its items are still open")


def lanes_are_kept(run: RunSnapshot) -> Iterator[Problem]:
    """R14: in a lane, a run with something to do stands in line, and its work is due only while it is the head."""
    for _, fact, after in run.steps():
        if after.lane is None:
            continue
        if after.work and after.ticket is None:
            yield Problem("R14", run.thread, f"entry {after.rev} ({fact.kind}) leaves work that stands in no line")
        held = after.ticket is not None and after.ticket.held
        if any(work.blocked == held for work in after.work.values()):
            yield Problem("R14", run.thread, f"entry {after.rev} ({fact.kind}) leaves work that is due out of turn")


RUN_LAWS: tuple[Callable[[RunSnapshot], Iterator[Problem]], ...] = (
    entries_decode,
    head_is_the_row,
    rows_are_the_fold,
    rows_have_a_run,
    fold_is_repeatable,
    duplicates_change_nothing,
    nothing_follows_the_end,
    claims_do_not_overlap,
    results_carry_the_claim,
    tokens_serve_one_claim,
    signals_are_consumed_in_order,
    work_is_claimable_or_owned,
    lanes_are_kept,
)


def check_run(run: RunSnapshot) -> list[Problem]:
    """Every law on one run."""
    problems = [problem for law in THREAD_LAWS for problem in law(run.entries, run.thread)]
    return problems + [problem for law in RUN_LAWS for problem in law(run)]


def rows_disagree(run: RunSnapshot) -> bool:
    """Do the rows say something else than the entries? No law of the journal is asked."""
    return any(problem for law in (head_is_the_row, rows_are_the_fold) for problem in law(run))


def journal_is_sound(run: RunSnapshot) -> bool:
    """May rows be made from these entries? Not if one was changed, is out of place or is missing, the last included."""
    last = run.entries[-1].rev if run.entries else 0
    if run.whole is None or not run.whole.exists or (run.recorded_head or 0) > last:
        return False
    return not any(problem for law in THREAD_LAWS for problem in law(run.entries, run.thread))


def catalog_is_complete(listed: Mapping[str, Listed], stored: Sequence[Row]) -> Iterator[Problem]:
    """P8: every run stands in the catalog exactly once, in its own queue, ended as its row says."""
    names = [RUNS.names.index(name) for name in ("run_id", "queue", "clog_id", "status")]
    rows_by_id = {row[names[0]]: tuple(row[name] for name in names[1:]) for row in stored}
    for run_id in rows_by_id.keys() ^ listed.keys():
        yield Problem("P8", f"run:{run_id}", "it stands only in one of catalog and runs")
    for run_id in rows_by_id.keys() & listed.keys():
        queue, clog_id, status = rows_by_id[run_id]
        entry = listed[run_id]
        ended = status if status in ("done", "failed", "cancelled") else None
        if (entry.queue, entry.clog_id, entry.ended) != (queue, clog_id, ended):
            yield Problem("P8", f"run:{run_id}", f"the catalog says {entry}, the row {(queue, clog_id, status)}")


def handoffs_are_open(open_handoffs: Sequence[Row], states: Mapping[str, RunState]) -> Iterator[Problem]:
    """R6: an open handoff has a cause in its source."""
    for target, source, kind, rev in open_handoffs:
        state = states.get(source)
        if state is not None and rev > state.rev:
            yield Problem(
                "R6", f"run:{source}", f"its handoff {kind} to {target} names entry {rev}, which is not there"
            )


def _same(before: RunState, after: RunState) -> bool:
    """Nothing but the revision, the instant and the anomalies moved."""
    return replace(after, rev=before.rev, at=before.at, anomalies=before.anomalies) == before


def _compare(thread: str, name: str, wanted: list[Row], found: list[Row]) -> Iterator[Problem]:
    table = RUNS if name == RUNS.name else INDEXES[name]
    places = [table.names.index(column) for column in table.key]
    expected = {tuple(row[place] for place in places): row for row in wanted}
    stored = {tuple(row[place] for place in places): row for row in found}
    for key in sorted(expected.keys() | stored.keys(), key=str):
        where = f"{name}{list(key)}"
        if key not in stored:
            yield Problem("P7", thread, f"{where} is missing")
        elif key not in expected:
            yield Problem("P7", thread, f"{where} is not in the journal")
        else:
            yield from _compare_row(thread, where, table.names, expected[key], stored[key])


def _compare_row(thread: str, where: str, names: Sequence[str], wanted: Row, found: Row) -> Iterator[Problem]:
    for name, want, have in zip(names, wanted, found, strict=True):
        if want != have:
            yield Problem("P1", thread, f"{where}.{name} is {have!r}, the journal says {want!r}")


def _fact(entry: Entry) -> Fact | None:
    try:
        return fact_of(entry)
    except InvalidEntry:
        return None
