"""How long the caller waits before the next try."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.outbox import calculate_backoff_with_jitter

TABLE = {1: 120, 2: 240, 3: 480, 4: 960, 5: 1_920, 6: 3_600, 7: 3_600, 60: 3_600, 10_000: 3_600}
BOUNDS = {1: (84, 156), 2: (168, 312), 3: (336, 624), 4: (672, 1_248), 5: (1_344, 2_496), 6: (2_520, 4_680)}


@pytest.mark.clause("X-29", "X-30", "X-31", "C-7")
@pytest.mark.parametrize(("retry_count", "seconds"), TABLE.items())
def test_the_table_is_exact_without_jitter(retry_count: int, seconds: int) -> None:
    assert calculate_backoff_with_jitter(retry_count, 60, 3_600, 0) == seconds


@pytest.mark.clause("X-29", "X-30")
@pytest.mark.parametrize(("retry_count", "bounds"), BOUNDS.items())
def test_jitter_stays_within_its_bounds_and_uses_them(retry_count: int, bounds: tuple[int, int]) -> None:
    low, high = bounds
    found = [calculate_backoff_with_jitter(retry_count) for _ in range(2_000)]

    assert low <= min(found) <= max(found) <= high
    tenth = (high - low) / 10
    assert min(found) < low + tenth
    assert max(found) > high - tenth


@pytest.mark.clause("X-29")
@given(st.integers(0, 100), st.integers(0, 10), st.integers(0, 10), st.floats(0, 1))
def test_it_is_a_whole_number_and_never_below_a_second(retry: int, base: int, most: int, jitter: float) -> None:
    found = calculate_backoff_with_jitter(retry, base, most, jitter)

    assert isinstance(found, int)
    assert 1 <= found <= max(1, 2 * most)


def test_the_base_itself_belongs_to_no_retry() -> None:
    assert calculate_backoff_with_jitter(0, 60, 3_600, 0) == 60
