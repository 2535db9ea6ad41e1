"""Input that can never be stored: refused at every door with a stable code and words that help, nothing written."""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime
from typing import Any

import pytest

from holdfast import (
    Continue,
    Done,
    Fail,
    Holdfast,
    NotFound,
    Retry,
    RetryPolicy,
    Wait,
)
from tests.conftest import EACH_VALUE
from tests.contract.builders import create, entry
from tests.contract.stage import Stage, assert_healthy, note, refused, runs, set_stage

Call = Callable[[Stage, Any], Awaitable[Any]]
in_process = pytest.mark.parametrize("configuration", EACH_VALUE)


@pytest.fixture
async def stage(hf: Holdfast) -> Stage:
    return await set_stage(hf)


VALUE_DOORS: dict[str, Call] = {
    "create_run input": lambda s, v: create(s.hf, input=v),
    "create_run metadata": lambda s, v: create(s.hf, metadata={"x": v}),
    "create_runs input": lambda s, v: s.hf.create_runs(runs(input=v)),
    "signal": lambda s, v: s.hf.signal(s.idle, v),
    "emit": lambda s, v: s.hf.emit(s.claim, "text", v),
    "complete": lambda s, v: s.hf.complete(s.claim, v),
    "complete Done": lambda s, v: s.hf.complete(s.claim, Done([v])),
    "complete Continue": lambda s, v: s.hf.complete(s.claim, Continue(v)),
    "pause metadata": lambda s, v: s.hf.pause(s.idle, "look", metadata={"x": v}),
    "approve edited": lambda s, v: s.hf.approve(s.asked, actor="ada", edited=v),
    "append to a thread": lambda s, v: s.hf.journal.append("notes", [*note(1), *note(v)]),
    "append to a run": lambda s, v: s.hf.journal.append(f"run:{s.idle}", [entry("event", type="text", data=v)]),
    "save_checkpoint": lambda s, v: s.hf.journal.save_checkpoint("notes", 0, v),
}


def nested(depth: int) -> Any:
    value: Any = []
    for _ in range(depth - 1):
        value = [value]
    return value


BAD_VALUES: dict[str, tuple[Any, str]] = {
    "NaN": (math.nan, "send None or text instead"),
    "Infinity": (math.inf, "send None or text instead"),
    "1e400": (float("1e400"), "send None or text instead"),
    "-Infinity inside": ({"deep": [[{"er": (1, -math.inf)}]]}, "send None or text instead"),
    "65 levels": (nested(65), "flatten it or store a reference"),
    "1,000 levels": (nested(1_000), "flatten it or store a reference"),
    "100,000 levels": (nested(100_000), "flatten it or store a reference"),
    "65 digits": (10**64, "send it as text"),
    "a million digits": (-(10**1_000_000), "send it as text"),
    "bytes": (b"raw", "bytes as text"),
    "a set": ({1, 2}, "list or dict"),
    "an object": (object(), "a object is not JSON"),
    "a datetime": (datetime(2030, 1, 1, tzinfo=UTC), "a datetime is not JSON"),
    "a number as key": ({1: "one"}, "object keys must be text"),
    "None as key": ([{None: 1}], "object keys must be text"),
    "two keys that become one": ({"a\0": 1, "a\ud800": 2}, "rename one"),
}


@in_process
@pytest.mark.parametrize("bad", BAD_VALUES)
async def test_a_value_that_is_no_json_is_refused_at_every_door(stage: Stage, bad: str) -> None:
    value, words = BAD_VALUES[bad]

    said = {door: await refused(stage, call(stage, value), "invalid_value") for door, call in VALUE_DOORS.items()}

    assert [door for door, sentence in said.items() if words not in sentence] == []
    await assert_healthy(stage)


@in_process
async def test_a_body_over_the_limit_is_refused_at_every_door(stage: Stage) -> None:
    large = "x" * (20 << 20)

    said = [await refused(stage, call(stage, large), "invalid_value") for call in VALUE_DOORS.values()]

    assert [words for words in said if "is over 8388608 bytes; store a reference instead" not in words] == []
    await assert_healthy(stage)


