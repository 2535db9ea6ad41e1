"""Hints through `LISTEN` and `NOTIFY`, on connections of their own. They may be lost; the next poll makes up for it."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator, Sequence
from typing import Any

from holdfast import ambient
from holdfast.store.database import OnHint
from holdfast.store.postgres_pool import CONNECT_TIMEOUT_S, disconnect

BEAT_S = 10.0
BEAT_TIMEOUT_S = 5.0
BACKOFF_S_MAX = 5.0
PAYLOAD_BYTES_MAX = 7_900
TOPIC_BYTES_MAX = 7_800
NOTIFY = "SELECT pg_notify($1, payload) FROM unnest($2::text[]) AS payload"
_LISTENING = "SELECT count(*) FROM pg_listening_channels() AS c WHERE c = $1"


def payloads(sender: str, topics: Sequence[str]) -> Iterator[str]:
    """The sender's name and topics, one per line, in pieces that Postgres will carry.

    A piece without topics means: look at everything.
    """
    piece, size = [sender], len(sender.encode())
    for topic in topics:
        length = len(topic.encode())
        if "\n" in topic or length > TOPIC_BYTES_MAX:
            yield sender
            return
        if size + 1 + length > PAYLOAD_BYTES_MAX:
            yield "\n".join(piece)
            piece, size = [sender], len(sender.encode())
        piece.append(topic)
        size += 1 + length
    if len(piece) > 1:
        yield "\n".join(piece)


def payload(sender: str, topics: Sequence[str]) -> str:
    """The same in one piece."""
    first, *others = payloads(sender, topics)
    return sender if others else first


class Ear:
    """Listens until stopped: asks its connection every few seconds whether it still hears, and makes a new one if not.

    After every new beginning it says "look at everything", because nobody knows what was missed.
    """

    def __init__(
        self,
        connect: Callable[[], Awaitable[Any]],
        channel: str,
        on_hint: OnHint,
        *,
        name: str,
    ) -> None:
        self._connect = connect
        self._channel = channel
        self._on_hint = on_hint
        self._name = name
        self._begun = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Return when it hears, or after a moment if it does not yet."""
        self._task = asyncio.create_task(self._keep_listening())
        try:
            async with asyncio.timeout(CONNECT_TIMEOUT_S):
                await self._begun.wait()
        except TimeoutError:
            return

    async def stop(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    async def _keep_listening(self) -> None:
        delay_s = 0.05
        while True:
            self._begun.clear()
            try:
                await self._listen_once()
            except Exception:
                # Whatever it was: without hints work is found later, without this task it would always be.
                delay_s = 0.05 if self._begun.is_set() else min(delay_s * 2, BACKOFF_S_MAX)
            await asyncio.sleep(ambient.jitter(delay_s))

    async def _listen_once(self) -> None:
        """Listen on one connection until it fails."""
        connection = await self._connect()
        gone = asyncio.Event()
        try:
            connection.add_termination_listener(lambda _: gone.set())
            await connection.add_listener(self._channel, self._heard)
            self._begun.set()
            self._on_hint(())
            while await self._still_hears(connection, gone):
                pass
        finally:
            await disconnect(connection)

    async def _still_hears(self, connection: Any, gone: asyncio.Event) -> bool:
        try:
            async with asyncio.timeout(BEAT_S):
                await gone.wait()
        except TimeoutError:
            count = await connection.fetchval(_LISTENING, self._channel, timeout=BEAT_TIMEOUT_S)
            return bool(count)
        return False

    def _heard(self, _connection: Any, _pid: int, _channel: str, payload: str) -> None:
        sender, *topics = payload.split("\n")
        # What we sent ourselves, this process was told before.
        if sender != self._name:
            self._on_hint(topics)
