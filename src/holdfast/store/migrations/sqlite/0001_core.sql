-- Sessions group runs and name their owner; the pair is what a run refers to, so no run lands in a stranger's session.
CREATE TABLE sessions (
    session_id text PRIMARY KEY,
    user_id    text NOT NULL,
    title      text,
    created_at integer NOT NULL DEFAULT 0,
    UNIQUE (session_id, user_id)
) STRICT;
CREATE INDEX sessions_by_user ON sessions (user_id, session_id);

-- No body is kept here: input_rev and output_rev point into the journal.
CREATE TABLE runs (
    run_id              text PRIMARY KEY CHECK (run_id <> ''),
    session_id          text NOT NULL,
    user_id             text NOT NULL,
    clog_id             text NOT NULL,
    queue               text NOT NULL,
    mode                text NOT NULL,
    lane                text,
    priority            integer NOT NULL,
    max_attempts        integer NOT NULL,
    backoff_us          integer NOT NULL,
    backoff_max_us      integer NOT NULL,
    max_deliveries      integer NOT NULL,
    resumable           integer NOT NULL,
    parent_run_id       text,
    created_at          integer NOT NULL,
    spoken              integer NOT NULL DEFAULT 0,
    status              text NOT NULL CHECK (
        status IN ('idle', 'pending', 'active', 'waiting', 'paused', 'done', 'failed', 'cancelled')
    ),
    rev                 integer NOT NULL,
    at                  integer NOT NULL,
    attempt             integer NOT NULL,
    deliveries          integer NOT NULL,
    input_rev           integer,
    output_rev          integer,
    ended_rev           integer,
    wake_at             integer,
    last_error          text,
    error_kind          text,
    cancel_requested_at integer,
    started_at          integer,
    finished_at         integer,
    boundary_step       text,
    boundary_kind       text,
    boundary_rev        integer,
    boundary_expires_at integer,
    boundary_occurrence integer,
    boundary_flow       integer,
    boundary_shown      text,
    boundary_proposal   text,
    flow                integer NOT NULL DEFAULT 0,
    definition          text,
    definition_rev      integer,
    undoing             integer NOT NULL DEFAULT 0,
    FOREIGN KEY (session_id, user_id) REFERENCES sessions (session_id, user_id)
) STRICT;
-- Newest first, for lists. None on a column that changes: updates would touch every index.
CREATE INDEX runs_by_session ON runs (session_id, created_at, run_id);
CREATE INDEX runs_by_clog ON runs (clog_id, created_at, run_id);
CREATE INDEX runs_by_user ON runs (user_id, created_at, run_id);
CREATE INDEX runs_by_age ON runs (created_at, run_id);
-- Open questions to people.
CREATE INDEX runs_by_question ON runs (created_at, run_id) WHERE boundary_step IS NOT NULL;
-- Who asks about a proposal, the first to ask first.
CREATE INDEX runs_by_proposal ON runs (boundary_proposal, created_at, run_id)
    WHERE boundary_proposal IS NOT NULL;
-- Conversations: of a session's runs those that have a part in it.
CREATE INDEX runs_by_speech ON runs (session_id, created_at, run_id) WHERE spoken = 1;
-- Questions that nobody may have answered in time.
CREATE INDEX runs_by_expiry ON runs (boundary_expires_at) WHERE boundary_expires_at IS NOT NULL;

