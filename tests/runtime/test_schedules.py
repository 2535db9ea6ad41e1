"""Schedules: what is started by itself, once for each window, whatever happens to the row or the run meanwhile."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any
from zoneinfo import ZoneInfo

import pytest

from holdfast import Conflict, Done, Holdfast, InvalidValue, NotFound, RetryPolicy, Schedule
from holdfast.identity import window_id
from holdfast.journal import schedules as stored
from holdfast.moments import to_us
from holdfast.protocol.windows import AT_ONCE_MAX
from tests.conftest import FakeClock, Opener
from tests.contract.builders import count, entries
from tests.runtime.clogs import answering, inputs, shared

START = datetime(2030, 1, 1, tzinfo=UTC)
DAILY: dict[str, Any] = {"clog_id": "report", "session_id": "s", "cron": "0 3 * * *"}
HOURLY: dict[str, Any] = {**DAILY, "cron": "0 * * * *"}


def at(*clock: int) -> datetime:
    """An instant of the first day."""
    return START.replace(hour=clock[0], minute=clock[1] if len(clock) > 1 else 0)


async def started(hf: Holdfast) -> list[datetime]:
    """The windows of all runs that schedules started, as their first entries tell, in order."""
    rows = await hf.journal.store.fetch("SELECT run_id FROM {s}runs")
    told = [(await entries(hf, run_id))[0].data.get("metadata", {}) for (run_id,) in rows]
    return sorted(datetime.fromisoformat(each["schedule"]["window"]) for each in told if "schedule" in each)


async def known(hf: Holdfast, name: str = "nightly", **whose: Any) -> Schedule:
    found = await hf.schedules.get(name, **whose)
    assert found is not None
    return found


class TestWindows:
    @pytest.mark.clause("SB-16")
    async def test_a_window_starts_one_run_when_it_comes(self, hf: Holdfast, clock: FakeClock) -> None:
        seen = answering(hf, Done(), Done(), name="report")
        await hf.schedules.put("nightly", **DAILY, input={"for": "ada"})

        early = await hf.advance()
        clock.advance(3 * 3_600)
        first, again = await hf.advance(), await hf.advance()
        clock.advance(86_400)
        await hf.advance()

        assert (early.advanced, early.next_wake_at) == (0, at(3))
        assert (first.advanced, first.next_wake_at, again.advanced) == (1, at(3) + timedelta(days=1), 0)
        assert inputs(seen) == [{"for": "ada"}] * 2
        assert await started(hf) == [at(3), at(3) + timedelta(days=1)]

    async def test_local_time_is_meant_where_a_place_is_named(self, hf: Holdfast) -> None:
        put = await hf.schedules.put("nightly", **DAILY, timezone="Europe/Berlin")

        assert (put.next_at, put.timezone) == (at(2), "Europe/Berlin")

    async def test_both_changes_of_the_clocks_are_lived_through(self, hf: Holdfast, clock: FakeClock) -> None:
        await hf.schedules.put("n", **{**DAILY, "cron": "30 2 * * *"}, timezone="Europe/Berlin", missed="all")
        clock.advance(400 * 86_400)
        while await hf.journal.sweep():
            pass

        found = await started(hf)

        place = ZoneInfo("Europe/Berlin")
        moved = {f"{each:%m-%d}": f"{each.astimezone(place):%H:%M}" for each in found}
        assert len(found) == len({each.astimezone(place).date() for each in found}) == 400
        assert {day for day, local in moved.items() if local != "02:30"} == {"03-31"}
        assert (moved["03-31"], found.count(datetime(2030, 10, 27, 0, 30, tzinfo=UTC))) == ("03:00", 1)

    async def test_an_instant_comes_once(self, hf: Holdfast, clock: FakeClock) -> None:
        answering(hf, Done(), name="report")
        put = await hf.schedules.put("once", clog_id="report", session_id="s", at=at(1))

        assert put.next_at == at(1)
        assert await hf.drain() == 1

        over = await known(hf, "once")
        assert (over.next_at, over.last_at, clock.now()) == (None, at(1), at(1))
        assert (await hf.advance()).next_wake_at is None
        assert await started(hf) == [at(1)]

    async def test_an_instant_that_has_passed_was_missed(self, hf: Holdfast) -> None:
        past = START - timedelta(hours=1)
        await hf.schedules.put("old", clog_id="report", session_id="s", at=past)
        await hf.schedules.put("skipped", clog_id="report", session_id="s", at=past, missed="skip")

        await hf.journal.sweep()

        assert await started(hf) == [past]
        assert (await known(hf, "skipped")).next_at is None

    async def test_a_cron_does_not_keep_drain_busy_for_ever(self, hf: Holdfast, clock: FakeClock) -> None:
        answering(hf, Done(), name="report")
        await hf.schedules.put("nightly", **DAILY)

        assert await hf.drain() == 0
        assert clock.now() == START

    @pytest.mark.clause("SB-1", "C-17")
    async def test_the_run_says_what_started_it(self, hf: Holdfast, clock: FakeClock) -> None:
        await hf.schedules.put("nightly", **DAILY, metadata={"team": "a"})
        clock.advance(4 * 3_600)
        await hf.journal.sweep()
        run_id = (await known(hf)).last_run_id
        assert run_id is not None

        (created,) = await entries(hf, run_id)
        seen = await hf.inspect(run_id)

        origin = {"name": "nightly", "window": "2030-01-01T03:00:00+00:00"}
        assert created.data["metadata"] == {"team": "a", "schedule": origin}
        assert seen is not None
        (receipt,) = seen.command_history
        assert (receipt.command, receipt.details["schedule"]) == ("start", origin)

    async def test_options_of_a_run_are_options_of_its_schedule(self, hf: Holdfast, clock: FakeClock) -> None:
        told: dict[str, Any] = {"queue": "slow", "lane": "one", "priority": 7, "max_deliveries": 2}
        put = await hf.schedules.put("nightly", **DAILY, **told, retry=RetryPolicy(max_attempts=9))
        clock.advance(4 * 3_600)
        await hf.journal.sweep()

        run = await hf.get_run(str((await known(hf)).last_run_id))

        assert (put.queue, put.lane, put.priority) == ("slow", "one", 7)
        assert run is not None
        assert (run.queue, run.lane, run.max_attempts, run.pending_input) == ("slow", "one", 9, None)

    async def test_a_flow_is_named_by_itself_and_brings_its_retries(self, hf: Holdfast, clock: FakeClock) -> None:
        @hf.flow("digest", retry=RetryPolicy(max_attempts=4))
        async def digest(ctx: Any, input: str) -> str:
            return input.upper()

        await hf.schedules.put("once", clog_id=digest, session_id="s", at=at(1), input="news")
        await hf.drain()

        run = await hf.get_run(str((await known(hf, "once")).last_run_id))
        assert run is not None
        assert (run.status, run.output, run.max_attempts) == ("done", "NEWS", 4)


class TestMissed:
    """A day in which nobody swept: 24 windows."""

    @pytest.mark.parametrize(
        ("missed", "windows"),
        [
            ("latest", [at(0) + timedelta(days=1)]),
            ("all", [at(0) + timedelta(hours=hour) for hour in range(1, 25)]),
            ("skip", []),
        ],
    )
    async def test_policies(self, hf: Holdfast, clock: FakeClock, missed: Any, windows: list[datetime]) -> None:
        await hf.schedules.put("hourly", **HOURLY, missed=missed)
        clock.advance(86_400 + 1_800)

        result = await hf.advance()

        assert await started(hf) == windows
        assert result.next_wake_at == at(1) + timedelta(days=1)

    async def test_all_is_bounded_for_each_sweep_and_asks_to_come_back_at_once(
        self, hf: Holdfast, clock: FakeClock
    ) -> None:
        await hf.schedules.put("hourly", **HOURLY, missed="all")
        clock.advance((AT_ONCE_MAX + 20) * 3_600)

        first = await hf.advance()
        some = await started(hf)
        await hf.advance()

        assert (len(some), first.next_wake_at) == (AT_ONCE_MAX, clock.now())
        assert len(await started(hf)) == AT_ONCE_MAX + 20

    async def test_a_program_that_puts_its_schedules_at_its_start_misses_nothing(
        self, hf: Holdfast, clock: FakeClock
    ) -> None:
        await hf.schedules.put("hourly", **HOURLY, missed="all", input=1)
        clock.advance(2 * 3_600 + 1)
        await hf.schedules.put("hourly", **HOURLY, missed="all", input=2)

        await hf.journal.sweep()

        assert await started(hf) == [at(1), at(2)]


class TestLiveChanges:
    async def test_other_times_count_from_now(self, hf: Holdfast, clock: FakeClock) -> None:
        await hf.schedules.put("nightly", **HOURLY, missed="all")
        clock.advance(90 * 60)

        changed = await hf.schedules.put("nightly", **{**HOURLY, "cron": "45 * * * *"}, missed="all")
        await hf.journal.sweep()

        assert changed.next_at == at(1, 45)
        assert await started(hf) == []

    async def test_the_same_again_writes_nothing(self, hf: Holdfast, clock: FakeClock) -> None:
        first = await hf.schedules.put("nightly", **DAILY, input=[1])
        clock.advance(60)

        assert await hf.schedules.put("nightly", **DAILY, input=[1]) == first

    async def test_a_changed_input_is_what_the_next_run_gets(self, hf: Holdfast, clock: FakeClock) -> None:
        first = await hf.schedules.put("nightly", **DAILY, input=1)
        clock.advance(60)
        second = await hf.schedules.put("nightly", **DAILY, input=2)
        clock.advance(3 * 3_600)
        await hf.journal.sweep()

        run = await hf.get_run(str((await known(hf)).last_run_id))
        assert run is not None
        assert run.pending_input == 2
        assert (second.created_at, second.updated_at) == (first.created_at, at(0, 1))

    async def test_a_paused_schedule_starts_nothing_and_goes_on_from_now(self, hf: Holdfast, clock: FakeClock) -> None:
        await hf.schedules.put("nightly", **HOURLY, missed="all")
        paused = await hf.schedules.pause("nightly")
        assert paused == await hf.schedules.pause("nightly")
        clock.advance(150 * 60)
        kept = await hf.schedules.put("nightly", **HOURLY, missed="all")
        assert (await hf.advance()).next_wake_at is None

        resumed = await hf.schedules.resume("nightly")
        clock.advance(3_600)
        await hf.journal.sweep()

        assert (paused.paused, paused.next_at, kept.paused) == (True, None, True)
        assert (resumed.paused, resumed.next_at) == (False, at(3))
        assert await started(hf) == [at(3)]

    async def test_put_pauses_and_resumes_where_it_says_so(self, hf: Holdfast) -> None:
        states = [(await hf.schedules.put("n", **DAILY, paused=paused)).paused for paused in (True, None, False, None)]

        assert states == [True, True, False, False]
        assert (await known(hf, "n")).next_at == at(3)

    async def test_a_deleted_schedule_is_gone_and_its_runs_stay(self, hf: Holdfast, clock: FakeClock) -> None:
        await hf.schedules.put("nightly", **DAILY)
        clock.advance(4 * 3_600)
        await hf.journal.sweep()

        await hf.schedules.delete("nightly")
        clock.advance(86_400)
        await hf.journal.sweep()

        assert await hf.schedules.get("nightly") is None
        assert await started(hf) == [at(3)]

    @pytest.mark.clause("SB-16")
    @pytest.mark.parametrize("change", ["change", "pause", "delete", "replace"])
    async def test_what_was_read_before_a_change_starts_nothing_after_it(
        self, hf: Holdfast, clock: FakeClock, monkeypatch: pytest.MonkeyPatch, change: str
    ) -> None:
        """The row changes after a sweep has read it, and before it commits."""
        changes: dict[str, Callable[[], Any]] = {
            "change": lambda: hf.schedules.put("nightly", **{**DAILY, "cron": "0 5 * * *"}),
            "pause": lambda: hf.schedules.pause("nightly"),
            "delete": lambda: hf.schedules.delete("nightly"),
            "replace": lambda: replaced(hf),
        }
        await hf.schedules.put("nightly", **DAILY)
        clock.advance(4 * 3_600)
        advance = stored._advance

        async def late(*told: Any) -> bool:
            await changes[change]()
            return await advance(*told)

        monkeypatch.setattr(stored, "_advance", late)
        await hf.journal.sweep()
        monkeypatch.undo()

        assert await started(hf) == []
        assert await count(hf, "journal") == 0

    @pytest.mark.clause("SB-16")
    async def test_a_window_stays_started_when_queue_and_code_have_changed(
        self, hf: Holdfast, clock: FakeClock
    ) -> None:
        """The row is put back to before the window, as by a restored backup, and says something else now."""
        await hf.schedules.put("nightly", **DAILY, input=1)
        before = await stored.read(hf.journal.store, "local", "nightly")
        clock.advance(4 * 3_600)
        await hf.journal.sweep()
        assert before is not None
        now = await stored.read(hf.journal.store, "local", "nightly")
        assert now is not None
        await stored.save(hf.journal.store, now, now.changed(next_at=before.next_at))
        await hf.schedules.put("nightly", **DAILY, input=2, queue="other")

        await hf.journal.sweep()

        assert await started(hf) == [at(3)]
        assert (await known(hf)).next_at == at(3) + timedelta(days=1)
        assert await count(hf, "journal") == 1

    @pytest.mark.clause("SB-16")
    @pytest.mark.parametrize("end", ["deleted", "purged", "taken"])
    async def test_a_window_whose_id_was_used_is_not_started_again(
        self, hf: Holdfast, clock: FakeClock, end: str
    ) -> None:
        run_id = window_id("local", "nightly", to_us(at(3)))
        await hf.create_run(run_id=run_id, session_id="s", clog_id="chat")
        if end != "taken":
            await hf.delete_run(run_id)
        if end == "purged":
            await hf.purge(run_id)
        await hf.schedules.put("nightly", **DAILY)
        clock.advance(4 * 3_600)

        await hf.journal.sweep()

        assert await started(hf) == []
        assert (await known(hf)).next_at == at(3) + timedelta(days=1)


async def replaced(hf: Holdfast) -> None:
    """Another schedule under the same name, that looks the same."""
    await hf.schedules.delete("nightly")
    await hf.schedules.put("nightly", **DAILY)


class TestTrigger:
    @pytest.mark.clause("SB-16")
    async def test_the_same_key_is_the_same_run_whatever_changed(self, hf: Holdfast) -> None:
        await hf.schedules.put("nightly", **DAILY, input=1)
        first = await hf.schedules.trigger("nightly", key="now")
        await hf.schedules.put("nightly", **DAILY, input=2, queue="other")

        again = await hf.schedules.trigger("nightly", key="now")
        skipped = await hf.schedules.trigger("nightly", key="now", mode="skip_duplicate")
        other = await hf.schedules.trigger("nightly", key="later", mode="skip_duplicate")

        assert first is not None
        assert first == again
        assert skipped is None
        assert other is not None
        assert (first.pending_input, other.pending_input, other.queue) == (1, 2, "other")

    async def test_without_a_key_every_call_starts_one(self, hf: Holdfast) -> None:
        await hf.schedules.put("nightly", **DAILY, paused=True)

        runs = [await hf.schedules.trigger("nightly") for _ in range(2)]

        assert len({run.run_id for run in runs if run}) == 2

    @pytest.mark.clause("SB-16")
    async def test_a_window_that_was_triggered_is_not_started_again(self, hf: Holdfast, clock: FakeClock) -> None:
        await hf.schedules.put("nightly", **DAILY)
        run = await hf.schedules.trigger(
            "nightly", window=at(4).astimezone(ZoneInfo("Asia/Tokyo")) - timedelta(hours=1)
        )
        clock.advance(4 * 3_600)

        await hf.journal.sweep()

        assert run is not None
        assert await started(hf) == [at(3)]
        assert (await known(hf)).last_run_id == run.run_id
        assert await hf.schedules.trigger("nightly", window=at(3), mode="skip_duplicate") is None

    async def test_what_was_started_and_deleted_is_a_conflict(self, hf: Holdfast) -> None:
        await hf.schedules.put("nightly", **DAILY)
        run = await hf.schedules.trigger("nightly", key="k")
        assert run is not None
        await hf.delete_run(run.run_id)

        assert await hf.schedules.trigger("nightly", key="k", mode="skip_duplicate") is None
        with pytest.raises(Conflict) as caught:
            await hf.schedules.trigger("nightly", key="k")

        assert caught.value.code == "id_reused"

    async def test_contradictions_are_refused(self, hf: Holdfast) -> None:
        await hf.schedules.put("nightly", **DAILY)
        calls: list[dict[str, Any]] = [
            {"key": "k", "window": at(3)},
            {"window": datetime(2030, 1, 1)},
            {"window": "2030-01-01"},
            {"mode": "twice"},
            {"key": ""},
        ]

        for call in calls:
            with pytest.raises(InvalidValue):
                await hf.schedules.trigger("nightly", **call)

        assert await count(hf, "journal") == 0


class TestRefusals:
    """A clear word at the call, and nothing written."""

    @pytest.mark.parametrize(
        ("name", "told", "code"),
        [
            ("n", {"cron": "61 * * * *"}, "invalid_cron"),
            ("n", {"cron": "0 0 31 2 *"}, "invalid_cron"),
            ("n", {"timezone": "Mars/Base"}, "invalid_timezone"),
            ("n", {"cron": None}, "invalid_value"),
            ("n", {"at": START}, "invalid_value"),
            ("n", {"cron": None, "at": datetime(2030, 1, 1)}, "invalid_value"),
            ("n", {"cron": None, "at": "tomorrow"}, "invalid_value"),
            ("n", {"cron": None, "at": START, "timezone": "UTC"}, "invalid_value"),
            ("n", {"missed": "some"}, "invalid_value"),
            ("n", {"paused": "yes"}, "invalid_value"),
            ("n", {"input": {1, 2}}, "invalid_value"),
            ("n", {"input": "x" * (8 << 20)}, "invalid_value"),
            ("n", {"metadata": {"schedule": 1}}, "invalid_value"),
            ("n", {"key": "k"}, "invalid_value"),
            ("n", {"run_id": "r"}, "invalid_value"),
            ("n", {"priority": 1 << 20}, "invalid_value"),
            ("n", {"clog_id": "no good"}, "invalid_id"),
            ("n", {"clog_id": None}, "invalid_id"),
            ("n", {"session_id": ""}, "invalid_id"),
            ("", {}, "invalid_id"),
            ("every night", {}, "invalid_id"),
            ("a" * 129, {}, "invalid_id"),
            (None, {}, "invalid_id"),
        ],
    )
    async def test_put(self, hf: Holdfast, name: Any, told: dict[str, Any], code: str) -> None:
        with pytest.raises(InvalidValue) as caught:
            await hf.schedules.put(name, **{**DAILY, **told})

        assert caught.value.code == code
        assert await count(hf, "schedules") == 0

    async def test_a_bad_change_changes_nothing(self, hf: Holdfast) -> None:
        before = await hf.schedules.put("nightly", **DAILY)

        with pytest.raises(InvalidValue):
            await hf.schedules.put("nightly", **{**DAILY, "cron": "now"})

        assert await known(hf) == before

    @pytest.mark.parametrize("call", ["pause", "resume", "delete", "trigger"])
    async def test_an_unknown_name(self, hf: Holdfast, call: str) -> None:
        with pytest.raises(NotFound):
            await getattr(hf.schedules, call)("nightly")
        with pytest.raises(InvalidValue):
            await getattr(hf.schedules, call)("every night")

        assert await hf.schedules.get("nightly") is None


class TestUsers:
    async def test_each_sees_and_changes_their_own(self, hf: Holdfast, clock: FakeClock) -> None:
        ada, bob = hf.as_user("ada"), hf.as_user("bob")
        await ada.schedules.put("nightly", **{**DAILY, "session_id": "of-ada"}, input="ada")
        mine = await bob.schedules.put("nightly", **{**DAILY, "session_id": "of-bob"}, input="bob")
        await bob.schedules.pause("nightly")
        clock.advance(4 * 3_600)
        await hf.journal.sweep()

        assert (mine.user_id, mine.input) == ("bob", "bob")
        assert [(await known(who)).last_at for who in (ada, bob)] == [at(3), None]
        run_id = str((await known(ada)).last_run_id)
        run, foreign = await ada.get_run(run_id), await bob.get_run(run_id)
        assert run is not None
        assert (run.pending_input, foreign) == ("ada", None)
        assert [each.user_id for each in (await hf.schedules.list()).items] == ["ada", "bob"]
        assert [each.user_id for each in (await bob.schedules.list()).items] == ["bob"]
        assert (await known(hf, user_id="ada")).input == "ada"

    async def test_what_is_anothers_is_unknown(self, hf: Holdfast) -> None:
        ada, bob = hf.as_user("ada"), hf.as_user("bob")
        before = await ada.schedules.put("nightly", **DAILY)

        assert await bob.schedules.get("nightly") is None
        assert await bob.schedules.get("nightly", user_id="ada") is None
        assert (await bob.schedules.list(user_id="ada")).items == []
        for call in ("pause", "resume", "delete", "trigger"):
            for whose in ({}, {"user_id": "ada"}):
                with pytest.raises(NotFound):
                    await getattr(bob.schedules, call)("nightly", **whose)
        with pytest.raises(NotFound):
            await bob.schedules.put("nightly", **DAILY, user_id="ada")

        assert await known(ada) == before
        assert await count(hf, "schedules") == 1

    async def test_anothers_session_is_refused_at_the_call(self, hf: Holdfast) -> None:
        await hf.as_user("ada").create_run(session_id="s", clog_id="chat")

        with pytest.raises(NotFound):
            await hf.as_user("bob").schedules.put("nightly", **DAILY)

        assert await count(hf, "schedules") == 0

    async def test_a_session_that_another_took_later_holds_up_nobody(self, hf: Holdfast, clock: FakeClock) -> None:
        bob = hf.as_user("bob")
        await bob.schedules.put("early", **{**HOURLY, "cron": "30 * * * *"})
        await bob.schedules.put("nightly", **{**HOURLY, "session_id": "of-bob"})
        await hf.as_user("ada").create_run(session_id="s", clog_id="chat")
        clock.advance(3_600)

        await hf.journal.sweep()

        refused = await known(bob, "early")
        assert (refused.last_run_id, refused.next_at) == (None, at(1, 30))
        assert "refused" in str(refused.last_error)
        assert await started(hf) == [at(1)]

    async def test_a_time_zone_that_is_unknown_here_is_left_to_others(
        self, hf: Holdfast, clock: FakeClock, caplog: pytest.LogCaptureFixture
    ) -> None:
        await hf.schedules.put("strange", **HOURLY)
        await hf.schedules.put("hourly", **HOURLY)
        await hf.journal.store.execute(("UPDATE {s}schedules SET timezone = $1 WHERE name = 'strange'", ("Mars/Base",)))
        clock.advance(3_600)

        assert [await hf.journal.sweep() for _ in range(2)] == [1, 0]

        assert (await known(hf, "strange")).next_at == at(1)
        assert await started(hf) == [at(1)]
        assert "is left to others: there is no time zone 'Mars/Base' here" in caplog.text

    async def test_pages(self, hf: Holdfast) -> None:
        for user in ("ada", "bob"):
            for name in ("a", "b", "c"):
                told = {**DAILY, "session_id": user}
                await hf.as_user(user).schedules.put(name, **told)
        found, cursor = [], None
        while True:
            page = await hf.schedules.list(limit=4, cursor=cursor)
            found += [(each.user_id, each.name) for each in page.items]
            cursor = page.next
            if cursor is None:
                break

        assert found == [(user, name) for user in ("ada", "bob") for name in ("a", "b", "c")]
        for bad in ("x", "é", "YQ", 5):
            with pytest.raises(InvalidValue):
                await hf.schedules.list(cursor=bad)  # type: ignore[arg-type]


class TestProof:
    async def test_a_start_that_left_no_run_is_found(self, hf: Holdfast, clock: FakeClock) -> None:
        await hf.schedules.put("nightly", **DAILY)
        clock.advance(4 * 3_600)
        await hf.journal.sweep()
        run_id = str((await known(hf)).last_run_id)
        rename = "UPDATE {s}schedules SET last_run_id = $1"
        await hf.journal.store.execute((rename, ("nobody",)))

        (problem,) = (await hf.fsck()).problems

        assert (problem.law, problem.where) == ("W1", "schedule:nightly")
        await hf.journal.store.execute((rename, (run_id,)))

    async def test_runs_that_were_deleted_or_purged_were_started(self, hf: Holdfast, clock: FakeClock) -> None:
        await hf.schedules.put("nightly", **DAILY)
        clock.advance(4 * 3_600)
        await hf.journal.sweep()
        run_id = str((await known(hf)).last_run_id)

        await hf.delete_run(run_id)
        deleted = await hf.fsck()
        await hf.purge(run_id)

        assert deleted.ok
        assert (await hf.fsck()).ok

    async def test_rebuilding_leaves_schedules_alone(self, hf: Holdfast) -> None:
        before = await hf.schedules.put("nightly", **DAILY)

        assert (await hf.rebuild()).ok
        assert await known(hf) == before


@shared
class TestSeveral:
    @pytest.mark.clause("SB-16")
    async def test_of_all_that_sweep_at_once_one_starts_each_window(
        self, hf: Holdfast, another: Opener, clock: FakeClock
    ) -> None:
        rivals = [hf, await another(), await another()]
        for number in range(5):
            await hf.schedules.put(f"s{number}", **HOURLY, missed="all")
        clock.advance(6 * 3_600)

        while any(await asyncio.gather(*(rival.journal.sweep() for rival in rivals))):
            pass

        assert await started(hf) == sorted([at(hour) for hour in range(1, 7)] * 5)
        assert await count(hf, "journal") == 30

    @pytest.mark.clause("SB-16")
    async def test_a_hand_and_a_sweep_at_once_start_a_window_once(
        self, hf: Holdfast, another: Opener, clock: FakeClock
    ) -> None:
        rival = await another()
        await hf.schedules.put("hourly", **HOURLY, missed="all")
        clock.advance(8 * 3_600)

        triggered, _ = await asyncio.gather(
            asyncio.gather(*(rival.schedules.trigger("hourly", window=at(hour)) for hour in range(1, 9))),
            hf.journal.sweep(),
        )

        assert await started(hf) == [at(hour) for hour in range(1, 9)]
        assert len({run.run_id for run in triggered if run}) == await count(hf, "journal") == 8
        assert (await known(hf, "hourly")).next_at == at(9)

    async def test_changes_at_once_leave_one_of_them_whole(self, hf: Holdfast, another: Opener) -> None:
        rivals = [hf, await another()]

        put = await asyncio.gather(
            *(
                rival.schedules.put("nightly", **{**DAILY, "cron": f"{number} 3 * * *"}, input=number)
                for number, rival in enumerate(rivals * 4)
            )
        )

        last = await known(hf)
        assert last in put
        assert last.next_at == at(3, last.input)

    async def test_changes_and_sweeps_at_once_start_each_window_once(
        self, hf: Holdfast, another: Opener, clock: FakeClock
    ) -> None:
        rival = await another()
        await hf.schedules.put("hourly", **HOURLY, missed="all", input=0)

        for number in range(1, 9):
            clock.advance(3_600)
            await asyncio.gather(
                hf.journal.sweep(), rival.schedules.put("hourly", **HOURLY, missed="all", input=number)
            )
        await hf.journal.sweep()

        assert await started(hf) == [at(hour) for hour in range(1, 9)]


def test_the_blocking_calls_know_schedules(tmp_path: Any) -> None:
    with Holdfast(str(tmp_path / "holdfast.db")).sync as hf:
        hf.schedules.put("nightly", **DAILY)
        run = hf.as_user("local").schedules.trigger("nightly", key="k")

        assert (hf.schedules.get("nightly").cron, run.clog_id) == ("0 3 * * *", "report")
