-- Names and ids are compared byte by byte ("C"), whatever the database's own language: ranges of ids and the order of
-- locks must mean the same here, in SQLite and in Python.
CREATE SEQUENCE {s}position;

-- Sessions group runs and name their owner; the pair is what a run refers to, so no run lands in a stranger's session.
CREATE TABLE {s}sessions (
    session_id text COLLATE "C" PRIMARY KEY,
    user_id    text COLLATE "C" NOT NULL,
    title      text,
    created_at bigint NOT NULL DEFAULT 0,
    UNIQUE (session_id, user_id)
);
CREATE INDEX sessions_by_user ON {s}sessions (user_id, session_id);

-- No body is kept here: input_rev and output_rev point into the journal.
CREATE TABLE {s}runs (
    run_id              text COLLATE "C" CHECK (run_id <> ''),
    session_id          text COLLATE "C" NOT NULL,
    user_id             text COLLATE "C" NOT NULL,
    clog_id             text COLLATE "C" NOT NULL,
    queue               text COLLATE "C" NOT NULL,
    mode                text NOT NULL,
    lane                text,
    priority            integer NOT NULL,
    max_attempts        integer NOT NULL,
    backoff_us          bigint NOT NULL,
    backoff_max_us      bigint NOT NULL,
    max_deliveries      integer NOT NULL,
    resumable           integer NOT NULL,
    parent_run_id       text COLLATE "C",
    created_at          bigint NOT NULL,
    spoken              integer NOT NULL DEFAULT 0,
    status              text NOT NULL CHECK (
        status IN ('idle', 'pending', 'active', 'waiting', 'paused', 'done', 'failed', 'cancelled')
    ),
    rev                 integer NOT NULL,
    at                  bigint NOT NULL,
    attempt             integer NOT NULL,
    deliveries          integer NOT NULL,
    input_rev           integer,
    output_rev          integer,
    ended_rev           integer,
    wake_at             bigint,
    last_error          text,
    error_kind          text,
    cancel_requested_at bigint,
    started_at          bigint,
    finished_at         bigint,
    boundary_step       text,
    boundary_kind       text,
    boundary_rev        integer,
    boundary_expires_at bigint,
    boundary_occurrence integer,
    boundary_flow       integer,
    boundary_shown      text,
    boundary_proposal   text COLLATE "C",
    flow                integer NOT NULL DEFAULT 0,
    definition          text,
    definition_rev      integer,
    undoing             integer NOT NULL DEFAULT 0,
    FOREIGN KEY (session_id, user_id) REFERENCES {s}sessions (session_id, user_id)
) WITH (
    fillfactor = 60, autovacuum_vacuum_scale_factor = 0.01, autovacuum_vacuum_threshold = 500,
    autovacuum_vacuum_cost_delay = 0
);
-- Newest first, for lists. None on a column that changes: updates would touch every index.
CREATE INDEX runs_by_session ON {s}runs (session_id, created_at, run_id);
CREATE INDEX runs_by_clog ON {s}runs (clog_id, created_at, run_id);
CREATE INDEX runs_by_user ON {s}runs (user_id, created_at, run_id);
CREATE INDEX runs_by_age ON {s}runs (created_at, run_id);
-- Open questions to people.
CREATE INDEX runs_by_question ON {s}runs (created_at, run_id) WHERE boundary_step IS NOT NULL;
-- Who asks about a proposal, the first to ask first.
CREATE INDEX runs_by_proposal ON {s}runs (boundary_proposal, created_at, run_id)
    WHERE boundary_proposal IS NOT NULL;
-- Conversations: of a session's runs those that have a part in it.
CREATE INDEX runs_by_speech ON {s}runs (session_id, created_at, run_id) WHERE spoken = 1;
-- Questions that nobody may have answered in time.
CREATE INDEX runs_by_expiry ON {s}runs (boundary_expires_at) WHERE boundary_expires_at IS NOT NULL;
-- Last, because of two indexes that cost the same the planner takes the younger: while a table is small all cost the
-- same, and the plan that was made then is kept.
ALTER TABLE {s}runs ADD PRIMARY KEY (run_id);

