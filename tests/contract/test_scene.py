"""The busy scene: on Postgres it is put back from a photograph, and nobody can tell."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest

from holdfast import Holdfast
from tests.conftest import FakeClock
from tests.contract import scene
from tests.contract.builders import assert_sound
from tests.contract.photograph import Photograph
from tests.schemas import Schemas


@pytest.fixture
def names(schemas: Schemas) -> Iterator[list[str]]:
    taken = [schemas.take() for _ in range(2)]
    yield taken
    for name in taken:
        schemas.give_back(name)


async def test_a_scene_that_is_put_back_is_the_one_that_was_played(
    postgres_url: str, names: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rows in any order: an emptied table has gaps, and the server fills them as it likes."""
    # Another test may have had it played: the first of these two is to be.
    monkeypatch.setattr(scene, "_taken", [])
    seen = []
    for name in names:
        clock = FakeClock()
        async with Holdfast(postgres_url, schema=name, clock=clock) as hf:
            built = await scene.build(hf, clock)
            rows, sequences = await Photograph.of(hf)
            told = {table: sorted(json.loads(found), key=repr) for table, found in rows.items()}
            seen.append((built.runs, built.deleted, built.used_token_hash, clock.now(), sequences, told))
            await assert_sound(hf)

    first, second = seen
    assert first == second
    assert {"runs", "journal", "sessions", "shared_storage"} <= {table for table, _ in first[-1]}
