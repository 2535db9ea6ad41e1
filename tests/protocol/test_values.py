"""JSON values: what is repaired, what is refused, and that equal values have equal text."""

from __future__ import annotations

import json
import math
from collections import OrderedDict
from enum import Enum, IntEnum
from typing import Any, NamedTuple

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.errors import InvalidValue
from holdfast.protocol.values import DEPTH_MAX, canonical, clean, digest, fingerprint, whole_number
from tests.protocol.strategies import dirty_texts, dirty_values, law, texts, values


def nested(depth: int) -> Any:
    value: Any = []
    for _ in range(depth - 1):
        value = [value]
    return value


def cleaned_or_none(value: Any) -> tuple[Any, bool] | None:
    """None if two keys of one object would become the same."""
    try:
        return clean(value)
    except InvalidValue:
        return None


@law
@given(values)
def test_a_storable_value_is_left_as_it_is(value: Any) -> None:
    assert clean(value) == (value, False)


@law
@given(dirty_values)
def test_cleaning_twice_is_cleaning_once(value: Any) -> None:
    first = cleaned_or_none(value)

    if first is not None:
        assert clean(first[0]) == (first[0], False)


@law
@given(dirty_values)
def test_repaired_says_whether_the_value_was_changed(value: Any) -> None:
    first = cleaned_or_none(value)

    if first is not None:
        assert first[1] == (first[0] != value)


@law
@given(values)
def test_a_value_comes_back_from_its_text_with_the_same_types(value: Any) -> None:
    text = canonical(value)

    assert repr(json.loads(text)) == repr(msgspec.json.decode(text)) == repr(in_sorted_order(value))


def in_sorted_order(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: in_sorted_order(value[key]) for key in sorted(value)}
    return [in_sorted_order(item) for item in value] if isinstance(value, list) else value


@law
@given(st.dictionaries(texts, values, max_size=5), st.randoms(use_true_random=False))
def test_the_order_of_keys_does_not_change_the_text(value: dict[str, Any], random: Any) -> None:
    items = list(value.items())
    random.shuffle(items)

    assert canonical(dict(items)) == canonical(value)
    assert fingerprint(dict(items)) == fingerprint(value)


@law
@given(values, values)
def test_two_values_have_one_text_only_if_they_are_one_value(one: Any, other: Any) -> None:
    same = repr(in_sorted_order(one)) == repr(in_sorted_order(other))

    assert (canonical(one) == canonical(other)) == same
    assert (fingerprint(one) == fingerprint(other)) == same


@pytest.mark.parametrize("value", [1, 5, 10])
def test_a_whole_number_within_its_bounds_is_taken(value: int) -> None:
    assert whole_number(value, "limit", 1, 10) == value


@pytest.mark.parametrize(
    ("value", "shown"),
    [(0, "0"), (11, "11"), (1.5, "1.5"), (True, "True"), ("5", "a str"), (None, "a NoneType"), (10**100, "a int")],
    ids=repr,
)
def test_any_other_number_is_refused_with_its_name_and_bounds(value: Any, shown: str) -> None:
    with pytest.raises(InvalidValue) as caught:
        whole_number(value, "limit", 1, 10)

    assert str(caught.value) == f"limit must be a whole number from 1 to 10, got {shown}"


@law
@given(texts, values)
def test_a_digest_tells_kind_and_body_apart(kind: str, value: Any) -> None:
    body = canonical(value)

    assert "\n" not in body
    assert digest(kind, body) != digest(kind + body)
    assert digest(kind, body) != digest(kind, body + " ")


@law
@given(dirty_texts)
def test_what_no_database_stores_becomes_a_replacement_character(text: str) -> None:
    expected = "".join("\ufffd" if letter == "\0" or "\ud800" <= letter <= "\udfff" else letter for letter in text)

    assert clean(text) == (expected, expected != text)
    assert clean({text: [text]}) == ({expected: [expected]}, expected != text)
    assert expected.encode().decode() == expected


@pytest.mark.parametrize("value", [None, True, False, 0, "", [], {}, 0.0, -0.0], ids=repr)
def test_falsy_values_are_real_values(value: Any) -> None:
    cleaned, repaired = clean(value)

    assert (repr(cleaned), repaired) == (repr(value), False)
    assert repr(msgspec.json.decode(canonical(cleaned))) == repr(value)


@pytest.mark.parametrize(
    "value",
    [math.nan, math.inf, -math.inf, 1e400, [{"x": math.nan}]],
    ids=["nan", "inf", "-inf", "1e400", "inside"],
)
def test_numbers_that_are_not_finite_are_refused(value: Any) -> None:
    with pytest.raises(InvalidValue) as caught:
        clean(value)

    assert caught.value.code == "invalid_value"


@pytest.mark.parametrize("sign", [1, -1])
def test_integers_keep_up_to_64_digits(sign: int) -> None:
    largest = sign * (10**64 - 1)

    cleaned, _ = clean([largest])

    assert msgspec.json.decode(canonical(cleaned)) == [largest]
    with pytest.raises(InvalidValue, match="64 digits"):
        clean(largest + sign)


def test_a_value_may_be_64_levels_deep() -> None:
    value = nested(DEPTH_MAX)

    assert clean(value) == (value, False)
    assert msgspec.json.decode(canonical(value)) == value


@pytest.mark.parametrize("depth", [65, 1_000, 100_000])
def test_deeper_values_are_refused(depth: int) -> None:
    with pytest.raises(InvalidValue, match="64 levels") as caught:
        clean(nested(depth))

    assert caught.value.code == "invalid_value"


def test_a_value_that_contains_itself_is_refused() -> None:
    value: dict[str, Any] = {}
    value["me"] = [value, value]

    with pytest.raises(InvalidValue, match="64 levels"):
        clean(value)


@pytest.mark.parametrize(
    "value", [b"bytes", bytearray(b"x"), {1, 2}, object(), 1j, range(3), Enum("Colour", "RED")], ids=type
)
def test_what_is_not_json_is_refused(value: Any) -> None:
    for where in (value, [value], {"key": value}):
        with pytest.raises(InvalidValue, match="is not JSON") as caught:
            clean(where)

        assert caught.value.code == "invalid_value"


@pytest.mark.parametrize("key", [1, None, True, 1.5, b"x", ("a",)], ids=repr)
def test_keys_that_are_not_text_are_refused(key: Any) -> None:
    with pytest.raises(InvalidValue, match="keys must be text"):
        clean({key: 1})


def test_two_keys_that_repair_to_one_are_refused() -> None:
    with pytest.raises(InvalidValue, match="two keys"):
        clean({"a\0": 1, "a\ud800": 2})


def test_tuples_and_relatives_of_plain_types_are_stored_as_plain_ones() -> None:
    class Point(NamedTuple):
        x: int
        y: int

    class Colour(str, Enum):  # noqa: UP042 - prints its name where StrEnum prints its value
        RED = "red"

    class Level(IntEnum):
        HIGH = 3

    class Ratio(float):
        def __repr__(self) -> str:
            return "a ratio"

    value = OrderedDict({Colour.RED: (Point(1, 2), Colour.RED, Level.HIGH, Ratio(0.5))})

    cleaned, repaired = clean(value)

    assert repr(cleaned) == "{'red': [[1, 2], 'red', 3, 0.5]}"
    assert not repaired