-- Open work only; a settled item leaves the table. due_at puts a live lease behind its end, and the work of a run that
-- waits for its lane behind everything. Every run writes here and to ticks, so neither refers to runs by a constraint:
-- checking it would cost more than the row. Whoever removes a run removes these first.
CREATE TABLE {s}work (
    run_id           text COLLATE "C" NOT NULL,
    key              text COLLATE "C" NOT NULL,
    queue            text COLLATE "C" NOT NULL,
    clog_id          text COLLATE "C" NOT NULL,
    priority         integer NOT NULL,
    step             text NOT NULL,
    visible_at       bigint NOT NULL,
    waiting          integer NOT NULL,
    attempt          integer NOT NULL,
    deliveries       integer NOT NULL,
    input_rev        integer,
    owner_id         text,
    claim_id         text COLLATE "C",
    claim_token_hash text,
    lease_until      bigint,
    blocked          integer NOT NULL DEFAULT 0,
    awaits           text NOT NULL DEFAULT '',
    due_at           bigint NOT NULL GENERATED ALWAYS AS (
        greatest(visible_at, coalesce(lease_until, 0), blocked * 2305843009213693952)
    ) STORED,
    PRIMARY KEY (run_id, key),
    CHECK ((claim_id IS NULL) = (lease_until IS NULL) AND (claim_id IS NULL) = (owner_id IS NULL)),
    CHECK ((claim_id IS NULL) = (claim_token_hash IS NULL))
) WITH (
    fillfactor = 60, autovacuum_vacuum_scale_factor = 0.01, autovacuum_vacuum_threshold = 500,
    autovacuum_vacuum_cost_delay = 0
);
CREATE INDEX work_due ON {s}work (queue, priority, due_at);

-- The truth. Text, not jsonb: jsonb refuses, reorders and rounds what must be read back as it was written.
CREATE TABLE {s}journal (
    position  bigint NOT NULL DEFAULT nextval('{s}position'),
    thread    text COLLATE "C" NOT NULL CHECK (thread <> ''),
    rev       integer NOT NULL CHECK (rev > 0),
    kind      text NOT NULL,
    data      text NOT NULL,
    at        bigint NOT NULL,
    digest    bytea NOT NULL,
    commit_id bigint NOT NULL,
    PRIMARY KEY (thread, rev)
);
-- Positions grow with the file, so a coarse index finds them.
CREATE INDEX journal_by_position ON {s}journal USING brin (position) WITH (pages_per_range = 16);

-- Heads of the threads that belong to no run.
CREATE TABLE {s}threads (
    thread text COLLATE "C" PRIMARY KEY,
    rev    integer NOT NULL,
    at     bigint NOT NULL
);

CREATE TABLE {s}ticks (
    tick_id       text COLLATE "C",
    run_id        text COLLATE "C" NOT NULL,
    key           text COLLATE "C" NOT NULL,
    claimed_rev   integer NOT NULL,
    started_at    bigint NOT NULL,
    outcome       text,
    result_digest text,
    settled_rev   integer,
    spent         text NOT NULL DEFAULT '',
    kept          text NOT NULL DEFAULT ''
-- A tick begins at half the length that it ends with, and a page of them may begin before one ends. With room for that
-- an end stays on its page, and the indexes as they are; without, it goes elsewhere, and leaves a gap on an old page.
) WITH (fillfactor = 40);
CREATE INDEX ticks_by_run ON {s}ticks (run_id, claimed_rev);
ALTER TABLE {s}ticks ADD PRIMARY KEY (tick_id);

CREATE TABLE {s}signals (
    run_id    text COLLATE "C" NOT NULL REFERENCES {s}runs (run_id) ON DELETE CASCADE,
    seq       integer NOT NULL,
    signal_id text NOT NULL,
    name      text,
    has_input integer NOT NULL,
    tick_id   text COLLATE "C",
    PRIMARY KEY (run_id, seq)
);
CREATE INDEX signals_waiting ON {s}signals (run_id, seq) WHERE tick_id IS NULL;

CREATE TABLE {s}children (
    run_id       text COLLATE "C" NOT NULL REFERENCES {s}runs (run_id) ON DELETE CASCADE,
    child_run_id text COLLATE "C" NOT NULL,
    clog_id      text COLLATE "C" NOT NULL,
    child_key    text NOT NULL,
    step         text NOT NULL,
    started_rev  integer NOT NULL,
    status       text,
    finished_rev integer,
    on_cancel    text NOT NULL,
    PRIMARY KEY (run_id, child_run_id)
);

CREATE TABLE {s}runnables (
    run_id        text COLLATE "C" NOT NULL REFERENCES {s}runs (run_id) ON DELETE CASCADE,
    key           text COLLATE "C" NOT NULL,
    step          text NOT NULL,
    planned_rev   integer,
    scheduled_rev integer,
    intent_digest text,
    status        text NOT NULL,
    result_digest text,
    result_rev    integer,
    applied_rev   integer,
    skipped       integer NOT NULL DEFAULT 0,
    map_key       text NOT NULL DEFAULT '',
    items         integer,
    next_item     integer NOT NULL DEFAULT 0,
    remaining     integer NOT NULL DEFAULT 0,
    PRIMARY KEY (run_id, key)
);
-- Steps that wait for room among the open ones of their run.
CREATE INDEX runnables_unscheduled ON {s}runnables (run_id, planned_rev) WHERE status = 'planned';