-- Open work only; a settled item leaves the table. due_at puts a live lease behind its end, and the work of a run that
-- waits for its lane behind everything.
CREATE TABLE work (
    run_id           text NOT NULL REFERENCES runs (run_id) ON DELETE CASCADE,
    key              text NOT NULL,
    queue            text NOT NULL,
    clog_id          text NOT NULL,
    priority         integer NOT NULL,
    step             text NOT NULL,
    visible_at       integer NOT NULL,
    waiting          integer NOT NULL,
    attempt          integer NOT NULL,
    deliveries       integer NOT NULL,
    input_rev        integer,
    owner_id         text,
    claim_id         text,
    claim_token_hash text,
    lease_until      integer,
    blocked          integer NOT NULL DEFAULT 0,
    awaits           text NOT NULL DEFAULT '',
    due_at           integer NOT NULL GENERATED ALWAYS AS (
        max(visible_at, coalesce(lease_until, 0), blocked * 2305843009213693952)
    ) STORED,
    PRIMARY KEY (run_id, key),
    CHECK ((claim_id IS NULL) = (lease_until IS NULL) AND (claim_id IS NULL) = (owner_id IS NULL)),
    CHECK ((claim_id IS NULL) = (claim_token_hash IS NULL))
) STRICT;
CREATE INDEX work_due ON work (queue, priority, due_at);

-- The truth. AUTOINCREMENT, because a position must never be given twice.
CREATE TABLE journal (
    position  integer PRIMARY KEY AUTOINCREMENT,
    thread    text NOT NULL CHECK (thread <> ''),
    rev       integer NOT NULL CHECK (rev > 0),
    kind      text NOT NULL,
    data      text NOT NULL,
    at        integer NOT NULL,
    digest    blob NOT NULL,
    commit_id integer NOT NULL,
    UNIQUE (thread, rev)
) STRICT;

-- Heads of the threads that belong to no run.
CREATE TABLE threads (
    thread text PRIMARY KEY,
    rev    integer NOT NULL,
    at     integer NOT NULL
) STRICT;

CREATE TABLE ticks (
    tick_id       text PRIMARY KEY,
    run_id        text NOT NULL REFERENCES runs (run_id) ON DELETE CASCADE,
    key           text NOT NULL,
    claimed_rev   integer NOT NULL,
    started_at    integer NOT NULL,
    outcome       text,
    result_digest text,
    settled_rev   integer,
    spent         text NOT NULL DEFAULT '',
    kept          text NOT NULL DEFAULT ''
) STRICT;
CREATE INDEX ticks_by_run ON ticks (run_id, claimed_rev);

CREATE TABLE signals (
    run_id    text NOT NULL REFERENCES runs (run_id) ON DELETE CASCADE,
    seq       integer NOT NULL,
    signal_id text NOT NULL,
    name      text,
    has_input integer NOT NULL,
    tick_id   text,
    PRIMARY KEY (run_id, seq)
) STRICT;
CREATE INDEX signals_waiting ON signals (run_id, seq) WHERE tick_id IS NULL;

CREATE TABLE children (
    run_id       text NOT NULL REFERENCES runs (run_id) ON DELETE CASCADE,
    child_run_id text NOT NULL,
    clog_id      text NOT NULL,
    child_key    text NOT NULL,
    step         text NOT NULL,
    started_rev  integer NOT NULL,
    status       text,
    finished_rev integer,
    on_cancel    text NOT NULL,
    PRIMARY KEY (run_id, child_run_id)
) STRICT;

CREATE TABLE runnables (
    run_id        text NOT NULL REFERENCES runs (run_id) ON DELETE CASCADE,
    key           text NOT NULL,
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
) STRICT;
-- Steps that wait for room among the open ones of their run.
CREATE INDEX runnables_unscheduled ON runnables (run_id, planned_rev) WHERE status = 'planned';

CREATE TABLE anomalies (
    run_id       text NOT NULL REFERENCES runs (run_id) ON DELETE CASCADE,
    reason       text NOT NULL,
    claim_id     text NOT NULL,
    entry_kind   text NOT NULL,
    rev          integer NOT NULL,
    runnable_key text NOT NULL,
    step         text NOT NULL,
    PRIMARY KEY (run_id, reason, claim_id)
) STRICT;

-- Keys that callers gave; they live as long as what they made.
CREATE TABLE keys (
    scope       text NOT NULL,
    key         text NOT NULL,
    body_digest text NOT NULL,
    run_id      text NOT NULL REFERENCES runs (run_id) ON DELETE CASCADE,
    rev         integer NOT NULL,
    PRIMARY KEY (scope, key)
) STRICT;
CREATE INDEX keys_by_run ON keys (run_id);

