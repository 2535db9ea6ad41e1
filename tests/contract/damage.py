"""Every way in which these tests break a database: each is a few raw statements under a healthy runtime.

A `Damage` says what it breaks, which law must name it and in which words, and whether a rebuild can put it right.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from datetime import timedelta
from typing import Any, NamedTuple

import msgspec

from holdfast.protocol.values import digest
from tests.contract.scene import LOG, NOTES, Scene

Plant = Callable[[Scene], Awaitable[None]]


class Damage(NamedTuple):
    """One thing that is broken. `words` stand in the problem's detail."""

    name: str
    victim: str
    law: str
    words: str
    plant: Plant


def raw(victim: str, sql: str, *params: Any) -> Plant:
    """A statement about one run or thread; $1 is the run's id, or the thread."""

    async def plant(scene: Scene) -> None:
        await scene.execute(sql, scene.run_id(victim) or victim, *params)

    return plant


def entry(victim: str, change: str, rev: int) -> Plant:
    """A statement about one entry; $1 is the thread, $2 the revision."""

    async def plant(scene: Scene) -> None:
        await scene.execute(f"{change} WHERE thread = $1 AND rev = $2", scene.thread(victim), rev)

    return plant


async def flip_a_byte(scene: Scene) -> None:
    place = (scene.thread("pending"), 1)
    data = await scene.value("SELECT data FROM {s}journal WHERE thread = $1 AND rev = $2", *place)
    flipped = data.replace('"n":1', '"n":3')
    assert flipped != data
    await scene.execute("UPDATE {s}journal SET data = $3 WHERE thread = $1 AND rev = $2", *place, flipped)


async def forge(scene: Scene, name: str, kind: str, data: dict[str, Any], *, moves_head: bool) -> None:
    """Put a well-made entry at the end of a run's thread, as if it had been written by us."""
    thread = scene.thread(name)
    rev = 1 + await scene.value("SELECT max(rev) FROM {s}journal WHERE thread = $1", thread)
    at = await scene.value("SELECT max(at) FROM {s}journal WHERE thread = $1", thread)
    body = msgspec.json.encode({**data, "v": 1}, order="sorted").decode()
    await scene.execute(
        "INSERT INTO {s}journal (thread, rev, kind, data, at, digest, commit_id) VALUES ($1, $2, $3, $4, $5, $6, 7)",
        *(thread, rev, kind, body, at, digest(kind, body)),
    )
    if moves_head:
        await scene.execute("UPDATE {s}runs SET rev = $2 WHERE run_id = $1", scene.runs[name], rev)


async def speak_after_the_end(scene: Scene) -> None:
    paused = {"step": "late", "kind": "pause"}
    await forge(scene, "failed", "manual_step_paused", paused, moves_head=False)


async def claim_what_is_claimed(scene: Scene) -> None:
    """The forger copies the living claim under another name and moves the head along."""
    thread = scene.thread("mailbox")
    sql = "SELECT data FROM {s}journal WHERE thread = $1 AND kind = 'attempt_claimed'"
    claimed = msgspec.json.decode(await scene.value(sql, thread))
    await forge(scene, "mailbox", "attempt_claimed", {**claimed, "claim_id": "intruder"}, moves_head=True)


async def use_a_token_twice(scene: Scene) -> None:
    """The second claim of a run is rewritten, in journal and rows alike, to carry the first one's token."""
    run_id, thread = scene.runs["retried"], scene.thread("retried")
    own = await scene.value("SELECT claim_token_hash FROM {s}work WHERE run_id = $1", run_id)
    sql = "SELECT rev, data FROM {s}journal WHERE thread = $1 AND kind = 'attempt_claimed' ORDER BY rev DESC"
    ((rev, data), *_) = await scene.hf.journal.store.fetch(sql, thread)
    body = data.replace(own, scene.used_token_hash)
    await scene.execute("UPDATE {s}work SET claim_token_hash = $2 WHERE run_id = $1", run_id, scene.used_token_hash)
    await scene.execute(
        "UPDATE {s}journal SET data = $3, digest = $4 WHERE thread = $1 AND rev = $2",
        *(thread, rev, body, digest("attempt_claimed", body)),
    )


async def invent_work(scene: Scene) -> None:
    columns = "key, queue, clog_id, priority, step, visible_at, waiting, attempt, deliveries"
    await scene.execute(
        f"INSERT INTO {{s}}work (run_id, {columns}) VALUES ($1, 'ghost', 'default', 'busy', 0, '', 0, 0, 0, 0)",
        scene.runs["rested"],
    )