CREATE TABLE {s}anomalies (
    run_id       text COLLATE "C" NOT NULL REFERENCES {s}runs (run_id) ON DELETE CASCADE,
    reason       text COLLATE "C" NOT NULL,
    claim_id     text COLLATE "C" NOT NULL,
    entry_kind   text NOT NULL,
    rev          integer NOT NULL,
    runnable_key text NOT NULL,
    step         text NOT NULL,
    PRIMARY KEY (run_id, reason, claim_id)
);

-- Keys that callers gave; they live as long as what they made.
CREATE TABLE {s}keys (
    scope       text COLLATE "C" NOT NULL,
    key         text COLLATE "C" NOT NULL,
    body_digest text NOT NULL,
    run_id      text COLLATE "C" NOT NULL REFERENCES {s}runs (run_id) ON DELETE CASCADE,
    rev         integer NOT NULL,
    PRIMARY KEY (scope, key)
);
CREATE INDEX keys_by_run ON {s}keys (run_id);

-- What one run's commit means for another, until the other has committed it.
CREATE TABLE {s}handoffs (
    target_run_id text COLLATE "C" NOT NULL,
    source_run_id text COLLATE "C" NOT NULL,
    kind          text COLLATE "C" NOT NULL,
    rev           integer NOT NULL,
    PRIMARY KEY (target_run_id, source_run_id, kind)
);

-- Steps of flows that have an answer; the answer itself stands in the journal.
CREATE TABLE {s}steps (
    run_id     text COLLATE "C" NOT NULL REFERENCES {s}runs (run_id) ON DELETE CASCADE,
    name       text COLLATE "C" NOT NULL,
    occurrence integer NOT NULL,
    rev        integer NOT NULL,
    status     text NOT NULL,
    attempt    integer NOT NULL,
    PRIMARY KEY (run_id, name, occurrence)
);

-- Places where a tool was asked for: open ones, and answers that the same work may come to again.
CREATE TABLE {s}tools (
    run_id      text COLLATE "C" NOT NULL REFERENCES {s}runs (run_id) ON DELETE CASCADE,
    slot        text COLLATE "C" NOT NULL,
    tool_key    text NOT NULL,
    name        text NOT NULL,
    args_sha256 text NOT NULL,
    vendor      text NOT NULL,
    parent_id   text,
    status      text NOT NULL,
    rev         integer NOT NULL,
    asked_at    bigint NOT NULL,
    tries       integer NOT NULL,
    calls       integer NOT NULL,
    kept        integer NOT NULL,
    PRIMARY KEY (run_id, slot)
);

-- Storage of run scope (tick_id = '') and of tick scope.
CREATE TABLE {s}run_storage (
    run_id  text COLLATE "C" NOT NULL REFERENCES {s}runs (run_id) ON DELETE CASCADE,
    clog_id text COLLATE "C" NOT NULL,
    tick_id text COLLATE "C" NOT NULL,
    row_id  text COLLATE "C" NOT NULL,
    rev     integer NOT NULL,
    at      bigint NOT NULL,
    value   text NOT NULL,
    PRIMARY KEY (run_id, clog_id, tick_id, row_id)
);

-- Storage of session and global scope. run_id and rev name the entry that wrote it, which is its version.
CREATE TABLE {s}shared_storage (
    name       text COLLATE "C",
    session_id text COLLATE "C" REFERENCES {s}sessions (session_id) ON DELETE CASCADE,
    run_id     text COLLATE "C" NOT NULL,
    rev        integer NOT NULL,
    value      text NOT NULL
);
CREATE INDEX shared_storage_by_session ON {s}shared_storage (session_id);
ALTER TABLE {s}shared_storage ADD PRIMARY KEY (name);

-- Runs that have something to do in a lane. One of them holds it.
CREATE TABLE {s}lane_tickets (
    run_id     text COLLATE "C" REFERENCES {s}runs (run_id) ON DELETE CASCADE,
    session_id text COLLATE "C" NOT NULL,
    lane       text COLLATE "C" NOT NULL,
    at         bigint NOT NULL,
    rev        integer NOT NULL,
    held       integer NOT NULL
);
CREATE INDEX lane_tickets_in_order ON {s}lane_tickets (session_id, lane, held DESC, at);
CREATE UNIQUE INDEX lane_tickets_held ON {s}lane_tickets (session_id, lane) WHERE held = 1;
ALTER TABLE {s}lane_tickets ADD PRIMARY KEY (run_id);