-- What one run's commit means for another, until the other has committed it.
CREATE TABLE handoffs (
    target_run_id text NOT NULL,
    source_run_id text NOT NULL,
    kind          text NOT NULL,
    rev           integer NOT NULL,
    PRIMARY KEY (target_run_id, source_run_id, kind)
) STRICT;

-- Steps of flows that have an answer; the answer itself stands in the journal.
CREATE TABLE steps (
    run_id     text NOT NULL REFERENCES runs (run_id) ON DELETE CASCADE,
    name       text NOT NULL,
    occurrence integer NOT NULL,
    rev        integer NOT NULL,
    status     text NOT NULL,
    attempt    integer NOT NULL,
    PRIMARY KEY (run_id, name, occurrence)
) STRICT;

-- Places where a tool was asked for: open ones, and answers that the same work may come to again.
CREATE TABLE tools (
    run_id      text NOT NULL REFERENCES runs (run_id) ON DELETE CASCADE,
    slot        text NOT NULL,
    tool_key    text NOT NULL,
    name        text NOT NULL,
    args_sha256 text NOT NULL,
    vendor      text NOT NULL,
    parent_id   text,
    status      text NOT NULL,
    rev         integer NOT NULL,
    asked_at    integer NOT NULL,
    tries       integer NOT NULL,
    calls       integer NOT NULL,
    kept        integer NOT NULL,
    PRIMARY KEY (run_id, slot)
) STRICT;

-- Storage of run scope (tick_id = '') and of tick scope.
CREATE TABLE run_storage (
    run_id  text NOT NULL REFERENCES runs (run_id) ON DELETE CASCADE,
    clog_id text NOT NULL,
    tick_id text NOT NULL,
    row_id  text NOT NULL,
    rev     integer NOT NULL,
    at      integer NOT NULL,
    value   text NOT NULL,
    PRIMARY KEY (run_id, clog_id, tick_id, row_id)
) STRICT;

-- Storage of session and global scope. run_id and rev name the entry that wrote it, which is its version.
CREATE TABLE shared_storage (
    name       text PRIMARY KEY,
    session_id text REFERENCES sessions (session_id) ON DELETE CASCADE,
    run_id     text NOT NULL,
    rev        integer NOT NULL,
    value      text NOT NULL
) STRICT;
CREATE INDEX shared_storage_by_session ON shared_storage (session_id);

-- Runs that have something to do in a lane. One of them holds it.
CREATE TABLE lane_tickets (
    run_id     text PRIMARY KEY REFERENCES runs (run_id) ON DELETE CASCADE,
    session_id text NOT NULL,
    lane       text NOT NULL,
    at         integer NOT NULL,
    rev        integer NOT NULL,
    held       integer NOT NULL
) STRICT;
CREATE INDEX lane_tickets_in_order ON lane_tickets (session_id, lane, held DESC, at);
CREATE UNIQUE INDEX lane_tickets_held ON lane_tickets (session_id, lane) WHERE held = 1;

