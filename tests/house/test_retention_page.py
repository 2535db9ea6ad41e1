"""The page about retention says what the code does: its numbers are the code's own."""

from __future__ import annotations

import importlib
import inspect
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from holdfast import Holdfast
from holdfast.runtime.core import Core

PAGE = Path(__file__).parents[2] / "docs/retention.md"
NUMBER = re.compile(r"([\d,]+(?:\.\d+)?)( bytes| s| ms)?")
UNITS = {"bytes": ("_BYTES", "_MAX", "_bytes"), "s": ("_S",), "ms": ("_MS",), "": ("",)}


def promises() -> Iterator[tuple[str, str]]:
    """What the last table says: (how much, where that is decided)."""
    for line in PAGE.read_text(encoding="utf-8").partition("## Sizes and times")[2].splitlines():
        cells = [cell.strip() for cell in line.strip().strip("|").split("|")]
        if len(cells) == 3 and cells[2].startswith("`holdfast."):
            yield cells[1], cells[2].strip("`")


def decided(place: str) -> Any:
    """What a constant is (`module.NAME`), or a parameter that is not given (`module.Class.function:parameter`)."""
    path, _, parameter = place.partition(":")
    parts = path.split(".")
    depth = max(size for size in range(1, len(parts)) if is_module(".".join(parts[:size])))
    found: Any = importlib.import_module(".".join(parts[:depth]))
    for name in parts[depth:]:
        found = getattr(found, name)
    return inspect.signature(found).parameters[parameter].default if parameter else found


def is_module(name: str) -> bool:
    try:
        importlib.import_module(name)
    except ModuleNotFoundError:
        return False
    return True


@pytest.mark.clause("PB-6")
@pytest.mark.parametrize(("said", "place"), list(promises()), ids=str)
def test_a_number_on_the_page_is_the_one_in_the_code(said: str, place: str) -> None:
    value = decided(place)

    if said == "no limit":
        assert value is None
        return
    found = NUMBER.fullmatch(said)
    assert found is not None, said
    assert float(found[1].replace(",", "")) == value
    assert place.endswith(UNITS[(found[2] or "").strip()])


@pytest.mark.clause("PB-6")
def test_the_page_speaks_of_every_number_it_should() -> None:
    assert len(list(promises())) >= 20


@pytest.mark.clause("PB-6")
def test_nothing_is_removed_and_no_payload_kept_unless_asked_for() -> None:
    told = inspect.signature(Core.__init__).parameters

    assert inspect.signature(Holdfast.__init__).parameters["retention"].default is None
    assert told["persist_payloads"].default is False
    assert told["schema"].default == "holdfast"


@pytest.mark.clause("PB-6")
def test_every_call_that_the_page_names_exists() -> None:
    text = PAGE.read_text(encoding="utf-8")
    hf = Holdfast(":memory:")

    for name in re.findall(r"`hf\.([a-z_.]+)", text):
        found: Any = hf
        for part in name.split("."):
            found = getattr(found, part)
        assert callable(found)
    for name in ("gc", "purge", "delete_run", "delete_session"):
        assert f"`{name}" in text
        assert callable(getattr(hf, name))


@pytest.mark.clause("PB-6")
@pytest.mark.parametrize("page", ["README.md", "docs/retention.md"])
def test_links_lead_somewhere(page: str) -> None:
    path = Path(__file__).parents[2] / page
    links = re.findall(r"\]\((?!https?:|#)([^)#]+)\)", path.read_text(encoding="utf-8"))

    assert [link for link in links if not (path.parent / link).exists()] == []