-- What must reach the outside. It outlives the run that asked for it; run_id is null where no run did. The lease is
-- locked_by, claim_id, claim_token_hash and lease_until; claim_id stays, so that a holder whose answer was lost can see
-- whether it settled. seq puts rows of one instant in their order.
CREATE TABLE {s}outbox (
    seq              bigint NOT NULL GENERATED BY DEFAULT AS IDENTITY,
    outbox_id        text COLLATE "C",
    run_id           text COLLATE "C",
    user_id          text COLLATE "C" NOT NULL,
    target_space     text COLLATE "C" NOT NULL,
    payload          text NOT NULL,
    payload_sha      text COLLATE "C" NOT NULL,
    idempotency_key  text COLLATE "C",
    status           text COLLATE "C" NOT NULL DEFAULT 'pending' CHECK (status IN ('pending', 'sent', 'dead')),
    retry_count      integer NOT NULL DEFAULT 0,
    max_retries      integer,
    next_attempt_at  bigint NOT NULL,
    created_at       bigint NOT NULL,
    settled_at       bigint,
    locked_by        text COLLATE "C",
    locked_at        bigint,
    lease_us         bigint,
    lease_until      bigint,
    claim_id         text COLLATE "C",
    claim_token_hash text COLLATE "C",
    deliveries       integer NOT NULL DEFAULT 0,
    attempts_made    integer NOT NULL DEFAULT 0,
    last_error       text,
    error_kind       text,
    result_ref       text,
    requeued_from    text COLLATE "C",
    told             integer NOT NULL DEFAULT 0,
    UNIQUE (target_space, idempotency_key),
    CHECK ((locked_by IS NULL) = (lease_until IS NULL) AND (locked_by IS NULL) = (claim_token_hash IS NULL)),
    CHECK (status = 'pending' OR locked_by IS NULL),
    CHECK ((status = 'pending') = (settled_at IS NULL))
) WITH (
    fillfactor = 60, autovacuum_vacuum_scale_factor = 0.01, autovacuum_vacuum_threshold = 500,
    autovacuum_vacuum_cost_delay = 0
);
CREATE INDEX outbox_due ON {s}outbox (next_attempt_at, created_at, seq) WHERE status = 'pending';
CREATE INDEX outbox_twins ON {s}outbox (target_space, payload_sha, settled_at) WHERE status = 'sent';
-- Of rows with one payload for one space at most one is worked on, so two workers cannot both find nothing sent.
CREATE UNIQUE INDEX outbox_held ON {s}outbox (target_space, payload_sha) WHERE locked_by IS NOT NULL;
CREATE INDEX outbox_settled ON {s}outbox (settled_at, outbox_id) WHERE settled_at IS NOT NULL;
-- Ended rows that go by themselves, since no run takes them along.
CREATE INDEX outbox_alone ON {s}outbox (settled_at, outbox_id) WHERE run_id IS NULL AND settled_at IS NOT NULL;
CREATE INDEX outbox_by_run ON {s}outbox (run_id) WHERE run_id IS NOT NULL;
CREATE INDEX outbox_by_user ON {s}outbox (user_id, created_at, outbox_id);
CREATE INDEX outbox_requeued ON {s}outbox (requeued_from) WHERE requeued_from IS NOT NULL;
-- Dead letters whose runs have not heard of them.
CREATE INDEX outbox_untold ON {s}outbox (settled_at) WHERE status = 'dead' AND told = 0 AND run_id IS NOT NULL;
-- Dead letters, to count them.
CREATE INDEX outbox_dead ON {s}outbox (settled_at) WHERE status = 'dead';
ALTER TABLE {s}outbox ADD PRIMARY KEY (outbox_id);

-- Facts with validity: what was said, called and proposed, and when that held. Nothing updates a row; a snapshot is the
-- latest fact of each key at an instant, if it is asserted. `created` is the key's first validity, on every fact of it.
-- As with runs, primary keys come last.
CREATE TABLE {s}turns (
    id         text COLLATE "C" NOT NULL,
    validity   bigint NOT NULL,
    asserted   integer NOT NULL CHECK (asserted IN (0, 1)),
    created    bigint NOT NULL,
    digest     text NOT NULL,
    user_id    text COLLATE "C" NOT NULL,
    parent_id  text COLLATE "C",
    message_id text COLLATE "C" NOT NULL,
    kind       text NOT NULL CHECK (kind IN ('user', 'assistant', 'system', 'sysinfo', 'tool')),
    content    text NOT NULL,
    thread_id  text COLLATE "C",
    commit_id  bigint NOT NULL DEFAULT 0
);
-- The first fact of each key stands for it: an edit does not move a turn.
CREATE INDEX turns_by_time ON {s}turns (created, id) WHERE validity = created;
CREATE INDEX turns_by_thread ON {s}turns (thread_id, created, id) WHERE validity = created;
CREATE INDEX turns_by_message ON {s}turns (message_id, created, id) WHERE validity = created;
ALTER TABLE {s}turns ADD PRIMARY KEY (id, validity, asserted);