@in_process
async def test_the_limit_counts_bytes_and_holds_for_reasons_too(stage: Stage) -> None:
    emoji = "😀" * (3 << 20)

    await refused(stage, stage.hf.signal(stage.idle, emoji), "invalid_value")
    await refused(stage, stage.hf.cancel(stage.idle, reason=emoji), "invalid_value")
    await refused(stage, stage.hf.approve(stage.asked, actor="ada", comment=emoji), "invalid_value")


TEXT_DOORS: dict[str, Call] = {
    "cancel reason": lambda s, v: s.hf.cancel(s.idle, reason=v),
    "cancel actor": lambda s, v: s.hf.cancel(s.idle, actor=v),
    "approve actor": lambda s, v: s.hf.approve(s.asked, actor=v),
    "approve comment": lambda s, v: s.hf.approve(s.asked, actor="ada", comment=v),
    "reject comment": lambda s, v: s.hf.reject(s.asked, actor="ada", comment=v),
    "fail": lambda s, v: s.hf.fail(s.claim, v),
    "fail for good": lambda s, v: s.hf.fail(s.claim, v, retry=False),
    "Retry": lambda s, v: s.hf.complete(s.claim, Retry(v)),
    "Retry kind": lambda s, v: s.hf.complete(s.claim, Retry("x", kind=v)),
    "Fail kind": lambda s, v: s.hf.complete(s.claim, Fail("x", kind=v)),
}


@in_process
@pytest.mark.parametrize("bad", [5, True, 1.5, b"raw", ["a"], {"a": 1}, object()], ids=type)
async def test_a_text_that_is_no_text_is_refused(stage: Stage, bad: Any) -> None:
    for call in TEXT_DOORS.values():
        await refused(stage, call(stage, bad), "invalid_value")

    await assert_healthy(stage)


