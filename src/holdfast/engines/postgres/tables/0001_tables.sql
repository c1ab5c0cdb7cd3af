-- Tables, sequences, views over tables and indexes. The functions that use them are in `rules/`, which is installed
-- separately and may change with every release; this file never changes once it is released.
--
-- Instants and durations are microseconds. Text is compared as bytes, so the order is the same on every server.
--
-- A job is claimable only in state `queued`. Everything that holds it back keeps it in another state, and the write
-- that removes the obstacle moves it. So every search is one range of one partial index, whatever else the table
-- holds. The predicates repeat state sets and a hold bit of the model; a test compares them.

-- A column per field of the model's JobRecord (`given` is spread over six), and three of the engine's own. Columns of
-- fixed length that are never null stand first, then indexed ones: the server reads a row up to the last column it
-- needs, and has to search for each column behind a text. Every update compares all indexed columns of the old and
-- the new row.
CREATE TABLE job (
    arrival bigint NOT NULL,
    created bigint NOT NULL,
    due bigint NOT NULL,
    visible_until bigint NOT NULL DEFAULT 0,
    result_until bigint NOT NULL DEFAULT 0,
    key_until bigint NOT NULL DEFAULT 0,
    key_window bigint NOT NULL,
    generation bigint NOT NULL DEFAULT 0,
    attempt bigint NOT NULL DEFAULT 0,
    losses bigint NOT NULL DEFAULT 0,
    fence bigint NOT NULL DEFAULT 0,
    lease_len bigint NOT NULL DEFAULT 0,
    max_attempts bigint NOT NULL DEFAULT 0,
    max_losses bigint NOT NULL DEFAULT 0,
    epoch bigint NOT NULL DEFAULT 0,          -- of the pool
    parents_left integer NOT NULL DEFAULT 0,
    priority smallint NOT NULL,
    hold smallint NOT NULL DEFAULT 0,
    cancel_asked boolean NOT NULL DEFAULT false,
    granted boolean NOT NULL DEFAULT false,   -- own: leased in this generation, so its fence counts for its lane
    awaited boolean NOT NULL DEFAULT false,   -- own: an edge begins at it
    queue text COLLATE "C" NOT NULL,
    id text COLLATE "C" NOT NULL,
    task text COLLATE "C" NOT NULL,
    state text COLLATE "C" NOT NULL,
    token text COLLATE "C",
    lane text COLLATE "C",
    expires bigint,
    -- The request
    codec text COLLATE "C" NOT NULL,
    payload bytea NOT NULL,
    payload_hash bytea NOT NULL,
    metadata jsonb,
    unique_key text COLLATE "C",
    key_scope text COLLATE "C" NOT NULL,
    reply text[] NOT NULL,
    pool_key text COLLATE "C",
    pool_hash numeric(20, 0),                 -- own: hash of pool_key, taken by the client; 64 bits without a sign
    given_max_attempts bigint,
    given_max_losses bigint,
    given_timeout bigint,
    given_lease_len bigint,
    given_result_ttl bigint,
    given_retention bigint,
    -- The lease
    owner text COLLATE "C" NOT NULL DEFAULT '',
    lease_expires bigint,
    started bigint,
    last_started bigint,
    progress jsonb,
    cancel_note text NOT NULL DEFAULT '',
    settled_token text COLLATE "C",
    reaped_token text COLLATE "C",
    loss_error jsonb,
    -- The end
    finished bigint,
    reason text COLLATE "C",
    note text NOT NULL DEFAULT '',
    result bytea,
    last_error jsonb,
    history jsonb,
    PRIMARY KEY (id, queue)                   -- ids differ, queues hardly do: one comparison per step instead of two
) WITH (
    fillfactor = 50,
    autovacuum_vacuum_scale_factor = 0.02,
    autovacuum_vacuum_insert_scale_factor = 0.2,
    autovacuum_analyze_scale_factor = 0.05,
    autovacuum_vacuum_cost_delay = 0
);

-- All columns ascend, so that "from this job on" is one range of the index.
CREATE INDEX job_ready ON job (queue, task, (-priority::int), due, arrival) WHERE state = 'queued';
CREATE INDEX job_due ON job (queue, due, arrival) WHERE state IN ('scheduled', 'retrying');
-- There are never more leased jobs than slots. So they are found by token alone, and a renewal, which changes no
-- indexed column, stays on its page.
CREATE INDEX job_token ON job (token) WHERE token IS NOT NULL;
CREATE INDEX job_state ON job (queue, state, arrival) WHERE state NOT IN ('assigned', 'running');
CREATE INDEX job_ended ON job (greatest(visible_until, result_until, key_until))
    WHERE state IN ('succeeded', 'failed', 'cancelled');
CREATE INDEX job_expires ON job (expires)
    WHERE expires IS NOT NULL AND state IN ('scheduled', 'blocked', 'queued', 'retrying');
CREATE INDEX job_lane_next ON job (queue, lane, priority DESC, arrival) WHERE lane IS NOT NULL AND hold & 1 = 1;
CREATE INDEX job_lane_live ON job (queue, lane, arrival)
    WHERE lane IS NOT NULL AND state NOT IN ('succeeded', 'failed', 'cancelled');

CREATE SEQUENCE arrival;

-- The job that took a key last. A row per key and not a unique index on jobs: a key is free again before its record
-- is deleted.
CREATE TABLE unique_key (
    queue text COLLATE "C" NOT NULL,
    task text COLLATE "C" NOT NULL,
    unique_key text COLLATE "C" NOT NULL,
    id text COLLATE "C" NOT NULL,
    PRIMARY KEY (queue, task, unique_key)
);

