"""The parts of a run that a command may need to see, each one small query on a primary key.

Named parameters become columns of the request on Postgres (all parts of all requests in one statement, one snapshot)
and bound values on SQLite (one read transaction).
"""

from __future__ import annotations

PARTS: dict[str, str] = {
    "work": "SELECT * FROM {s}work WHERE run_id = :run_id",
    # Two are enough: the signal bound to this tick and the one that comes next.
    "signals": "SELECT * FROM {s}signals WHERE run_id = :run_id AND tick_id IS NULL ORDER BY seq LIMIT 2",
    # Ids first, then one look-up each: a long-lived run has far more ticks than this asks for.
    "ticks": """
        SELECT t.*
        FROM (
            SELECT :claim_id AS tick_id
            UNION
            SELECT claim_id FROM {s}work WHERE run_id = :run_id AND claim_id IS NOT NULL
        ) c
        CROSS JOIN {s}ticks t
        WHERE t.tick_id = c.tick_id AND t.run_id = :run_id
    """,
    "children": """
        SELECT * FROM {s}children
        WHERE run_id = :run_id
          AND (
              (status IS NULL AND :only_child = '')
              OR child_run_id IN (:child_run_id, :only_child)
              OR child_run_id IN {awaited}
          )
    """,
    "steps": """
        SELECT * FROM {s}steps
        WHERE run_id = :run_id AND name = :step AND occurrence = CAST(nullif(:occurrence, '') AS integer)
    """,
    # The oldest of each name that is waited for is enough.
    "awaited": """
        SELECT * FROM {s}signals g
        WHERE g.run_id = :run_id AND g.tick_id IS NULL AND coalesce(g.name, '') IN {awaited}
          AND g.seq = (
              SELECT min(o.seq) FROM {s}signals o
              WHERE o.run_id = :run_id AND o.tick_id IS NULL AND coalesce(o.name, '') = coalesce(g.name, '')
          )
    """,
    # Keys first, then one look-up each: a wide map has far more items than this asks for. Beside them a few that
    # wait for room; and for a planner every step, and whatever is open.
    "runnables": """
        SELECT r.*
        FROM (SELECT :runnable_key AS key UNION SELECT key FROM {runnables}) k
        CROSS JOIN {s}runnables r
        WHERE r.run_id = :run_id AND r.key = k.key
        UNION ALL
        SELECT u.*
        FROM (
            SELECT * FROM {s}runnables
            WHERE run_id = :run_id AND status = 'planned' AND :runnables <> '' ORDER BY planned_rev LIMIT 8
        ) u
        UNION ALL
        SELECT p.* FROM {s}runnables p WHERE :planner <> '' AND p.run_id = :run_id AND p.map_key = ''
        UNION ALL
        SELECT o.*
        FROM {s}work w
        CROSS JOIN {s}runnables o
        WHERE :planner <> '' AND w.run_id = :run_id AND o.run_id = :run_id AND o.key = w.key AND o.map_key <> ''
    """,
    # Those that the next outcome closes, and the one that is named.
    "tools": "SELECT * FROM {s}tools WHERE run_id = :run_id AND (kept = 0 OR slot = :step)",
    "keys": "SELECT * FROM {s}keys WHERE scope = :scope AND key = :key",
    "anomalies": "SELECT * FROM {s}anomalies WHERE run_id = :run_id AND claim_id IN ('', :claim_id)",
    "handoffs": "SELECT * FROM {s}handoffs WHERE target_run_id = :run_id",
    "tickets": "SELECT * FROM {s}lane_tickets WHERE run_id = :run_id",
    # Whoever holds the lane, else whoever has waited longest; of those that came at one instant, who was written first.
    "lane": """
        SELECT t.run_id
        FROM {s}lane_tickets t
        WHERE t.session_id = coalesce((SELECT r.session_id FROM {s}runs r WHERE r.run_id = :run_id), :session_id)
          AND t.lane = coalesce((SELECT r.lane FROM {s}runs r WHERE r.run_id = :run_id), :lane)
        ORDER BY t.held DESC, t.at, (
            SELECT j.position FROM {s}journal j WHERE j.thread = 'run:' || t.run_id AND j.rev = t.rev
        )
        LIMIT 1
    """,
    # Versions only: a value may be large, and nobody judges by it.
    "storage": """
        SELECT run_id, clog_id, tick_id, row_id, rev, at
        FROM {s}run_storage
        WHERE run_id = :run_id AND :storage <> '' AND tick_id IN ('', :claim_id)
    """,
    "shared": """
        SELECT name, run_id, rev
        FROM {s}shared_storage
        WHERE name IN (SELECT value FROM json_each(nullif(:shared, '')))
    """,
}
WHOLE: dict[str, str] = {
    **{
        name: f"SELECT * FROM {{s}}{name} WHERE run_id = :run_id"
        for name in ("work", "signals", "ticks", "children", "runnables", "anomalies", "steps", "tools")
    },
    "keys": "SELECT * FROM {s}keys WHERE run_id = :run_id AND scope = 'run:' || :run_id",
    "storage": "SELECT run_id, clog_id, tick_id, row_id, rev, at FROM {s}run_storage WHERE run_id = :run_id",
    **{name: PARTS[name] for name in ("handoffs", "tickets", "lane")},
}
"""All of them, for entries that may concern any part of the run."""

RUN = "SELECT * FROM {s}runs WHERE run_id = :run_id"
