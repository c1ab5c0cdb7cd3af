-- The SQLite schema, version 1. Every name starts with the namespace. A template: see statements.py.
--
-- A job is one row: the fields that statements search are columns, and the whole record is packed in `body` (MessagePack,
-- by position). Numbers stand for queue names (`q`) and task names (`t`), so that indexes are small. Times are whole
-- microseconds.

-- name: create
-- One row: the values that all processes share.
CREATE TABLE {{ns}}_meta (
    one INTEGER PRIMARY KEY CHECK (one = 1),
    version INTEGER NOT NULL,
    boot_id TEXT NOT NULL,      -- leases run on this boot's clock; after another boot they have expired
    wall INTEGER NOT NULL,      -- the latest times answered: engine time never goes back
    lease INTEGER NOT NULL,
    arrival INTEGER NOT NULL    -- the last arrival number in use
) STRICT;

CREATE TABLE {{ns}}_queue (
    q INTEGER PRIMARY KEY AUTOINCREMENT,  -- the number of a removed queue is never used again
    name TEXT NOT NULL UNIQUE,
    body BLOB                   -- NULL while the queue has no record
) STRICT;

CREATE TABLE {{ns}}_task (
    t INTEGER PRIMARY KEY,
    name TEXT NOT NULL UNIQUE
) STRICT;

CREATE TABLE {{ns}}_job (
    arrival INTEGER PRIMARY KEY,
    q INTEGER NOT NULL,
    id TEXT NOT NULL,
    t INTEGER NOT NULL,
    state INTEGER NOT NULL,     -- the number of the state: `STATE_NUMBERS` in rows.py
    rank INTEGER NOT NULL,      -- minus priority
    due INTEGER NOT NULL,
    lane TEXT,                  -- only while the job waits behind the head of its lane
    unique_key TEXT,
    token TEXT,
    lease_expires INTEGER,
    expires INTEGER,            -- only while the job waits
    kept_until INTEGER,         -- only after the job has ended
    body BLOB NOT NULL
) STRICT;

-- serves: job
CREATE UNIQUE INDEX {{ns}}_job_id ON {{ns}}_job (q, id);
-- serves: ready, next_ready_task. It contains only ready jobs, per queue and task: a claim reads one range.
CREATE INDEX {{ns}}_job_ready ON {{ns}}_job (q, t, rank, due, arrival) WHERE state = {{state.queued}};
-- serves: due, next_due, count_due
CREATE INDEX {{ns}}_job_due ON {{ns}}_job (q, due, arrival) WHERE state IN ({{by_due}});
-- serves: next_in_lane
CREATE INDEX {{ns}}_job_lane ON {{ns}}_job (q, lane, rank, arrival) WHERE lane IS NOT NULL;
-- serves: key_taker
CREATE INDEX {{ns}}_job_key ON {{ns}}_job (q, t, unique_key, arrival) WHERE unique_key IS NOT NULL;
-- serves: held_by, leases. It has as many entries as there are slots.
CREATE INDEX {{ns}}_job_token ON {{ns}}_job (token) WHERE token IS NOT NULL;
-- serves: expiring
CREATE INDEX {{ns}}_job_expires ON {{ns}}_job (expires) WHERE expires IS NOT NULL;
-- serves: ended
CREATE INDEX {{ns}}_job_kept ON {{ns}}_job (kept_until) WHERE kept_until IS NOT NULL;
-- serves: newest_dead. Operators page through dead letters and cancelled jobs.
CREATE INDEX {{ns}}_job_dead ON {{ns}}_job (q, state, arrival) WHERE state IN ({{unsuccessful}});

CREATE TABLE {{ns}}_count (
    q INTEGER NOT NULL,
    state INTEGER NOT NULL,
    n INTEGER NOT NULL,
    PRIMARY KEY (q, state)
) STRICT, WITHOUT ROWID;

CREATE TABLE {{ns}}_lane (
    q INTEGER NOT NULL,
    lane TEXT NOT NULL,
    idle_since INTEGER,         -- only while the lane is empty and not paused
    body BLOB NOT NULL,
    PRIMARY KEY (q, lane)
) STRICT, WITHOUT ROWID;
-- serves: idle_lanes
CREATE INDEX {{ns}}_lane_idle ON {{ns}}_lane (idle_since) WHERE idle_since IS NOT NULL;

CREATE TABLE {{ns}}_edge (
    parent_q INTEGER NOT NULL,
    parent_id TEXT NOT NULL,
    child_q INTEGER NOT NULL,
    child_id TEXT NOT NULL,
    body BLOB NOT NULL,
    PRIMARY KEY (parent_q, parent_id, child_q, child_id)
) STRICT, WITHOUT ROWID;

-- Rows whose record could not be decoded, with the bytes of the record.
CREATE TABLE {{ns}}_damaged (
    arrival INTEGER NOT NULL,
    queue TEXT NOT NULL,
    id TEXT NOT NULL,
    noticed_us INTEGER NOT NULL,
    body BLOB
) STRICT;

-- Pools, workers, unfinished work, the counter of user commits: few, small, read by name.
CREATE TABLE {{ns}}_small_record (
    kind TEXT NOT NULL,
    name TEXT NOT NULL,
    body BLOB NOT NULL,
    PRIMARY KEY (kind, name)
) STRICT, WITHOUT ROWID;
