"""A proposal that is put to a person: the answer to the boundary and the decision on the proposal are one commit.

Whichever of the two a caller gives, it goes through the run that asks: there its revision and the proposal's key are
locked, so of several who decide at once one decides both.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from msgspec.structs import replace

from holdfast.audit.statements import Statement, Step, fact_of, follow, proposal_key
from holdfast.errors import Conflict, DatabaseError
from holdfast.journal import Journal
from holdfast.protocol import audit as rules
from holdfast.protocol.audit import Proposal
from holdfast.protocol.commands import Resolve
from holdfast.protocol.state import RunState
from holdfast.store import Store

DECISIONS = {"approve": "approved", "reject": "denied"}
LOSSES_MAX = 5

_ASKING = """
    SELECT run_id, boundary_step, boundary_rev
    FROM {s}runs
    WHERE boundary_proposal = $1 AND (CAST($2 AS text) IS NULL OR user_id = $2)
    ORDER BY created_at, run_id
    LIMIT 1
"""
# Should the proposal have changed since it was read, there is nothing to decide: the missing key refuses the commit.
_DECIDE = """
    INSERT INTO {s}proposals (request_id, validity, asserted, created, digest, user_id, diffs_json, confidence, status,
        actor, decided_at)
    SELECT p.request_id, CASE WHEN r.at > p.validity THEN r.at ELSE p.validity + 1 END, 1, p.created,
        CAST($3 AS text), p.user_id, p.diffs_json, p.confidence, CAST($4 AS text), CAST($5 AS text), r.at
    FROM (SELECT 1 AS one) o
    LEFT JOIN {s}runs r ON r.run_id = $2
    LEFT JOIN {s}proposals p ON p.request_id = $1 AND p.validity = CAST($6 AS bigint)
        AND p.validity = (SELECT max(x.validity) FROM {s}proposals x WHERE x.request_id = $1)
"""


class Question(NamedTuple):
    """A run that asks about a proposal."""

    run_id: str
    step: str
    rev: int


class Verdict(NamedTuple):
    """What the answer to a boundary adds to its commit, and the decision that this is."""

    statements: tuple[tuple[str, tuple[Any, ...]], ...] = ()
    last: Proposal | None = None
    after: Proposal | None = None

    def step(self, at: int) -> Step | None:
        """The decision as it stands once its commit has its instant."""
        if self.last is None or self.after is None:
            return None
        validity = max(at, self.last.validity + 1)
        return Step(
            proposal_key(self.last.request_id), self.last, replace(self.after, validity=validity, decided_at=at)
        )

    def says(self, action: str) -> bool:
        """Is the proposal decided so, by this or before?"""
        fact = self.after or self.last
        return fact is not None and rules.is_decided(fact.status, DECISIONS[action])


async def verdict(
    store: Store[RunState], run_id: str, request_id: str, action: str, actor: str | None, user_id: str | None
) -> Verdict:
    """What this answer decides about the proposal; nothing where it is unknown to the user, or decided so already.

    One that was decided otherwise raises `Conflict` (`invalid_transition`).
    """
    decision = DECISIONS.get(action)
    last = await _latest(store, request_id)
    if decision is None or last is None or user_id not in (None, last.user_id):
        return Verdict()
    said = Statement(proposal_key(request_id), lambda fact: rules.decided(fact, request_id, decision, actor))
    return _judged(store, run_id, last, said)


async def asking(store: Store[RunState], request_id: str, user_id: str | None) -> Question | None:
    """The first of the runs, of one user or all, that ask about this proposal."""
    rows = await store.fetch(_ASKING, request_id, user_id)
    return Question(*rows[0]) if rows else None


async def answer(journal: Journal, decision: Statement) -> list[Step] | None:
    """Give the decision to every run that asks about its proposal; None if none asks, or none is answered by it.

    It is taken in the commit that answers the first of them. Each other run is a commit of its own: should we die
    between them, the decision stands, and saying it again answers the rest.
    """
    said = decision.answer
    if said is None:
        return None
    (request_id,) = decision.key.values
    answered: list[Step] | None = None
    losses = 0
    while (question := await asking(journal.store, request_id, decision.user_id)) is not None:
        found = _judged(journal.store, question.run_id, await _latest(journal.store, request_id), decision)
        if not found.says(said.action):
            break
        at = await _resolve(journal, question, decision, found)
        if at is None:
            losses += 1
            if losses > LOSSES_MAX:
                raise Conflict(f"proposal {request_id} keeps changing; look at it again, then decide")
            continue
        answered = [*(answered or []), *filter(None, [found.step(at)])]
    return answered


async def _resolve(journal: Journal, question: Question, decision: Statement, found: Verdict) -> int | None:
    """Answer one run; the instant, or None if the run or the proposal moved on meanwhile."""
    assert decision.answer is not None
    command = Resolve(
        action=decision.answer.action,
        actor=decision.answer.actor,
        step=question.step,
        seen_rev=question.rev,
        statements=found.statements,
    )
    try:
        executed = await journal.execute(question.run_id, command)
    except DatabaseError as error:
        if not found.statements or error.code != "write_rejected":
            raise
        return None
    refusal = executed.decision.refusal
    if refusal is not None and await asking(journal.store, decision.key.values[0], decision.user_id) == question:
        who = "" if command.actor else "; say who decides"
        raise Conflict(f"run {question.run_id} asks about this and does not take it: {refusal}{who}", code=refusal)
    return None if refusal is not None else executed.at


async def _latest(store: Store[RunState], request_id: str) -> Proposal | None:
    key = proposal_key(request_id)
    found = fact_of(key.table, (await store.latest_facts([key]))[key])
    assert found is None or isinstance(found, Proposal)
    return found


def _judged(store: Store[RunState], run_id: str, last: Proposal | None, said: Statement) -> Verdict:
    """The decision on the latest fact, and the statements that take it with a commit of the run."""
    steps = follow({said.key: last}, [said])
    if last is None or not steps:
        return Verdict(last=last)
    after = steps[0].after
    assert isinstance(after, Proposal)
    params = (last.request_id, run_id, rules.proof(after), after.status, after.actor, last.validity)
    return Verdict((*store.locking(said.key), (store.qualified(_DECIDE), params)), last, after)
