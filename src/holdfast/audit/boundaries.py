"""A proposal that is put to a person: the answer to the boundary is the decision on the proposal, in one commit."""

from __future__ import annotations

from typing import Any, NamedTuple

from msgspec.structs import replace

from holdfast.audit.statements import Step, proposal_key
from holdfast.protocol import audit as rules
from holdfast.protocol.audit import Proposal
from holdfast.protocol.state import RunState
from holdfast.store import Store

METADATA_KEY = "proposal"
"""What a boundary's metadata call the proposal that it is about."""
DECISIONS = {"approve": "approved", "reject": "denied"}

# Should the proposal have changed since it was read, there is nothing to decide: the missing key refuses the commit.
_DECIDE = """
    INSERT INTO {s}proposals (request_id, validity, asserted, created, digest, user_id, diffs_json, confidence, status,
        actor, decided_at)
    SELECT p.request_id, CASE WHEN r.at > p.validity THEN r.at ELSE p.validity + 1 END, 1, p.created,
        CAST($3 AS text), p.user_id, p.diffs_json, p.confidence, CAST($4 AS text), CAST($5 AS text), r.at
    FROM (SELECT 1 AS one) o
    LEFT JOIN {s}runs r ON r.run_id = $2
    LEFT JOIN {s}proposals p ON p.request_id = $1 AND p.digest = $6 AND p.status = 'pending'
        AND p.validity = (SELECT max(x.validity) FROM {s}proposals x WHERE x.request_id = $1)
"""


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


async def verdict(
    store: Store[RunState], run_id: str, metadata: dict[str, Any], action: str, actor: str | None
) -> Verdict:
    """The decision on the proposal that this boundary is about; nothing where it is about none, or it is decided so.

    One that was decided otherwise raises `Conflict` (`invalid_transition`).
    """
    request_id = metadata.get(METADATA_KEY)
    decision = DECISIONS.get(action)
    if not isinstance(request_id, str) or decision is None:
        return Verdict()
    key = proposal_key(request_id)
    row = (await store.latest_facts([key]))[key]
    if row is None:
        return Verdict()
    last = _proposal(row)
    after = rules.decided(last, request_id, decision, actor)
    if after is None:
        return Verdict()
    params = (request_id, run_id, rules.proof(after), after.status, after.actor, last.digest)
    return Verdict(((store.qualified(_DECIDE), params),), last, after)


def _proposal(row: tuple[Any, ...]) -> Proposal:
    return Proposal(**dict(zip(Proposal.__struct_fields__, row, strict=True)))