CREATE TABLE {s}tool_calls (
    request_id     text COLLATE "C" NOT NULL,
    call_id        text COLLATE "C" NOT NULL,
    validity       bigint NOT NULL,
    asserted       integer NOT NULL CHECK (asserted IN (0, 1)),
    created        bigint NOT NULL,
    digest         text NOT NULL,
    user_id        text COLLATE "C" NOT NULL,
    run_id         text COLLATE "C",
    parent_id      text COLLATE "C",
    vendor         text COLLATE "C" NOT NULL,
    tool_name      text COLLATE "C" NOT NULL,
    args_sha256    text NOT NULL,
    arguments_json text,
    status         text COLLATE "C" NOT NULL CHECK (status IN ('requested', 'completed', 'failed')),
    started_at     bigint NOT NULL,
    ended_at       bigint,
    latency_ms     bigint,
    outcome_sha256 text,
    outcome_json   text,
    error_kind     text,
    error_msg      text,
    commit_id      bigint NOT NULL DEFAULT 0
);
CREATE INDEX tool_calls_by_time ON {s}tool_calls (created, request_id, call_id) WHERE validity = created;
CREATE INDEX tool_calls_by_parent ON {s}tool_calls (parent_id, created, request_id, call_id) WHERE validity = created;
CREATE INDEX tool_calls_by_status ON {s}tool_calls (status, validity);
CREATE INDEX tool_calls_by_name ON {s}tool_calls (tool_name, created) WHERE validity = created;
CREATE INDEX tool_calls_by_vendor ON {s}tool_calls (vendor, created) WHERE validity = created;
CREATE INDEX tool_calls_by_run ON {s}tool_calls (run_id) WHERE run_id IS NOT NULL;
ALTER TABLE {s}tool_calls ADD PRIMARY KEY (request_id, call_id, validity, asserted);

CREATE TABLE {s}proposals (
    request_id   text COLLATE "C" NOT NULL,
    validity     bigint NOT NULL,
    asserted     integer NOT NULL CHECK (asserted IN (0, 1)),
    created      bigint NOT NULL,
    digest       text NOT NULL,
    user_id      text COLLATE "C" NOT NULL,
    diffs_json   text NOT NULL,
    confidence   double precision,
    status       text COLLATE "C" NOT NULL CHECK (
        status IN ('pending', 'approved', 'denied', 'applied', 'reverted', 'failed', 'stale')
    ),
    actor        text,
    decided_at   bigint,
    applied_at   bigint,
    commit_hash  text,
    results_json text,
    error_msg    text,
    commit_id    bigint NOT NULL DEFAULT 0
);
CREATE INDEX proposals_by_time ON {s}proposals (created, request_id) WHERE validity = created;
CREATE INDEX proposals_by_status ON {s}proposals (status, validity);
ALTER TABLE {s}proposals ADD PRIMARY KEY (request_id, validity, asserted);

-- What became of every try to deliver. The end of a row is told once.
CREATE TABLE {s}outbox_audits (
    audit_id  text COLLATE "C" PRIMARY KEY,
    outbox_id text COLLATE "C" NOT NULL,
    at        bigint NOT NULL,
    action    text COLLATE "C" NOT NULL CHECK (action IN ('allow', 'redirect', 'reject')),
    reason    text COLLATE "C" NOT NULL,
    status    text COLLATE "C" NOT NULL CHECK (status IN ('success', 'redirected', 'failed')),
    evidence  text NOT NULL
);
CREATE INDEX outbox_audits_of ON {s}outbox_audits (outbox_id, at);
CREATE UNIQUE INDEX outbox_audits_end ON {s}outbox_audits (outbox_id)
    WHERE reason IN ('outbox_flush_success', 'outbox_flush_dedup_hit', 'outbox_flush_dead');

-- Runs that are gone. Their ids are never used again.
CREATE TABLE {s}tombstones (
    run_id     text COLLATE "C" PRIMARY KEY,
    session_id text COLLATE "C" NOT NULL,
    user_id    text COLLATE "C" NOT NULL,
    rev        integer NOT NULL,
    at         bigint NOT NULL
);
-- Those whose entries are still kept.
CREATE INDEX tombstones_by_time ON {s}tombstones (at, run_id) WHERE rev > 0;

