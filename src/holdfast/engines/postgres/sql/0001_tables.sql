-- The tables. Instants and durations are microseconds. Text is compared as bytes, so that order is the same everywhere.
--
-- A job is claimable only in state `queued`; whatever holds it back keeps it in another state, and the write that removes
-- the obstacle moves it. So every search below is one range of one partial index, whatever else the table holds.

-- What is always there and always as long stands first, then what is indexed: reading a row ends where its last wanted
-- column is, and what follows a text has to be looked for. Every update compares all indexed columns of two rows.
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
    granted boolean NOT NULL DEFAULT false,   -- it was leased in this life, so its fence is one of its lane's
    awaited boolean NOT NULL DEFAULT false,   -- an edge begins at it
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
    pool_hash numeric(20, 0),                 -- of the key, as producers take it: 64 bits without a sign
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
    -- The end
    finished bigint,
    reason text COLLATE "C",
    note text NOT NULL DEFAULT '',
    result bytea,
    last_error jsonb,
    history jsonb,
    PRIMARY KEY (id, queue)                   -- ids differ, queues hardly do: one comparison per step instead of two
) WITH (
    fillfactor = 85,
    autovacuum_vacuum_scale_factor = 0.02,
    autovacuum_vacuum_insert_scale_factor = 0.2,
    autovacuum_analyze_scale_factor = 0.05,
    autovacuum_vacuum_cost_delay = 0
);

-- All in one direction, so that "from here on" is a range of it.
CREATE INDEX job_ready ON job (queue, task, (-priority::int), due, arrival) WHERE state = 'queued';
CREATE INDEX job_due ON job (queue, due, arrival) WHERE state IN ('scheduled', 'retrying');
-- The leased ones are never more than there are slots. So they are looked for by token alone, and a renewal, which changes
-- nothing that is indexed, stays on its page.
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

-- Who took a key last. A row per key, and not a unique index on jobs, since a key outlives neither scope nor record.
CREATE TABLE unique_key (
    queue text COLLATE "C" NOT NULL,
    task text COLLATE "C" NOT NULL,
    unique_key text COLLATE "C" NOT NULL,
    id text COLLATE "C" NOT NULL,
    PRIMARY KEY (queue, task, unique_key)
);

CREATE TABLE edge (
    parent_queue text COLLATE "C" NOT NULL,
    parent_id text COLLATE "C" NOT NULL,
    child_queue text COLLATE "C" NOT NULL,
    child_id text COLLATE "C" NOT NULL,
    arrival bigint NOT NULL,
    any_end boolean NOT NULL,
    PRIMARY KEY (parent_queue, parent_id, child_queue, child_id, arrival)
);
CREATE INDEX edge_child ON edge (child_queue, child_id);

-- A queue exists from its first job on; a row here only if it was paused or named before that, or has run empty.
CREATE TABLE queue (
    queue text COLLATE "C" PRIMARY KEY,
    paused boolean NOT NULL DEFAULT false,
    clearing bigint NOT NULL DEFAULT 0,   -- until then nothing is claimed: somebody clears it, piece by piece
    emptied_at bigint NOT NULL DEFAULT 0
);

-- How many jobs per state, and how many ended in it. No row that two hot transactions write: each call adds lines to
-- `tally`, and maintenance folds them into `counter`. Readers add the two up in one statement.
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
    turns text NOT NULL   -- the sequence that counts keyless jobs: numbers without a row that everybody waits for
);

CREATE TABLE worker (
    worker text COLLATE "C" PRIMARY KEY,
    record jsonb NOT NULL,
    seen bigint NOT NULL,
    stop_asked boolean NOT NULL DEFAULT false
) WITH (fillfactor = 50);

CREATE TABLE schedule (
    name text COLLATE "C" PRIMARY KEY,
    record jsonb NOT NULL
);

-- What is still to be done after a commit that could not do it itself, since it may wait for nobody's lock:
--   arrive   a job came in a transaction of a user's and is to be admitted to its lane, or linked to its parents;
--   end      a job was ended in a transaction of a user's: its lane, pool and children are to hear of it;
--   parent   a job has ended and has children left to tell.
-- Normally empty. Every exchange and every enqueue looks here.
CREATE TABLE chore (
    number bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    kind text NOT NULL,
    queue text COLLATE "C" NOT NULL,
    lane text COLLATE "C",
    id text COLLATE "C" NOT NULL,
    arrival bigint NOT NULL
) WITH (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 1000, autovacuum_vacuum_cost_delay = 0);
CREATE INDEX chore_job ON chore (kind, queue, id);

-- A job as a producer asks for it.
CREATE TYPE new_job AS (
    queue text, id text, task text, payload text, codec text, metadata jsonb, payload_hash text, priority smallint,
    delay bigint, due bigint, expires bigint, lane text, pool jsonb, fresh_id boolean, unique_key text,
    key_scope text, key_window bigint, parents jsonb, reply text, given jsonb
);

-- What to write because an attempt ended.
CREATE TYPE settlement AS (
    queue text, id text, token text, target text, reason text, note text, delay bigint, due bigint, refund boolean,
    result text, error jsonb, result_ttl bigint, retention bigint, listed_expiry bigint
);
