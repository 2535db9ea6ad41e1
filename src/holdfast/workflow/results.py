"""What the steps of a run came to, read from its journal."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from typing import Any

import msgspec

from holdfast.flow.answers import Decision, decision_of
from holdfast.journal import Journal
from holdfast.protocol import facts
from holdfast.protocol.facts import Fact
from holdfast.protocol.flows import APPROVAL
from holdfast.protocol.graphs import Graph, index_of

PAGE = 1_000
LISTS_MAX = 8


class Results:
    """Reads results by the steps' names. Lists that maps go over are kept: each item would read its list again."""

    def __init__(self) -> None:
        self._lists: OrderedDict[tuple[str, str], list[Any]] = OrderedDict()

    async def input(self, journal: Journal, run_id: str) -> Any:
        """What the run was created with."""
        first = (await journal.facts_at([(run_id, 1)]))[run_id, 1]
        assert isinstance(first, facts.RunCreated)
        return first.input

    async def of(self, journal: Journal, run_id: str, graph: Graph, names: Sequence[str]) -> dict[str, Any]:
        """The results of those of these steps that have one; None for one that was skipped."""
        if not names:
            return {}
        marks = ", ".join(f"${place}" for place in range(2, len(names) + 2))
        sql = f"""
            SELECT key, items, result_rev FROM {{s}}runnables
            WHERE run_id = $1 AND key IN ({marks}) AND status = 'completed'
        """
        rows = await journal.store.fetch(sql, run_id, *names)
        found = await _told(journal, run_id, [rev for _, items, rev in rows if items is None])
        results = {key: _result(found[rev]) for key, items, rev in rows if items is None}
        for key, items, _ in rows:
            if items is not None:
                results[key] = await self._of_items(journal, run_id, key)
        for name, value in results.items():
            # A runner of one's own may have said something else.
            if graph.by_name[name].kind == "approval" and isinstance(value, dict) and "approved" in value:
                results[name] = msgspec.convert(value, Decision)
        # In the order of the graph, whatever order the rows came in.
        return {name: results[name] for name in names if name in results}

    async def list_of(self, journal: Journal, run_id: str, graph: Graph, name: str) -> Any:
        """The same for one step whose list a map goes over."""
        known = self._lists.pop((run_id, name), None)
        if known is None:
            known = (await self.of(journal, run_id, graph, [name])).get(name)
        if isinstance(known, list):
            self._lists[run_id, name] = known
            while len(self._lists) > LISTS_MAX:
                self._lists.popitem(last=False)
        return known

    async def answer(self, journal: Journal, run_id: str, step: str) -> Decision | None:
        """What a person said to the question of this step; None while nobody has."""
        sql = "SELECT rev FROM {s}steps WHERE run_id = $1 AND name = $2 AND occurrence = 0"
        for (rev,) in await journal.store.fetch(sql, run_id, f"{APPROVAL}{step}"):
            fact, at = (await journal.told_at([(run_id, rev)]))[run_id, rev]
            return decision_of(fact, at)
        return None

    async def failure(self, journal: Journal, run_id: str, rev: int) -> facts.AttemptFailed:
        fact = (await journal.facts_at([(run_id, rev)]))[run_id, rev]
        assert isinstance(fact, facts.AttemptFailed)
        return fact

    async def _of_items(self, journal: Journal, run_id: str, map_key: str) -> list[Any]:
        sql = "SELECT key, result_rev FROM {s}runnables WHERE run_id = $1 AND map_key = $2"
        rows = sorted(await journal.store.fetch(sql, run_id, map_key), key=lambda row: index_of(row[0]))
        found = await _told(journal, run_id, [rev for _, rev in rows])
        return [_result(found[rev]) for _, rev in rows]


def _result(fact: Fact) -> Any:
    assert isinstance(fact, facts.AttemptCompleted)
    return fact.result


async def _told(journal: Journal, run_id: str, revs: Sequence[int]) -> dict[int, Fact]:
    found: dict[int, Fact] = {}
    for start in range(0, len(revs), PAGE):
        page = await journal.facts_at([(run_id, rev) for rev in revs[start : start + PAGE]])
        found |= {rev: fact for (_, rev), fact in page.items()}
    return found
