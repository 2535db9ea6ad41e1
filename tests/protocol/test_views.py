"""The eight statuses in the words of two audiences."""

from __future__ import annotations

from typing import get_args

import pytest

from holdfast.protocol.state import TERMINAL, Status
from holdfast.protocol.views import OCEAN, WEB


@pytest.mark.clause("C-1", "O-10")
def test_every_status_has_a_word_for_everyone() -> None:
    statuses = set(get_args(Status))

    assert set(WEB) == set(OCEAN) == statuses
    assert set(WEB.values()) == {"queued", "running", "completed", "failed", "cancelled"}
    assert set(OCEAN.values()) == {"idle", "pending", "active", "waiting", "done", "failed"}


@pytest.mark.clause("C-1", "C-2", "C-21")
def test_an_end_stays_an_end_and_only_rest_counts_as_one() -> None:
    ended = {"completed", "failed", "cancelled"}

    assert {status for status in WEB if WEB[status] in ended} == TERMINAL | {"idle"}
    assert {status for status in OCEAN if OCEAN[status] in ("done", "failed")} == TERMINAL
    assert (OCEAN["paused"], OCEAN["cancelled"]) == ("waiting", "failed")
