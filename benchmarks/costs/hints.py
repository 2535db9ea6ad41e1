"""What one hint costs the server, against the processes that listen: every one of them is woken to hear it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import asyncpg

from benchmarks.costs.growth import Cost, Extent, race
from benchmarks.costs.yardstick import Raw
from benchmarks.places import Place
from holdfast.store.postgres_hints import NOTIFY

LISTENING = "processes that listen"
CHANNEL = "costs"


async def measure(database: str, place: Place, raw: Raw, extent: Extent) -> AsyncIterator[Cost]:
    """The listeners' own CPU is in it too, since they live in this process; a real one would do more with the news."""
    sender = await asyncpg.connect(place.url)
    ears: list[asyncpg.Connection] = []
    try:
        for size in extent.listeners:
            while len(ears) < size:
                ears.append(await asyncpg.connect(place.url))
                await ears[-1].add_listener(CHANNEL, lambda *_: None)

            async def hint(units: int) -> None:
                for _ in range(units):
                    await sender.fetch(NOTIFY, CHANNEL, ["queue:default"])
                # All have heard before the block ends.
                await asyncio.gather(*(ear.fetchval("SELECT 1") for ear in ears))

            async def read(units: int) -> None:
                for _ in range(units):
                    await raw.read(1)

            yield await race(place, extent, (database, "hint", LISTENING, size), hint, read)
    finally:
        for connection in (sender, *ears):
            await connection.close()
