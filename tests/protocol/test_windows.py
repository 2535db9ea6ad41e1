"""Windows: what a cron text means on the clocks of a place, and what is started of those that were missed."""

from __future__ import annotations

from datetime import UTC, datetime
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast import InvalidValue
from holdfast.moments import from_us, to_us
from holdfast.protocol import windows
from holdfast.protocol.windows import AT_ONCE_MAX, LATE_US, Timing, due

BERLIN = ZoneInfo("Europe/Berlin")
HOUR_US = 3_600_000_000
TEXTS = (
    *("30 2 * * *", "0 3 * * *", "*/30 * * * *", "0 * * * *", "0 */2 * * *", "15 1-4 * * *", "0,30 2,3 * * *"),
    *("0 12 * * MON-FRI", "0 0 1 * *", "0 0 29 2 *", "0 9 * * 1#1", "0 9 L * *"),
)


def berlin(cron: str) -> Timing:
    return Timing(cron=cron, timezone="Europe/Berlin")


def seen(timing: Timing, start: datetime, count: int) -> list[str]:
    """Windows in order, each found from the one before, as day and time in UTC."""
    found: list[str] = []
    moment: int | None = to_us(start)
    for _ in range(count):
        assert moment is not None
        moment = timing.after(moment)
        assert moment is not None
        found.append(f"{from_us(moment):%d %H:%M}")
    return found


class TestClocksThatChange:
    """In 2030 Berlin goes from 02:00 to 03:00 on March 31 (01:00 UTC), and from 03:00 to 02:00 on October 27."""

    FORWARD = datetime(2030, 3, 30, 23, 30, tzinfo=BERLIN)
    BACK = datetime(2030, 10, 26, 23, 30, tzinfo=BERLIN)

    def test_a_time_that_does_not_exist_is_started_right_after_the_gap(self) -> None:
        assert seen(berlin("30 2 * * *"), self.FORWARD, 3) == ["31 01:00", "01 00:30", "02 00:30"]

    def test_a_time_that_comes_twice_is_started_the_first_time_only(self) -> None:
        assert seen(berlin("30 2 * * *"), self.BACK, 3) == ["27 00:30", "28 01:30", "29 01:30"]

    def test_times_that_the_gap_moves_to_one_instant_are_one_window(self) -> None:
        assert seen(berlin("0,30 2,3 * * *"), self.FORWARD, 3) == ["31 01:00", "31 01:30", "01 00:00"]

    def test_what_goes_by_the_hour_has_no_window_in_the_gap(self) -> None:
        assert seen(berlin("0 * * * *"), self.FORWARD, 4) == ["30 23:00", "31 00:00", "31 01:00", "31 02:00"]

    def test_what_goes_by_the_hour_has_both_hours(self) -> None:
        assert seen(berlin("0 * * * *"), self.BACK, 5) == ["26 22:00", "26 23:00", "27 00:00", "27 01:00", "27 02:00"]

    def test_the_second_passing_of_a_time_is_not_a_window(self) -> None:
        between = datetime(2030, 10, 27, 2, 15, tzinfo=BERLIN, fold=1)

        assert seen(berlin("30 2 * * *"), between, 1) == ["28 01:30"]


@settings(max_examples=150, deadline=None)
@given(
    text=st.sampled_from(TEXTS),
    zone=st.sampled_from(["Europe/Berlin", "UTC", "America/New_York", "Australia/Lord_Howe", "Asia/Kolkata"]),
    start=st.integers(to_us(datetime(2029, 1, 1, tzinfo=UTC)), to_us(datetime(2031, 1, 1, tzinfo=UTC))),
    length=st.integers(1, 400),
)
def test_from_wherever_one_looks_the_windows_are_the_same(text: str, zone: str, start: int, length: int) -> None:
    timing = Timing(cron=text, timezone=zone)
    first = timing.after(start)
    assert first is not None
    end = first + length * HOUR_US
    chain = [first]
    while (following := timing.after(chain[-1])) is not None and following <= end:
        assert following > chain[-1]
        chain.append(following)

    assert list(timing._up_to(start, end)) == chain
    assert timing.newest(first, end) == chain[-1]
    assert due(timing, "all", first, end).windows == tuple(chain[:AT_ONCE_MAX])
    assert due(timing, "latest", first, end) == ((chain[-1],), timing.after(chain[-1]))