-- What must reach the outside. It outlives the run that asked for it; run_id is null where no run did. The lease is
-- locked_by, claim_id, claim_token_hash and lease_until; claim_id stays, so that a holder whose answer was lost can see
-- whether it settled. seq puts rows of one instant in their order.
CREATE TABLE outbox (
    seq              integer PRIMARY KEY AUTOINCREMENT,
    outbox_id        text NOT NULL UNIQUE,
    run_id           text,
    user_id          text NOT NULL,
    target_space     text NOT NULL,
    payload          text NOT NULL,
    payload_sha      text NOT NULL,
    idempotency_key  text,
    status           text NOT NULL DEFAULT 'pending' CHECK (status IN ('pending', 'sent', 'dead')),
    retry_count      integer NOT NULL DEFAULT 0,
    max_retries      integer,
    next_attempt_at  integer NOT NULL,
    created_at       integer NOT NULL,
    settled_at       integer,
    locked_by        text,
    locked_at        integer,
    lease_us         integer,
    lease_until      integer,
    claim_id         text,
    claim_token_hash text,
    deliveries       integer NOT NULL DEFAULT 0,
    attempts_made    integer NOT NULL DEFAULT 0,
    last_error       text,
    error_kind       text,
    result_ref       text,
    requeued_from    text,
    told             integer NOT NULL DEFAULT 0,
    UNIQUE (target_space, idempotency_key),
    CHECK ((locked_by IS NULL) = (lease_until IS NULL) AND (locked_by IS NULL) = (claim_token_hash IS NULL)),
    CHECK (status = 'pending' OR locked_by IS NULL),
    CHECK ((status = 'pending') = (settled_at IS NULL))
) STRICT;
CREATE INDEX outbox_due ON outbox (next_attempt_at, created_at, seq) WHERE status = 'pending';
CREATE INDEX outbox_twins ON outbox (target_space, payload_sha, settled_at) WHERE status = 'sent';
-- Of rows with one payload for one space at most one is worked on, so two workers cannot both find nothing sent.
CREATE UNIQUE INDEX outbox_held ON outbox (target_space, payload_sha) WHERE locked_by IS NOT NULL;
CREATE INDEX outbox_settled ON outbox (settled_at, outbox_id) WHERE settled_at IS NOT NULL;
-- Ended rows that go by themselves, since no run takes them along.
CREATE INDEX outbox_alone ON outbox (settled_at, outbox_id) WHERE run_id IS NULL AND settled_at IS NOT NULL;
CREATE INDEX outbox_by_run ON outbox (run_id) WHERE run_id IS NOT NULL;
CREATE INDEX outbox_by_user ON outbox (user_id, created_at, outbox_id);
CREATE INDEX outbox_requeued ON outbox (requeued_from) WHERE requeued_from IS NOT NULL;
-- Dead letters whose runs have not heard of them.
CREATE INDEX outbox_untold ON outbox (settled_at) WHERE status = 'dead' AND told = 0 AND run_id IS NOT NULL;
-- Dead letters, to count them.
CREATE INDEX outbox_dead ON outbox (settled_at) WHERE status = 'dead';

-- What became of every try to deliver. The end of a row is told once.
CREATE TABLE outbox_audits (
    audit_id  text PRIMARY KEY,
    outbox_id text NOT NULL,
    at        integer NOT NULL,
    action    text NOT NULL CHECK (action IN ('allow', 'redirect', 'reject')),
    reason    text NOT NULL,
    status    text NOT NULL CHECK (status IN ('success', 'redirected', 'failed')),
    evidence  text NOT NULL
) STRICT;
CREATE INDEX outbox_audits_of ON outbox_audits (outbox_id, at);
CREATE UNIQUE INDEX outbox_audits_end ON outbox_audits (outbox_id)
    WHERE reason IN ('outbox_flush_success', 'outbox_flush_dedup_hit', 'outbox_flush_dead');

-- Facts with validity: what was said, called and proposed, and when that held. Nothing updates a row; a snapshot is the
-- latest fact of each key at an instant, if it is asserted. `created` is the key's first validity, on every fact of it.
CREATE TABLE turns (
    id         text NOT NULL,
    validity   integer NOT NULL,
    asserted   integer NOT NULL CHECK (asserted IN (0, 1)),
    created    integer NOT NULL,
    digest     text NOT NULL,
    user_id    text NOT NULL,
    parent_id  text,
    message_id text NOT NULL,
    kind       text NOT NULL CHECK (kind IN ('user', 'assistant', 'system', 'sysinfo', 'tool')),
    content    text NOT NULL,
    thread_id  text,
    commit_id  integer NOT NULL DEFAULT 0,
    PRIMARY KEY (id, validity, asserted)
) STRICT;
-- The first fact of each key stands for it: an edit does not move a turn.
CREATE INDEX turns_by_time ON turns (created, id) WHERE validity = created;
CREATE INDEX turns_by_thread ON turns (thread_id, created, id) WHERE validity = created;
CREATE INDEX turns_by_message ON turns (message_id, created, id) WHERE validity = created;