-- What is to be started, and when. No index of the journal: these rows are what people put there. next_at is null while
-- a schedule is paused, and once it is over. stamp is another after every change.
CREATE TABLE {s}schedules (
    user_id     text COLLATE "C" NOT NULL,
    name        text COLLATE "C" NOT NULL,
    cron        text,
    timezone    text,
    at          bigint,
    missed      text NOT NULL,
    paused      integer NOT NULL,
    template    text NOT NULL,
    next_at     bigint,
    last_at     bigint,
    last_run_id text,
    last_error  text,
    created_at  bigint NOT NULL,
    updated_at  bigint NOT NULL,
    stamp       bigint NOT NULL,
    PRIMARY KEY (user_id, name),
    CHECK ((cron IS NULL) <> (at IS NULL))
);
CREATE INDEX schedules_due ON {s}schedules (next_at) WHERE next_at IS NOT NULL;

-- Answers to requests that carried a key, so that a request sent twice is answered once. No index of the journal: a row
-- is what its caller was told. status is null while the first request is on its way; holder says whose it is; nonce
-- makes the ids and keys of whatever it commits.
CREATE TABLE {s}kept_answers (
    user_id     text COLLATE "C" NOT NULL,
    route       text COLLATE "C" NOT NULL,
    key         text COLLATE "C" NOT NULL,
    fingerprint text NOT NULL,
    nonce       text NOT NULL,
    holder      text NOT NULL,
    held_at     bigint NOT NULL,
    created_at  bigint NOT NULL,
    status      integer,
    headers     text,
    body        bytea,
    PRIMARY KEY (user_id, route, key)
);
CREATE INDEX kept_answers_by_age ON {s}kept_answers (created_at);

CREATE TABLE {s}checkpoints (
    thread text COLLATE "C" PRIMARY KEY,
    rev    integer NOT NULL,
    state  text NOT NULL,
    digest bytea NOT NULL
);

