"""`Questions`: what people ask about runs. Nothing here writes."""

from __future__ import annotations

from collections.abc import AsyncIterator

from holdfast.identity import check_id
from holdfast.moments import from_us
from holdfast.protocol import facts
from holdfast.protocol.events import view
from holdfast.runtime.claims import Claims
from holdfast.runtime.records import Event

POLL_S = 0.5


class Questions(Claims):
    """Events and views of runs."""

    async def events(self, run_id: str, after: int = 0, *, follow: bool = False) -> AsyncIterator[Event]:
        """The run's public events in order, from after a seq. With `follow`, until the run is over."""
        listener = self._store.listen(f"run:{check_id(run_id, 'run_id')}")
        try:
            while True:
                found = await self.journal.facts(run_id, after, 500)
                for entry, fact in found:
                    after = entry.rev
                    shown = view(fact)
                    is_end = isinstance(fact, facts.RunTerminal)
                    if is_end and not await self._ended_at(run_id, entry.rev):
                        continue
                    if shown:
                        yield Event(seq=entry.rev, at=from_us(entry.at), **shown._asdict())
                    if is_end:
                        return
                if not found:
                    if not follow:
                        return
                    await listener.wait(POLL_S)
        finally:
            listener.close()

    async def _ended_at(self, run_id: str, rev: int) -> bool:
        """Did the run take this end? One written by hand may have been refused."""
        state = (await self.journal.slices([run_id])).get(run_id)
        return state is None or state.ended_rev == rev