async def give_a_key_away(scene: Scene) -> None:
    """The key now answers with a stranger's run."""
    sql = "UPDATE {s}keys SET run_id = $2 WHERE run_id = $1"
    await scene.execute(sql, scene.runs["keyed"], scene.runs["sibling"])


LOSE = "DELETE FROM {s}journal"
OF_RUN = "WHERE run_id = $1"
HOUR_US = timedelta(hours=1) // timedelta(microseconds=1)

ROW_DAMAGES = (
    Damage(
        "a changed run row",
        *("done", "P1", "status is 'pending', the journal says 'done'"),
        raw("done", f"UPDATE {{s}}runs SET status = 'pending' {OF_RUN}"),
    ),
    Damage(
        "a forgotten error",
        *("failed", "P1", "last_error is None, the journal says 'broken'"),
        raw("failed", f"UPDATE {{s}}runs SET last_error = NULL {OF_RUN}"),
    ),
    Damage(
        "a run row of the past",
        *("talking", "J11", "the head says 1, the last entry is"),
        raw("talking", f"UPDATE {{s}}runs SET rev = 1 {OF_RUN}"),
    ),
    Damage(
        "a changed work row",
        *("sleeping", "P1", "visible_at is"),
        raw("sleeping", f"UPDATE {{s}}work SET visible_at = 1 {OF_RUN}"),
    ),
    Damage(
        "a lease nobody gave",
        *("retried", "P1", "lease_until is"),
        raw("retried", f"UPDATE {{s}}work SET lease_until = lease_until + $2 {OF_RUN}", HOUR_US),
    ),
    Damage(
        "a missing run row",
        *("approved", "P7", "the run has entries but no row"),
        raw("approved", f"DELETE FROM {{s}}runs {OF_RUN}"),
    ),
    Damage(
        "a missing work row",
        *("retried", "D9", "nothing of it can be claimed"),
        raw("retried", f"DELETE FROM {{s}}work {OF_RUN}"),
    ),
    Damage("an invented work row", "rested", "P7", "'ghost'] is not in the journal", invent_work),
    Damage(
        "a missing signal row",
        *("mailbox", "P7", "is missing"),
        raw("mailbox", f"DELETE FROM {{s}}signals {OF_RUN} AND seq = 4"),
    ),
    Damage(
        "a signal marked as read",
        *("paused", "P1", "tick_id is 'nobody'"),
        raw("paused", f"UPDATE {{s}}signals SET tick_id = 'nobody' {OF_RUN}"),
    ),
    Damage(
        "a missing tick row",
        *("lost", "P7", "ticks["),
        raw("lost", f"DELETE FROM {{s}}ticks {OF_RUN} AND outcome = 'abandoned'"),
    ),
    Damage(
        "a missing child row",
        *("parent", "P7", "children["),
        raw("parent", f"DELETE FROM {{s}}children {OF_RUN} AND child_key = 'child'"),
    ),
    Damage(
        "a missing step row",
        *("stepping", "P7", "runnables["),
        raw("stepping", f"DELETE FROM {{s}}runnables {OF_RUN}"),
    ),
    Damage(
        "a missing keys row",
        *("approved", "P7", "keys["),
        raw("approved", f"DELETE FROM {{s}}keys {OF_RUN}"),
    ),
    Damage(
        "a missing anomalies row",
        *("done", "P7", "anomalies["),
        raw("done", f"DELETE FROM {{s}}anomalies {OF_RUN}"),
    ),
    Damage(
        "a missing storage row",
        *("storing", "P7", "run_storage["),
        raw("storing", f"DELETE FROM {{s}}run_storage {OF_RUN} AND tick_id = ''"),
    ),
    Damage(
        "a changed storage row",
        *("storing", "P1", """value is '7', the journal says '"a row"'"""),
        raw("storing", f"UPDATE {{s}}run_storage SET value = '7' {OF_RUN} AND tick_id <> ''"),
    ),
    Damage(
        "a missing shared row",
        *("storing", "P9", "shared_storage['session/s/busy'] is missing"),
        raw("storing", f"DELETE FROM {{s}}shared_storage {OF_RUN} AND session_id IS NOT NULL"),
    ),
    Damage(
        "a changed shared row",
        *("storing", "P9", "shared_storage['global/local/busy'] is not what entry 3 says"),
        raw("storing", f"UPDATE {{s}}shared_storage SET value = '7' {OF_RUN} AND session_id IS NULL"),
    ),
    Damage(
        "an invented shared row",
        *("rested", "P9", "shared_storage['global/eve/busy'] is not in the journal"),
        raw("rested", "INSERT INTO {s}shared_storage VALUES ('global/eve/busy', NULL, $1, 2, '1')"),
    ),
    Damage(
        "a missing ticket",
        *("queued", "P7", "lane_tickets["),
        raw("queued", f"DELETE FROM {{s}}lane_tickets {OF_RUN}"),
    ),
    Damage(
        "a head that lost its lane",
        *("head", "P1", "held is 0, the journal says 1"),
        raw("head", f"UPDATE {{s}}lane_tickets SET held = 0 {OF_RUN}"),
    ),
    Damage(
        "work that is due out of turn",
        *("queued", "P1", "blocked is 0, the journal says 1"),
        raw("queued", f"UPDATE {{s}}work SET blocked = 0 {OF_RUN}"),
    ),
    Damage(
        "a missing tombstone",
        *("deleted", "P7", "the run has entries but no tombstone"),
        raw("deleted", f"DELETE FROM {{s}}tombstones {OF_RUN}"),
    ),
    Damage(
        "a free head of the past",
        *(NOTES, "J11", "the head says 2, the last entry is 4"),
        raw(NOTES, "UPDATE {s}threads SET rev = 2 WHERE thread = $1"),
    ),
    Damage(
        "a missing free head",
        *(LOG, "J11", "the head says 0, the last entry is 2"),
        raw(LOG, "DELETE FROM {s}threads WHERE thread = $1"),
    ),
)
"""The rows are wrong and the journal is right: what a rebuild is for."""

