"""A session's conversation, read from the journals of its runs: what was asked, what tools did, what was answered.

Nothing is stored a second time. A posted message is the `text` of an input, an answer is a `final` that no
`tick_abandoned` took back; so the conversation is right whenever the journal is, after any crash and any rebuild.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from datetime import datetime
from itertools import groupby
from operator import itemgetter
from typing import Any, NamedTuple

from holdfast.journal.entries import RUN_PREFIX, fact_of, proved
from holdfast.moments import from_us
from holdfast.protocol import facts
from holdfast.protocol.facts import Fact
from holdfast.protocol.messages import is_message
from holdfast.protocol.state import RunState
from holdfast.store import Entry, Store

PLACES_MAX = 100
# Most runs of a busy session may say nothing at all: those are not visited. Bodies are canonical JSON, so a final and a
# posted message have this in them; whatever else has it is told apart when it is read.
_READ = """
    SELECT r.session_id, j.position, j.thread, j.rev, j.kind, j.data, j.at, j.digest, j.commit_id
    FROM {s}runs r
    JOIN {s}journal j ON j.thread = 'run:' || r.run_id
    WHERE r.session_id IN ({places}) AND r.spoken = 1 AND j.at <= $1
      AND (j.kind IN ('run_forked', 'tool_requested', 'tool_answered', 'tick_abandoned')
           OR (j.kind IN ('run_created', 'signal_received') AND j.data LIKE '%"text":%')
           OR (j.kind = 'event' AND j.data LIKE '%"type":"final"%'))
    ORDER BY r.session_id, r.created_at, r.run_id, j.rev
"""


class Message(NamedTuple):
    """One thing that was said or done in a session. `seq` is the entry of its run that says so."""

    session_id: str
    run_id: str
    seq: int
    at: datetime
    role: str
    content: str
    tool: str | None = None
    tool_call_id: str | None = None
    args: Any = None
    is_error: bool = False


async def conversations(
    store: Store[RunState], session_ids: Sequence[str], *, until_us: int = 1 << 62
) -> dict[str, list[Message]]:
    """The messages of each session, by the time of their runs, as they stood at an instant.

    Whose sessions these are is for the caller to know.
    """
    found: dict[str, list[Message]] = {session_id: [] for session_id in session_ids}
    for start in range(0, len(session_ids), PLACES_MAX):
        some = session_ids[start : start + PLACES_MAX]
        places = ", ".join(f"${place}" for place in range(2, len(some) + 2))
        rows = await store.fetch(_READ.replace("{places}", places), until_us, *some)
        for (session_id, _), told in groupby(rows, key=itemgetter(0, 2)):
            found[session_id] += _messages(session_id, [_read(Entry._make(row[1:])) for row in told])
    return found


def input_text(value: Any) -> str:
    """An input as a person would have written it."""
    if isinstance(value, dict) and isinstance(value.get("text"), str):
        return str(value["text"])
    if value is None:
        return ""
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def _read(entry: Entry) -> tuple[Entry, Fact]:
    entry = entry._replace(digest=bytes(entry.digest))
    # Revisions are apart here, so each entry is proved alone.
    list(proved([entry], after=entry.rev - 1))
    return entry, fact_of(entry)


def _messages(session_id: str, told: Sequence[tuple[Entry, Fact]]) -> list[Message]:
    """What one run adds. A fork adds what it did itself: what it copied is its original's."""
    messages: list[Message] = []
    finals: dict[int, str | None] = {}
    for entry, fact in told:
        if isinstance(fact, facts.RunForked):
            messages.clear()
        elif isinstance(fact, facts.TickAbandoned):
            gone = {seq for seq, tick_id in finals.items() if tick_id == fact.tick_id and _is_dropped(seq, fact)}
            messages = [each for each in messages if each.seq not in gone]
        elif (message := _message(session_id, entry, fact)) is not None:
            messages.append(message)
            if isinstance(fact, facts.Event):
                finals[entry.rev] = fact.tick_id
    return messages


def _is_dropped(seq: int, fact: facts.TickAbandoned) -> bool:
    return seq >= fact.from_seq and not any(first <= seq <= last for first, last in fact.keep)


def _message(session_id: str, entry: Entry, fact: Fact) -> Message | None:
    if not is_message(fact):
        return None
    run_id = entry.thread.removeprefix(RUN_PREFIX)
    said = Message(session_id, run_id, entry.rev, from_us(entry.at), "user", "")
    match fact:
        case facts.RunCreated() | facts.SignalReceived():
            return said._replace(content=input_text(fact.input))
        case facts.ToolRequested():
            return said._replace(role="assistant", tool=fact.name, tool_call_id=fact.call_id, args=fact.args)
        case facts.ToolAnswered():
            failed = fact.status == "failed"
            shown = fact.error if failed else fact.result if fact.shown is None else fact.shown
            answered = said._replace(role="tool", content=input_text(shown), is_error=failed)
            return answered._replace(tool=fact.name, tool_call_id=fact.call_id)
        case facts.Event():
            return said._replace(role="assistant", content=_answer(fact.data))
        case _:
            return None


def _answer(data: Any) -> str:
    return input_text(data["content"]) if isinstance(data, dict) and "content" in data else input_text(data)
