"""How long to wait before the next try."""

from __future__ import annotations

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from holdfast.protocol.backoff import Backoff, RetryPolicy
from tests.protocol.builders import SECOND, Run
from tests.protocol.strategies import law

RUN = Backoff(base_us=SECOND, cap_us=60 * SECOND)
OUTBOX = Backoff(base_us=60 * SECOND, cap_us=3600 * SECOND, jitter=0.3, first_exponent=1)


@pytest.mark.clause("O-21", "H-O4")
def test_the_delays_of_a_run_double_from_one_second_and_stop_at_sixty() -> None:
    delays = [RUN.delay_us(attempt) // SECOND for attempt in range(1, 11)]

    assert delays == [1, 2, 4, 8, 16, 32, 60, 60, 60, 60]


@pytest.mark.clause("C-7")
def test_the_outbox_begins_one_doubling_later() -> None:
    delays = [OUTBOX.delay_us(attempt) // SECOND for attempt in range(1, 8)]

    assert delays == [120, 240, 480, 960, 1920, 3600, 3600]


@pytest.mark.clause("C-7")
def test_jitter_is_applied_after_the_cap() -> None:
    assert OUTBOX.delay_us(9, spread=-1.0) == 2520 * SECOND
    assert OUTBOX.delay_us(9, spread=1.0) == 4680 * SECOND


@law
@given(st.integers(0, 1 << 56), st.integers(0, 1 << 56), st.integers(0, 1 << 31))
@example(1 << 55, (1 << 55) - 1, 1)  # more digits than a float holds
def test_a_delay_never_exceeds_its_cap_and_never_shrinks(base_us: int, cap_us: int, attempt: int) -> None:
    policy = Backoff(base_us, cap_us)

    assert 0 <= policy.delay_us(attempt) <= policy.delay_us(attempt + 1) <= cap_us


@pytest.mark.clause("O-05")
def test_a_run_has_the_default_retry_policy_unless_told_otherwise() -> None:
    policy, state = RetryPolicy(), Run().state

    assert (policy.max_attempts, policy.backoff_ms, policy.backoff_max_ms) == (3, 1_000, 60_000)
    assert (state.max_attempts, state.backoff_us, state.backoff_max_us) == (3, SECOND, 60 * SECOND)


@pytest.mark.clause("O-05")
@pytest.mark.parametrize("field", ["max_attempts", "backoff_us", "backoff_max_us"])
def test_each_retry_setting_is_overridden_on_its_own(field: str) -> None:
    plain, told = Run().state, Run(**{field: 7}).state

    settings = ("max_attempts", "backoff_us", "backoff_max_us")
    assert {name for name in settings if getattr(plain, name) != getattr(told, name)} == {field}
    assert getattr(told, field) == 7