-- The claim, as a function so that its plan is pinned: a queue that was analysed empty and then filled would sort.
-- In PL/pgSQL, which keeps the plan; a function in plain SQL would make it anew at every call.
-- The price of a forbidden sort that is unavoidable (a handful of rows) would wake the compiler, so that is off too.
-- "= ANY (ARRAY[…])" can only be a lookup by index, also in a plan that was made while the tables were empty.
-- Locks runs first, then work, in this order; any other order double-claims or deadlocks. Items whose lease ran out
-- are only named, with a null claim_id: taking them over may end the run, and that is decided with care elsewhere.
CREATE FUNCTION {s}claim(
    in_queues text[], in_clogs text[], in_claim_ids text[], in_hashes text[], in_owner text, in_lease bigint,
    in_commit bigint, in_now bigint, in_due_by bigint, in_passed text[]
) RETURNS TABLE (
    run_id text, key text, claim_id text, at bigint,
    first_position bigint, first_kind text, first_data text, first_at bigint, first_digest bytea, first_commit bigint
)
LANGUAGE plpgsql VOLATILE
SET plan_cache_mode = force_generic_plan SET enable_sort = off SET enable_seqscan = off SET enable_bitmapscan = off SET enable_hashjoin = off
SET enable_mergejoin = off SET jit = off
AS $$
#variable_conflict use_column
BEGIN
RETURN QUERY
WITH RECURSIVE
t AS MATERIALIZED (
    SELECT coalesce(in_now, (extract(epoch FROM clock_timestamp()) * 1000000)::bigint) AS now
),
levels AS (
    (
        SELECT q.q COLLATE "C" AS queue, (SELECT max(w.priority) FROM {s}work w WHERE w.queue = q.q) AS priority
        FROM unnest(in_queues) AS q (q)
    )
    UNION ALL
    SELECT l.queue, (SELECT max(w.priority) FROM {s}work w WHERE w.queue = l.queue AND w.priority < l.priority)
    FROM levels l
    WHERE l.priority IS NOT NULL
),
ranked AS MATERIALIZED (
    SELECT l.queue, l.priority FROM levels l WHERE l.priority IS NOT NULL ORDER BY l.priority DESC, l.queue
),
picked AS MATERIALIZED (
    SELECT x.*
    FROM ranked l
    CROSS JOIN LATERAL (
        SELECT w.run_id, w.key, w.claim_id, w.attempt, r.rev, r.at
        FROM {s}work w
        JOIN {s}runs r ON r.run_id = ANY (ARRAY[w.run_id])
        WHERE w.queue = l.queue
          AND w.priority = l.priority
          AND w.due_at <= (SELECT least(now, in_due_by) FROM t)
          AND w.run_id <> ALL (in_passed)
          AND (in_clogs IS NULL OR w.clog_id = ANY (in_clogs))
          AND r.status IN ('pending', 'waiting', 'active')
        ORDER BY w.due_at
        LIMIT cardinality(in_claim_ids)
        FOR UPDATE OF r, w SKIP LOCKED
    ) x
    LIMIT cardinality(in_claim_ids)
),
placed AS MATERIALIZED (
    SELECT p.*, row_number() OVER () AS place FROM picked p
),
fresh AS MATERIALIZED (
    SELECT
        p.run_id, p.key, p.place, p.attempt,
        -- Siblings of one run share its row: each takes the next revision.
        p.rev + row_number() OVER (PARTITION BY p.run_id ORDER BY p.place) AS next_rev,
        greatest(t.now, p.at) AS ts,
        in_claim_ids[p.place] AS claim_id,
        in_hashes[p.place] AS hash
    FROM placed p
    CROSS JOIN t
    WHERE p.claim_id IS NULL
),
body AS MATERIALIZED (
    SELECT f.*,
        '{' || CASE WHEN f.attempt > 0 THEN '"attempt":' || f.attempt || ',' ELSE '' END
        || '"claim_id":"' || f.claim_id || '","claim_token_hash":"' || f.hash
        || '","lease_us":' || in_lease || ',"owner_id":"' || in_owner || '"'
        || CASE WHEN f.key <> '' THEN ',"runnable_key":"' || f.key || '"' ELSE '' END
        || ',"v":1}' AS data
    FROM fresh f
),
leased AS (
    UPDATE {s}work w
    SET claim_id = f.claim_id, claim_token_hash = f.hash, owner_id = in_owner, lease_until = f.ts + in_lease,
        waiting = 0, deliveries = w.deliveries + 1
    FROM fresh f
    WHERE w.run_id = ANY (ARRAY[f.run_id]) AND w.key = f.key
),
heads AS MATERIALIZED (
    SELECT f.run_id, max(f.next_rev) AS rev, max(f.ts) AS ts, bool_or(f.key = '') AS root FROM fresh f GROUP BY f.run_id
),
moved AS (
    UPDATE {s}runs r
    SET status = 'active', rev = h.rev, at = h.ts, started_at = coalesce(r.started_at, h.ts),
        deliveries = CASE WHEN h.root THEN r.deliveries + 1 ELSE r.deliveries END,
        wake_at = CASE WHEN h.root THEN NULL ELSE r.wake_at END
    FROM heads h
    WHERE r.run_id = ANY (ARRAY[h.run_id])
),
ticked AS (
    INSERT INTO {s}ticks (tick_id, run_id, key, claimed_rev, started_at)
    SELECT f.claim_id, f.run_id, f.key, f.next_rev, f.ts FROM fresh f
),
noted AS (
    INSERT INTO {s}journal (thread, rev, kind, data, at, digest, commit_id)
    SELECT 'run:' || b.run_id, b.next_rev, 'attempt_claimed', b.data, b.ts,
        sha256(convert_to('attempt_claimed' || chr(10) || b.data || chr(10), 'UTF8')), in_commit
    FROM body b
)
SELECT a.run_id, a.key, a.claim_id, a.ts, j.position, j.kind, j.data, j.at, j.digest, j.commit_id
FROM (
    SELECT f.run_id, f.key, f.claim_id, f.ts, f.place, f.next_rev FROM fresh f
    UNION ALL
    SELECT p.run_id, p.key, NULL, t.now, p.place, 0 FROM placed p CROSS JOIN t WHERE p.claim_id IS NOT NULL
) a
-- Of a run that has just begun, the one entry before this claim tells everything.
LEFT JOIN LATERAL (
    SELECT e.position, e.kind, e.data, e.at, e.digest, e.commit_id
    FROM {s}journal e
    WHERE a.next_rev = 2 AND e.thread = 'run:' || a.run_id AND e.rev = 1
    LIMIT 1
) j ON true
ORDER BY a.place;
END
$$;

-- Which worker a session keeps to, and until when. No index of the journal: a preference that costs nothing to lose.
-- Few rows, each written at every claim of its session, so there is no index to keep up beside the key.
CREATE TABLE {s}sticky_sessions (
    session_id text COLLATE "C" PRIMARY KEY,
    owner_id   text COLLATE "C" NOT NULL,
    expires_at bigint NOT NULL
);

-- The claim of a worker that keeps to its sessions: two passes over each level, its own sessions and then those of nobody.
-- Made from the text of the other, so that the two differ in nothing else and the other pays for none of this. Own
-- sessions come first among the oldest thousand of a level, so that a long queue is not searched to its end.
DO $make$
DECLARE
    made text := pg_get_functiondef('{s}claim'::regproc);
    edit text[];