WRONG_ARGUMENTS: dict[str, Call] = {
    "metadata list": lambda s, _: create(s.hf, metadata=["x"]),
    "metadata text": lambda s, _: create(s.hf, metadata="x"),
    "metadata of a pause": lambda s, _: s.hf.pause(s.idle, "look", metadata=["x"]),  # type: ignore[arg-type]
    "kind of a pause": lambda s, _: s.hf.pause(s.idle, "look", kind="nap"),  # type: ignore[arg-type]
    "retry policy": lambda s, _: create(s.hf, retry={"max_attempts": 3}),
    "mode": lambda s, _: create(s.hf, mode="forever"),
    "interrupt": lambda s, _: s.hf.signal(s.idle, interrupt="yes"),  # type: ignore[arg-type]
    "force": lambda s, _: s.hf.cancel(s.idle, force="yes"),  # type: ignore[arg-type]
    "priority low": lambda s, _: create(s.hf, priority=-32_769),
    "priority high": lambda s, _: create(s.hf, priority=32_768),
    "priority True": lambda s, _: create(s.hf, priority=True),
    "priority 1.0": lambda s, _: create(s.hf, priority=1.0),
    "priority text": lambda s, _: s.hf.create_runs(runs(priority="high")),
    "priority huge": lambda s, _: create(s.hf, priority=10**5_000),
    "max_attempts 0": lambda s, _: create(s.hf, retry=RetryPolicy(max_attempts=0)),
    "max_attempts True": lambda s, _: create(s.hf, retry=RetryPolicy(max_attempts=True)),
    "backoff_ms -1": lambda s, _: create(s.hf, retry=RetryPolicy(backoff_ms=-1)),
    "backoff_max_ms huge": lambda s, _: create(s.hf, retry=RetryPolicy(backoff_max_ms=1 << 60)),
    "max_deliveries 0": lambda s, _: s.hf.create_runs(runs(max_deliveries=0)),
    "max_deliveries huge": lambda s, _: create(s.hf, max_deliveries=1 << 31),
    "Wait in the past": lambda s, _: s.hf.complete(s.claim, Wait(seconds=-1)),
    "Wait for ever and a day": lambda s, _: s.hf.complete(s.claim, Wait(seconds=1e30)),
    "Wait NaN": lambda s, _: s.hf.complete(s.claim, Wait(seconds=math.nan)),
    "Wait True": lambda s, _: s.hf.complete(s.claim, Wait(seconds=True)),
    "Wait text": lambda s, _: s.hf.complete(s.claim, Wait(until="2030-01-01T00:00:00Z")),  # type: ignore[arg-type]
    "Wait naive": lambda s, _: s.hf.complete(s.claim, Wait(until=datetime(2030, 1, 1))),
    "Retry in the past": lambda s, _: s.hf.complete(s.claim, Retry("x", after=-1)),
    "expected_rev -1": lambda s, _: s.hf.journal.append("notes", note(1), expected_rev=-1),
    "expected_rev True": lambda s, _: s.hf.journal.append("notes", note(1), expected_rev=True),
    "expected_rev text": lambda s, _: s.hf.journal.append(f"run:{s.idle}", note(1), expected_rev="1"),  # type: ignore[arg-type]
    "expected_rev huge": lambda s, _: s.hf.journal.append("notes", note(1), expected_rev=1 << 40),
    "read after -1": lambda s, _: s.hf.journal.read("notes", after=-1),
    "read after huge": lambda s, _: s.hf.journal.read("notes", after=1 << 70),
    "read limit -1": lambda s, _: s.hf.journal.read(f"run:{s.idle}", limit=-1),
    "read limit text": lambda s, _: s.hf.journal.read("catalog", limit="all"),  # type: ignore[arg-type]
    "tail after -1": lambda s, _: s.hf.journal.tail({"notes": -1}),
    "checkpoint rev -1": lambda s, _: s.hf.journal.save_checkpoint("notes", -1, {}),
    "checkpoint rev huge": lambda s, _: s.hf.journal.save_checkpoint("notes", 1 << 40, {}),
    "checkpoint rev True": lambda s, _: s.hf.journal.save_checkpoint("notes", True, {}),
    "as_of True": lambda s, _: s.hf.get_run(s.idle, as_of=True),
    "as_of 1.5": lambda s, _: s.hf.get_run(s.idle, as_of=1.5),  # type: ignore[arg-type]
    "as_of text": lambda s, _: s.hf.get_run(s.idle, as_of="yesterday"),  # type: ignore[arg-type]
    "lease_ms 0": lambda s, _: s.hf.claim_next(lease_ms=0),
    "lease_ms -1": lambda s, _: s.hf.heartbeat(s.claim, lease_ms=-1),
    "lease_ms huge": lambda s, _: s.hf.claim_next(lease_ms=1 << 60),
}

UNTYPED: dict[str, Call] = {
    "as_of naive": lambda s, _: s.hf.get_run(s.idle, as_of=datetime(2030, 1, 1)),
    "lease_ms True": lambda s, _: s.hf.heartbeat(s.claim, lease_ms=True),
    "lease_ms 1.5": lambda s, _: s.hf.heartbeat(s.claim, lease_ms=1.5),  # type: ignore[arg-type]
    "lease_ms text": lambda s, _: s.hf.heartbeat(s.claim, lease_ms="30"),  # type: ignore[arg-type]
    "limit 1.5": lambda s, _: s.hf.claim_next(limit=1.5),  # type: ignore[arg-type]
    "limit -1": lambda s, _: s.hf.claim_next(limit=-1),
}


@in_process
async def test_an_argument_out_of_its_range_is_refused(stage: Stage) -> None:
    for name, call in WRONG_ARGUMENTS.items():
        assert await refused(stage, call(stage, None), "invalid_value"), name

    await assert_healthy(stage)


@in_process
@pytest.mark.parametrize("argument", UNTYPED)
async def test_an_argument_of_the_wrong_type_is_refused(stage: Stage, argument: str) -> None:
    await refused(stage, UNTYPED[argument](stage, None), "invalid_value")

    await assert_healthy(stage)


async def test_a_revision_beyond_every_head_is_not_found(stage: Stage) -> None:
    for revision in (2, 1 << 31, 1 << 61):
        with pytest.raises(NotFound, match="does not exist yet"):
            await stage.hf.get_run(stage.idle, as_of=revision)

    assert await stage.hf.get_run(stage.idle, as_of=0) is None
    assert await stage.hf.get_run(stage.idle, as_of=-(1 << 61)) is None