CREATE TABLE tool_calls (
    request_id     text NOT NULL,
    call_id        text NOT NULL,
    validity       integer NOT NULL,
    asserted       integer NOT NULL CHECK (asserted IN (0, 1)),
    created        integer NOT NULL,
    digest         text NOT NULL,
    user_id        text NOT NULL,
    run_id         text,
    parent_id      text,
    vendor         text NOT NULL,
    tool_name      text NOT NULL,
    args_sha256    text NOT NULL,
    arguments_json text,
    status         text NOT NULL CHECK (status IN ('requested', 'completed', 'failed')),
    started_at     integer NOT NULL,
    ended_at       integer,
    latency_ms     integer,
    outcome_sha256 text,
    outcome_json   text,
    error_kind     text,
    error_msg      text,
    commit_id      integer NOT NULL DEFAULT 0,
    PRIMARY KEY (request_id, call_id, validity, asserted)
) STRICT;
CREATE INDEX tool_calls_by_time ON tool_calls (created, request_id, call_id) WHERE validity = created;
CREATE INDEX tool_calls_by_parent ON tool_calls (parent_id, created, request_id, call_id) WHERE validity = created;
CREATE INDEX tool_calls_by_status ON tool_calls (status, validity);
CREATE INDEX tool_calls_by_name ON tool_calls (tool_name, created) WHERE validity = created;
CREATE INDEX tool_calls_by_vendor ON tool_calls (vendor, created) WHERE validity = created;
CREATE INDEX tool_calls_by_run ON tool_calls (run_id) WHERE run_id IS NOT NULL;

CREATE TABLE proposals (
    request_id   text NOT NULL,
    validity     integer NOT NULL,
    asserted     integer NOT NULL CHECK (asserted IN (0, 1)),
    created      integer NOT NULL,
    digest       text NOT NULL,
    user_id      text NOT NULL,
    diffs_json   text NOT NULL,
    confidence   real,
    status       text NOT NULL CHECK (
        status IN ('pending', 'approved', 'denied', 'applied', 'reverted', 'failed', 'stale')
    ),
    actor        text,
    decided_at   integer,
    applied_at   integer,
    commit_hash  text,
    results_json text,
    error_msg    text,
    commit_id    integer NOT NULL DEFAULT 0,
    PRIMARY KEY (request_id, validity, asserted)
) STRICT;
CREATE INDEX proposals_by_time ON proposals (created, request_id) WHERE validity = created;
CREATE INDEX proposals_by_status ON proposals (status, validity);

-- Runs that are gone. Their ids are never used again.
CREATE TABLE tombstones (
    run_id     text PRIMARY KEY,
    session_id text NOT NULL,
    user_id    text NOT NULL,
    rev        integer NOT NULL,
    at         integer NOT NULL
) STRICT;
-- Those whose entries are still kept.
CREATE INDEX tombstones_by_time ON tombstones (at, run_id) WHERE rev > 0;

-- What is to be started, and when. No index of the journal: these rows are what people put there. next_at is null while
-- a schedule is paused, and once it is over. stamp is another after every change.
CREATE TABLE schedules (
    user_id     text NOT NULL,
    name        text NOT NULL,
    cron        text,
    timezone    text,
    at          integer,
    missed      text NOT NULL,
    paused      integer NOT NULL,
    template    text NOT NULL,
    next_at     integer,
    last_at     integer,
    last_run_id text,
    last_error  text,
    created_at  integer NOT NULL,
    updated_at  integer NOT NULL,
    stamp       integer NOT NULL,
    PRIMARY KEY (user_id, name),
    CHECK ((cron IS NULL) <> (at IS NULL))
) STRICT;
CREATE INDEX schedules_due ON schedules (next_at) WHERE next_at IS NOT NULL;