BEGIN
    FOREACH edit SLICE 1 IN ARRAY ARRAY[
        ARRAY['.claim(', '.claim_sticky('],
        ARRAY[
            'SELECT l.queue, l.priority FROM levels l WHERE l.priority IS NOT NULL ORDER BY l.priority DESC, l.queue',
            $edit$SELECT l.queue, l.priority, p.own,
                coalesce(
                    (
                        SELECT w.due_at FROM {s}work w
                        WHERE w.queue = l.queue AND w.priority = l.priority
                        ORDER BY w.due_at OFFSET 999 LIMIT 1
                    ),
                    9223372036854775807
                ) AS reach
            FROM levels l
            CROSS JOIN (VALUES (true), (false)) AS p (own)
            WHERE l.priority IS NOT NULL
            ORDER BY l.priority DESC, p.own DESC, l.queue$edit$
        ],
        ARRAY[
            'w.due_at <= (SELECT least(now, in_due_by) FROM t)',
            -- Another's session is never taken, one's own in its pass, and what is nobody's in the second.
            $edit$w.due_at <= least((SELECT least(now, in_due_by) FROM t), CASE WHEN l.own THEN l.reach END)
          AND coalesce(
              (
                  SELECT k.owner_id = in_owner AND (w.due_at <= l.reach) = l.own
                  FROM {s}sticky_sessions k
                  WHERE k.session_id = ANY (ARRAY[r.session_id]) AND k.expires_at > (SELECT now FROM t)
              ),
              NOT l.own
          )$edit$
        ]
    ] LOOP
        IF strpos(made, edit[1]) = 0 THEN
            RAISE EXCEPTION 'the claim no longer says %; say here how a sticky one differs', edit[1];
        END IF;
        made := replace(made, edit[1], edit[2]);
    END LOOP;
    EXECUTE made;
END
$make$;

-- What is kept for the API. No index of the journal: these rows are what people and providers put there. Secrets are
-- sealed with the host's key (v1.<key id>.<text>); what only has to be recognised again is kept as a hash.
CREATE TABLE {s}credentials (
    user_id       text COLLATE "C" NOT NULL,
    provider      text COLLATE "C" NOT NULL,
    status        text NOT NULL CHECK (status IN ('connected', 'reauth_required')),
    access_token  text NOT NULL CHECK (substr(access_token, 1, 3) = 'v1.'),
    refresh_token text CHECK (substr(refresh_token, 1, 3) = 'v1.'),
    scope         text NOT NULL,
    account_id    text,
    expires_at    bigint,
    version       bigint NOT NULL,
    -- Who asks the provider for new tokens, and until when nobody else does.
    owner_id      text,
    lease_until   bigint,
    created_at    bigint NOT NULL,
    updated_at    bigint NOT NULL,
    PRIMARY KEY (user_id, provider)
);

-- Authorizations that were begun. A row is taken out by whoever ends it, so it ends once.
CREATE TABLE {s}oauth_states (
    state_hash    text COLLATE "C" PRIMARY KEY,
    purpose       text NOT NULL CHECK (purpose IN ('connect', 'login')),
    user_id       text COLLATE "C" NOT NULL,
    provider      text NOT NULL,
    browser_hash  text NOT NULL,
    code_verifier text NOT NULL CHECK (substr(code_verifier, 1, 3) = 'v1.'),
    nonce         text NOT NULL,
    redirect_uri  text NOT NULL,
    return_to     text,
    expires_at    bigint NOT NULL
);
CREATE INDEX oauth_states_by_time ON {s}oauth_states (expires_at);

CREATE TABLE {s}api_keys (
    key_id       text COLLATE "C" PRIMARY KEY,
    user_id      text COLLATE "C" NOT NULL,
    secret_hash  text NOT NULL,
    scopes       text NOT NULL,
    created_at   bigint NOT NULL,
    expires_at   bigint,
    last_used_at bigint,
    revoked_at   bigint
);
CREATE INDEX api_keys_by_user ON {s}api_keys (user_id, key_id);

CREATE TABLE {s}settings (
    user_id           text COLLATE "C" PRIMARY KEY,
    provider          text,
    model             text,
    reasoning         text,
    openai_api_key    text CHECK (substr(openai_api_key, 1, 3) = 'v1.'),
    anthropic_api_key text CHECK (substr(anthropic_api_key, 1, 3) = 'v1.'),
    version           bigint NOT NULL,
    updated_at        bigint NOT NULL
);

CREATE TABLE {s}browser_sessions (
    session_hash text COLLATE "C" PRIMARY KEY,
    user_id      text COLLATE "C" NOT NULL,
    created_at   bigint NOT NULL,
    seen_at      bigint NOT NULL,
    expires_at   bigint NOT NULL
);
CREATE INDEX browser_sessions_by_user ON {s}browser_sessions (user_id);
CREATE INDEX browser_sessions_by_time ON {s}browser_sessions (expires_at);
