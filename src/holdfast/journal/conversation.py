"""A session's conversation, read from the journals of its runs: what was asked, what tools did, what was answered.

Nothing is stored a second time. A posted message is the `text` of an input, an answer is a `final` that no
`tick_abandoned` took back; so the conversation is right whenever the journal is, after any crash and any rebuild.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from datetime import datetime
from typing import Any, NamedTuple

from holdfast.journal.entries import RUN_PREFIX, fact_of, proved
from holdfast.moments import from_us
from holdfast.protocol import facts
from holdfast.protocol.facts import Fact
from holdfast.protocol.state import RunState
from holdfast.store import Entry, Store

FINAL = "final"
PLACES_MAX = 100
_KINDS = "'run_created', 'run_forked', 'signal_received', 'tool_requested', 'tool_answered', 'tick_abandoned'"
# Bodies are canonical JSON, so a final has this in it; whatever else has it is told apart when it is read.
_READ = f"""
    SELECT j.position, j.thread, j.rev, j.kind, j.data, j.at, j.digest, j.commit_id
    FROM {{s}}runs r
    JOIN {{s}}journal j ON j.thread = 'run:' || r.run_id
    WHERE r.session_id IN ({{places}}) AND j.at <= $1
      AND (j.kind IN ({_KINDS}) OR (j.kind = 'event' AND j.data LIKE '%"type":"final"%'))
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
        for told in _by_run(rows):
            messages = _messages(told)
            if messages:
                found[messages[0].session_id] += messages
    return found


def input_text(value: Any) -> str:
    """An input as a person would have written it."""
    if isinstance(value, dict) and isinstance(value.get("text"), str):
        return str(value["text"])
    if value is None:
        return ""
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def _by_run(rows: Iterable[tuple[Any, ...]]) -> Iterator[list[tuple[Entry, Fact]]]:
    told: list[tuple[Entry, Fact]] = []
    for row in rows:
        entry = Entry._make(row)
        entry = entry._replace(digest=bytes(entry.digest))
        # Revisions are apart here, so each entry is proved alone.
        list(proved([entry], after=entry.rev - 1))
        if told and told[0][0].thread != entry.thread:
            yield told
            told = []
        told.append((entry, fact_of(entry)))
    if told:
        yield told


def _messages(told: Sequence[tuple[Entry, Fact]]) -> list[Message]:
    """What one run adds. A fork adds what it did itself: what it copied is its original's."""
    created = told[0][1]
    if not isinstance(created, facts.RunCreated):
        return []
    messages: list[Message] = []
    finals: dict[int, str | None] = {}
    for entry, fact in told:
        if isinstance(fact, facts.RunForked):
            messages.clear()
        elif isinstance(fact, facts.TickAbandoned):
            gone = {seq for seq, tick_id in finals.items() if tick_id == fact.tick_id and _is_dropped(seq, fact)}
            messages = [each for each in messages if each.seq not in gone]
        elif (message := _message(entry, fact, created)) is not None:
            messages.append(message)
            if isinstance(fact, facts.Event):
                finals[entry.rev] = fact.tick_id
    return messages


def _is_dropped(seq: int, fact: facts.TickAbandoned) -> bool:
    return seq >= fact.from_seq and not any(first <= seq <= last for first, last in fact.keep)


def _message(entry: Entry, fact: Fact, created: facts.RunCreated) -> Message | None:
    run_id = entry.thread.removeprefix(RUN_PREFIX)
    said = Message(created.session_id, run_id, entry.rev, from_us(entry.at), "user", "")
    match fact:
        case facts.RunCreated() | facts.SignalReceived() if _is_spoken(fact):
            return said._replace(content=input_text(fact.input))
        case facts.ToolRequested() if fact.tries == 0:
            return said._replace(role="assistant", tool=fact.name, tool_call_id=fact.call_id, args=fact.args)
        case facts.ToolAnswered():
            failed = fact.status == "failed"
            shown = fact.error if failed else fact.result if fact.shown is None else fact.shown
            answered = said._replace(role="tool", content=input_text(shown), is_error=failed)
            return answered._replace(tool=fact.name, tool_call_id=fact.call_id)
        case facts.Event(type="final"):
            return said._replace(role="assistant", content=_answer(fact.data))
        case _:
            return None


def _is_spoken(fact: facts.RunCreated | facts.SignalReceived) -> bool:
    """A message of a person. What a parent gives its child is none."""
    is_text = fact.has_input and isinstance(fact.input, dict) and isinstance(fact.input.get("text"), str)
    return is_text and getattr(fact, "parent", None) is None


def _answer(data: Any) -> str:
    return input_text(data["content"]) if isinstance(data, dict) and "content" in data else input_text(data)