-- Answers to requests that carried a key, so that a request sent twice is answered once. No index of the journal: a row
-- is what its caller was told. status is null while the first request is on its way; holder says whose it is; nonce
-- makes the ids and keys of whatever it commits.
CREATE TABLE kept_answers (
    user_id     text NOT NULL,
    route       text NOT NULL,
    key         text NOT NULL,
    fingerprint text NOT NULL,
    nonce       text NOT NULL,
    holder      text NOT NULL,
    held_at     integer NOT NULL,
    created_at  integer NOT NULL,
    status      integer,
    headers     text,
    body        blob,
    PRIMARY KEY (user_id, route, key)
) STRICT;
CREATE INDEX kept_answers_by_age ON kept_answers (created_at);

-- Which worker a session keeps to, and until when. No index of the journal: a preference that costs nothing to lose.
-- Few rows, each written at every claim of its session, so there is no index to keep up beside the key.
CREATE TABLE sticky_sessions (
    session_id text PRIMARY KEY,
    owner_id   text NOT NULL,
    expires_at integer NOT NULL
) STRICT;

CREATE TABLE checkpoints (
    thread text PRIMARY KEY,
    rev    integer NOT NULL,
    state  text NOT NULL,
    digest blob NOT NULL
) STRICT;

-- What is kept for the API. No index of the journal: these rows are what people and providers put there. Secrets are
-- sealed with the host's key (v1.<key id>.<text>); what only has to be recognised again is kept as a hash.
CREATE TABLE credentials (
    user_id       text NOT NULL,
    provider      text NOT NULL,
    status        text NOT NULL CHECK (status IN ('connected', 'reauth_required')),
    access_token  text NOT NULL CHECK (substr(access_token, 1, 3) = 'v1.'),
    refresh_token text CHECK (substr(refresh_token, 1, 3) = 'v1.'),
    scope         text NOT NULL,
    account_id    text,
    expires_at    integer,
    version       integer NOT NULL,
    -- Who asks the provider for new tokens, and until when nobody else does.
    owner_id      text,
    lease_until   integer,
    created_at    integer NOT NULL,
    updated_at    integer NOT NULL,
    PRIMARY KEY (user_id, provider)
) STRICT;

-- Authorizations that were begun. A row is taken out by whoever ends it, so it ends once.
CREATE TABLE oauth_states (
    state_hash    text PRIMARY KEY,
    purpose       text NOT NULL CHECK (purpose IN ('connect', 'login')),
    user_id       text NOT NULL,
    provider      text NOT NULL,
    browser_hash  text NOT NULL,
    code_verifier text NOT NULL CHECK (substr(code_verifier, 1, 3) = 'v1.'),
    nonce         text NOT NULL,
    redirect_uri  text NOT NULL,
    return_to     text,
    expires_at    integer NOT NULL
) STRICT;
CREATE INDEX oauth_states_by_time ON oauth_states (expires_at);

CREATE TABLE api_keys (
    key_id       text PRIMARY KEY,
    user_id      text NOT NULL,
    secret_hash  text NOT NULL,
    scopes       text NOT NULL,
    created_at   integer NOT NULL,
    expires_at   integer,
    last_used_at integer,
    revoked_at   integer
) STRICT;
CREATE INDEX api_keys_by_user ON api_keys (user_id, key_id);

CREATE TABLE settings (
    user_id           text PRIMARY KEY,
    provider          text,
    model             text,
    reasoning         text,
    openai_api_key    text CHECK (substr(openai_api_key, 1, 3) = 'v1.'),
    anthropic_api_key text CHECK (substr(anthropic_api_key, 1, 3) = 'v1.'),
    version           integer NOT NULL,
    updated_at        integer NOT NULL
) STRICT;

CREATE TABLE browser_sessions (
    session_hash text PRIMARY KEY,
    user_id      text NOT NULL,
    created_at   integer NOT NULL,
    seen_at      integer NOT NULL,
    expires_at   integer NOT NULL
) STRICT;
CREATE INDEX browser_sessions_by_user ON browser_sessions (user_id);
CREATE INDEX browser_sessions_by_time ON browser_sessions (expires_at);