-- `parent_arrival` and `arrival` say which job of its id the parent and the child is: an id may be used again.
CREATE TABLE edge (
    parent_queue text COLLATE "C" NOT NULL,
    parent_id text COLLATE "C" NOT NULL,
    parent_arrival bigint NOT NULL,
    child_queue text COLLATE "C" NOT NULL,
    child_id text COLLATE "C" NOT NULL,
    arrival bigint NOT NULL,
    any_end boolean NOT NULL,
    PRIMARY KEY (parent_queue, parent_id, parent_arrival, child_queue, child_id, arrival)
);
CREATE INDEX edge_child ON edge (child_queue, child_id);

-- A queue exists from its first job on. It has a row here only if it was paused or named before that, or has run empty.
CREATE TABLE queue (
    queue text COLLATE "C" PRIMARY KEY,
    paused boolean NOT NULL DEFAULT false,
    clearing bigint NOT NULL DEFAULT 0,   -- nothing is claimed until then: a clear is under way, chunk by chunk
    emptied_at bigint NOT NULL DEFAULT 0
);

-- How many jobs are in each state, and how many ended in it. No two hot transactions write the same row: each call adds
-- rows to `tally`, and prune folds them into `counter`. Readers add the two up in one statement.
CREATE TABLE counter (
    queue text COLLATE "C" NOT NULL,
    state text COLLATE "C" NOT NULL,
    jobs bigint NOT NULL,
    ends bigint NOT NULL,
    PRIMARY KEY (queue, state)
) WITH (fillfactor = 50);

CREATE TABLE tally (
    queue text COLLATE "C" NOT NULL,
    state text COLLATE "C" NOT NULL,
    jobs integer NOT NULL,
    ends integer NOT NULL
) WITH (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 2000, autovacuum_vacuum_cost_delay = 0);
CREATE INDEX tally_queue ON tally (queue);

CREATE VIEW counts AS
    SELECT queue, state, sum(jobs)::bigint AS jobs, sum(ends)::bigint AS ends
    FROM (SELECT queue, state, jobs, ends FROM counter UNION ALL SELECT queue, state, jobs, ends FROM tally) AS both_of
    GROUP BY queue, state;

CREATE TABLE lane (
    queue text COLLATE "C" NOT NULL,
    lane text COLLATE "C" NOT NULL,
    head text COLLATE "C",
    depth bigint NOT NULL DEFAULT 0,
    paused boolean NOT NULL DEFAULT false,
    succeeded bigint NOT NULL DEFAULT 0,
    failed bigint NOT NULL DEFAULT 0,
    cancelled bigint NOT NULL DEFAULT 0,
    fence bigint NOT NULL DEFAULT 0,
    emptied bigint NOT NULL DEFAULT 0,
    PRIMARY KEY (queue, lane)
) WITH (fillfactor = 50);

CREATE TABLE pool (
    name text COLLATE "C" PRIMARY KEY,
    lanes bigint NOT NULL,
    epoch bigint NOT NULL DEFAULT 1,
    old_live bigint NOT NULL DEFAULT 0,
    turns text NOT NULL   -- the sequence that counts keyless jobs: a row would make all producers wait for each other
);

CREATE TABLE worker (
    worker text COLLATE "C" PRIMARY KEY,
    record jsonb NOT NULL,
    seen bigint NOT NULL,
    stop_asked boolean NOT NULL DEFAULT false,
    rules_version integer NOT NULL DEFAULT 0,  -- whose `heartbeat` it called: migrate keeps that version
    has_session boolean NOT NULL DEFAULT false -- its heartbeats come over a session that holds a lock for it
) WITH (fillfactor = 50);

-- Work that is deferred until after a commit, because the transaction that caused it must not wait for other locks:
--   arrive   a job came in a user's transaction: admit it to its lane, place it in its pool, link it to its parents;
--   link     it is admitted, and a parent was locked by another transaction: look at its parents again;
--   end      a job ended in a user's transaction: its lane, its pool and its children go on;
--   parent   a job has ended and has children left to release or cancel.
-- Normally empty. Every exchange and every enqueue looks here.
--
-- `arrival` says which job of its id it is. What is to be done with an ended job must not depend on its record: the id
-- may be used again before.
CREATE TABLE deferred (
    number bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    kind text NOT NULL,
    queue text COLLATE "C" NOT NULL,
    lane text COLLATE "C",                -- arrive, of a pool: the lane that the pool would have chosen at the call
    id text COLLATE "C" NOT NULL,
    arrival bigint NOT NULL,
    lanes bigint,                         -- arrive, of a pool: the number of lanes in the producer's code
    pool_hash numeric(20, 0),             -- arrive, of a pool: as in `job`
    state text COLLATE "C",               -- end, parent: how the job ended
    epoch bigint NOT NULL DEFAULT 0,      -- end: as in `job`
    fence bigint                          -- end: as in `job`, if it was leased in its generation
) WITH (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 1000, autovacuum_vacuum_cost_delay = 0);
CREATE INDEX deferred_job ON deferred (kind, queue, id);
CREATE INDEX deferred_lane ON deferred (queue, lane) WHERE kind = 'arrive';

-- Where prune stands among the lanes. Lanes have no index by the time they ran empty, which every job would write;
-- prune looks at them in turn instead. One row.
CREATE TABLE lane_cursor (
    queue text COLLATE "C" NOT NULL,
    lane text COLLATE "C" NOT NULL
);
INSERT INTO lane_cursor VALUES ('', '');

-- The versions of the rules that are installed, each in a schema of its own.
CREATE TABLE rules (
    version integer PRIMARY KEY,
    checksum text NOT NULL,
    installed timestamptz NOT NULL DEFAULT now()
);
