"""Facts with validity: the latest of a key is read, judged and followed by the next in one transaction.

The texts are the same for both databases. A key's name is what is locked where several may write at once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import NamedTuple

from holdfast import ambient
from holdfast.store.committer import Patience, patiently
from holdfast.store.database import Database
from holdfast.store.tables import FACTS
from holdfast.store.types import Addition, FactKey, OutcomeUnknown, Rejected, Row, Statement

LOSSES_MAX = 3

Judge = Callable[[Mapping[FactKey, Row | None], int], Addition]
"""The latest fact of each key and the clock → what follows. Raises to refuse; may be asked again."""


class Recorded(NamedTuple):
    """What was written, and the facts that it follows."""

    addition: Addition
    before: Mapping[FactKey, Row | None]


class Recorder:
    """Adds facts, each call one commit. A commit of unknown fate is known by its id when it is asked for again."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def record(self, keys: Sequence[FactKey], judge: Judge) -> Recorded:
        """When this returns, the rows are on disk, or there were none to add."""
        commit_id = ambient.random_bits(62)
        patience = Patience()
        losses = 0
        decided: list[Recorded] = []
        nothing = Addition()

        def plan(seen: Mapping[FactKey, tuple[Row, int] | None], now: int) -> Addition:
            if any(found is not None and found[1] == commit_id for found in seen.values()):
                # Ours: the answer to an earlier try was lost, the facts were not.
                return nothing
            before = {key: None if found is None else found[0] for key, found in seen.items()}
            addition = judge(before, now)
            decided.append(Recorded(addition, before))
            return addition

        while True:
            try:
                await patiently(lambda: self._database.record(keys, plan, commit_id))
                return decided[-1]
            except OutcomeUnknown as error:
                await patience.pause(error)
            except Rejected:
                # A run's own commit was faster and left what we would have written; seen anew, it is judged anew.
                losses += 1
                if losses > LOSSES_MAX:
                    raise


def latest(key: FactKey, prefix: str) -> Statement:
    """The text that finds a key's latest fact, the asserted one first, and the commit that wrote it."""
    table = FACTS[key.table]
    text = f"""
        SELECT {", ".join(table.names)}, commit_id
        FROM {prefix}{table.name}
        WHERE {_same(key)}
        ORDER BY validity DESC, asserted DESC
        LIMIT 1
    """
    return text, key.values


def split(rows: Sequence[Row]) -> tuple[Row, int] | None:
    return (tuple(rows[0][:-1]), rows[0][-1]) if rows else None


def changes(addition: Addition, commit_id: int, prefix: str) -> Iterator[Statement]:
    """The statements that write this."""
    for name, row in addition.rows:
        columns = (*FACTS[name].names, "commit_id")
        marks = ", ".join(f"${place}" for place in range(1, len(columns) + 1))
        yield f"INSERT INTO {prefix}{name} ({', '.join(columns)}) VALUES ({marks})", (*row, commit_id)
    for key in addition.drops:
        yield f"DELETE FROM {prefix}{key.table} WHERE {_same(key)}", key.values


def _same(key: FactKey) -> str:
    return " AND ".join(f"{name} = ${place}" for place, name in enumerate(FACTS[key.table].key[:-2], start=1))