class TestMissed:
    NOON = to_us(datetime(2030, 1, 1, 12, tzinfo=UTC))
    EVERY = Timing(cron="0 * * * *", timezone="UTC")

    def test_on_time_all_policies_start_the_one_window(self) -> None:
        for missed in windows.MISSED:
            assert due(self.EVERY, missed, self.NOON, self.NOON) == ((self.NOON,), self.NOON + HOUR_US)

    def test_skip_starts_what_is_only_a_little_late(self) -> None:
        assert due(self.EVERY, "skip", self.NOON, self.NOON + LATE_US).windows == (self.NOON,)
        assert due(self.EVERY, "skip", self.NOON, self.NOON + LATE_US + 1) == ((), self.NOON + HOUR_US)

    def test_skip_after_a_day_starts_only_what_is_on_time(self) -> None:
        now = self.NOON + 24 * HOUR_US

        assert due(self.EVERY, "skip", self.NOON, now) == ((now,), now + HOUR_US)
        assert due(self.EVERY, "skip", self.NOON, now + HOUR_US // 2) == ((), now + HOUR_US)

    def test_all_is_bounded_and_goes_on_where_it_stopped(self) -> None:
        now = self.NOON + 150 * HOUR_US

        first = due(self.EVERY, "all", self.NOON, now)
        assert first.next_at is not None
        rest = due(self.EVERY, "all", first.next_at, now)

        assert [len(first.windows), len(rest.windows)] == [AT_ONCE_MAX, 51]
        assert rest.windows[-1] == now

    def test_the_newest_of_years_is_found_at_once(self) -> None:
        every_minute = Timing(cron="* * * * *", timezone="Europe/Berlin")
        now = self.NOON + 10 * 365 * 24 * HOUR_US

        assert due(every_minute, "latest", self.NOON, now) == ((now,), now + 60_000_000)

    def test_an_instant_has_one_window(self) -> None:
        once = Timing(at=self.NOON)

        assert due(once, "latest", self.NOON, self.NOON + HOUR_US) == ((self.NOON,), None)
        assert due(once, "skip", self.NOON, self.NOON + HOUR_US) == ((), None)
        assert once.after(self.NOON) is None

    def test_a_window_that_the_text_no_longer_means_is_still_started(self) -> None:
        odd = self.NOON + 17

        assert due(self.EVERY, "latest", odd, odd + 1) == ((odd,), self.NOON + HOUR_US)


@pytest.mark.parametrize(
    "cron",
    [
        *("", "* * * *", "* * * * * *", "60 * * * *", "* 24 * * *", "a * * * *", "*/0 * * * *", "5-1 * * * *"),
        *("0 0 30 2 *", "@daily", "* * * * 9", "0 0 0 * *", "L/2 * * * *", "* * L-3 * *", 5, b"* * * * *"),
    ],
)
def test_a_text_that_is_no_cron_is_refused(cron: str) -> None:
    with pytest.raises(InvalidValue) as caught:
        windows.checked(cron=cron, timezone=None, at=None)

    assert caught.value.code == "invalid_cron"


@pytest.mark.parametrize("zone", ["Europe/Bielefeld", "", "../../etc/passwd", "/etc/passwd", "Europe", "a\x00b", 5])
def test_a_place_that_is_unknown_is_refused(zone: str) -> None:
    with pytest.raises(InvalidValue) as caught:
        windows.checked(cron="* * * * *", timezone=zone, at=None)

    assert caught.value.code == "invalid_timezone"


def test_spaces_in_a_text_mean_nothing() -> None:
    assert windows.checked(cron=" 0  3 * *  mon ", timezone=None, at=None) == Timing(cron="0 3 * * mon", timezone="UTC")


def test_at_the_end_of_the_calendar_there_is_no_window() -> None:
    last = to_us(datetime(9999, 12, 31, 23, 59, 30, tzinfo=UTC))

    assert Timing(cron="* * * * *", timezone="UTC").after(last) is None
    assert Timing(cron="0 3 * * *", timezone="America/New_York").after(last - HOUR_US) is None
