"""A run that begins in one step is the run that its two entries fold to."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from immutables import Map
from msgspec.structs import replace

from holdfast.protocol import facts
from holdfast.protocol.beginning import begun, created
from holdfast.protocol.evolve import fold
from holdfast.protocol.facts import AttemptClaimed, Parent, RunCreated
from holdfast.protocol.state import PENDING, KeyUse, RunState
from holdfast.protocol.values import digest
from tests.protocol.builders import fence
from tests.protocol.strategies import law

creations = st.builds(
    RunCreated,
    session_id=st.just("s1"),
    clog_id=st.sampled_from(["chat", "flow"]),
    user_id=st.sampled_from(["local", "somebody"]),
    queue=st.sampled_from(["default", "slow"]),
    mode=st.sampled_from(["session", "single"]),
    priority=st.integers(-5, 5),
    max_attempts=st.integers(1, 9),
    backoff_us=st.integers(0, 10**9),
    backoff_max_us=st.integers(0, 10**9),
    max_deliveries=st.integers(1, 9),
    resumable=st.booleans(),
    has_input=st.just(True),
    input=st.none() | st.integers() | st.text(max_size=5) | st.just({"text": "hi"}),
    delay_us=st.integers(0, 1_000),
    key=st.none() | st.just("once"),
    key_digest=st.just("d1"),
    parent=st.none() | st.builds(Parent, run_id=st.just("r0"), child_key=st.just("k")),
)


@law
@given(fact=creations, at=st.integers(1, 10**15), later=st.integers(0, 10**9), lease_us=st.integers(1, 10**9))
def test_the_first_claim_in_one_step_is_the_fold_of_both(fact: RunCreated, at: int, later: int, lease_us: int) -> None:
    claimed = AttemptClaimed(**fence("c1"), owner_id="w1", lease_us=lease_us)
    claimed_at = at + fact.delay_us + later
    body_digest = digest(fact.kind, facts.encode(fact)).hex()

    state = begun("r1", fact, at, body_digest, claimed, claimed_at)

    assert state == fold(RunState(run_id="r1"), [(fact, at), (claimed, claimed_at)])


@law
@given(fact=creations, has_input=st.booleans(), at=st.integers(1, 10**15) | st.just(PENDING))
def test_a_creation_in_one_step_is_its_fold(fact: RunCreated, has_input: bool, at: int) -> None:
    before = RunState(run_id="r1", lane_head="other", keys=Map({"k": KeyUse("d", 1)}))
    fact = replace(fact, has_input=has_input)

    state = created(before, fact, at, digest(fact.kind, facts.encode(fact)).hex())

    assert state == fold(before, [(fact, at)])