JOURNAL_DAMAGES = (
    Damage("a missing first entry", "approved", "J1", "revision 1 is missing", entry("approved", LOSE, 1)),
    Damage("a missing middle entry", "talking", "J1", "revision 3 is missing", entry("talking", LOSE, 3)),
    Damage("a missing last entry", "rested", "J11", "the head says 3, the last entry is 2", entry("rested", LOSE, 3)),
    Damage("a flipped byte", "pending", "J10", "was changed after it was written", flip_a_byte),
    Damage(
        "a changed kind",
        *("cancelled", "J10", "was changed after it was written"),
        entry("cancelled", "UPDATE {s}journal SET kind = 'event'", 2),
    ),
    Damage(
        "a shifted revision",
        *("asked", "J1", "revision 2 is missing, 9 stands in its place"),
        entry("asked", "UPDATE {s}journal SET rev = 9", 2),
    ),
    Damage(
        "an instant before its time",
        *("lost", "J6", "entry 4 is earlier than entry 3"),
        entry("lost", "UPDATE {s}journal SET at = 1", 4),
    ),
    Damage(
        "a torn commit",
        *("mailbox", "J8", "is torn from the rest of its commit"),
        entry(
            "mailbox",
            "UPDATE {s}journal SET commit_id = (SELECT commit_id FROM {s}journal WHERE thread = $1 AND rev = 1)",
            4,
        ),
    ),
    Damage(
        "a deletion that was forgotten",
        *("deleted", "J11", "the head says 3, the last entry is 2"),
        entry("deleted", LOSE, 3),
    ),
    Damage("a token used twice", "retried", "D14", "share a token", use_a_token_twice),
    Damage("a free entry lost in the middle", NOTES, "J1", "revision 2 is missing", entry(NOTES, LOSE, 2)),
    Damage("a free entry lost at the end", LOG, "J11", "the head says 2, the last entry is 1", entry(LOG, LOSE, 2)),
    Damage(
        "a free head of the future",
        *(LOG, "J11", "the head says 7, the last entry is 2"),
        raw(LOG, "UPDATE {s}threads SET rev = 7 WHERE thread = $1"),
    ),
)
"""The journal is wrong, or may be: nothing repairs that, and nothing may pretend to."""

FORGERIES = (
    Damage("a fact after the end", "failed", "J11", "the head says 4, the last entry is 5", speak_after_the_end),
    Damage(
        "a claim inside a live lease",
        *("mailbox", "P7", "'active_claim', 'intruder'] is missing"),
        claim_what_is_claimed,
    ),
)
"""Entries that we did not write but could have: the journal is believed, and judges them as anomalies."""

DAMAGES = (*ROW_DAMAGES, *JOURNAL_DAMAGES, *FORGERIES)
