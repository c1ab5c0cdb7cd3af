-- Every statement the SQLite engine runs, by name, with its intent and the index that serves it.
-- A template: `{{…}}` is a value of the model, a list of columns or the namespace, see statements.py.

-- name: begin_meta
-- Read what all processes share, when a transaction begins.
SELECT boot_id, wall, lease, arrival FROM {{ns}}_meta WHERE one = 1;

-- name: end_meta
-- Write it back, when the transaction ends.
UPDATE {{ns}}_meta SET wall = ?, lease = ?, arrival = ? WHERE one = 1;

-- name: lock
-- Take the write lock, before anything is read, in a transaction that a user has begun.
UPDATE {{ns}}_meta SET wall = wall WHERE one = 1;

-- name: count_user_commit
-- Count a transaction of a user whose driver has no commit callback. The counter is a decimal number as text.
INSERT INTO {{ns}}_small_record (kind, name, body) VALUES ('user_commits', '', CAST('1' AS BLOB))
ON CONFLICT (kind, name) DO UPDATE SET body = CAST(CAST(CAST(body AS TEXT) AS INTEGER) + 1 AS BLOB);

-- name: user_commits
-- That counter.
SELECT body FROM {{ns}}_small_record WHERE kind = 'user_commits';

-- name: new_boot
-- The host has restarted, and its lease clock with it.
UPDATE {{ns}}_meta SET boot_id = ?, lease = 0 WHERE one = 1;

-- name: queue_number
SELECT q FROM {{ns}}_queue WHERE name = ?;

-- name: add_queue
INSERT INTO {{ns}}_queue (name) VALUES (?);

-- name: task_number
SELECT t FROM {{ns}}_task WHERE name = ?;

-- name: add_task
INSERT INTO {{ns}}_task (name) VALUES (?);

-- name: job
-- One job by queue and id. Index: job_id.
SELECT arrival, body FROM {{ns}}_job WHERE q = ? AND id = ?;

-- name: has_job
-- Whether the job exists. Index: job_id, which covers the query.
SELECT 1 FROM {{ns}}_job WHERE q = ? AND id = ?;

-- name: add_job
INSERT INTO {{ns}}_job ({{job.columns}}) VALUES ({{job.parameters}});

-- name: add_queued_job
-- A queued job without lane, key, lease and expiry.
INSERT INTO {{ns}}_job ({{job.queued_columns}}) VALUES {{job.queued_row}};

-- name: add_queued_jobs
-- Several of them.
INSERT INTO {{ns}}_job ({{job.queued_columns}}) VALUES {{job.queued_rows}};

-- name: update_job_lease
-- For a job that goes on and has no expiry date, if neither its order nor its name changes.
UPDATE {{ns}}_job SET {{job.lease_assignments}} WHERE arrival = ?;

-- name: update_job_end
-- The same for one that ends.
UPDATE {{ns}}_job SET {{job.end_assignments}} WHERE arrival = ?;

-- name: update_job_narrow
-- For any job whose order and name do not change: most indexes are not touched.
UPDATE {{ns}}_job SET {{job.narrow_assignments}} WHERE arrival = ?;

-- name: update_job
-- Any change of a job, its arrival included.
UPDATE {{ns}}_job SET {{job.assignments}} WHERE arrival = ?;

-- name: drop_job
DELETE FROM {{ns}}_job WHERE arrival = ?;

-- name: ready
-- The next ready jobs of one task, in claim order. Index: job_ready.
SELECT arrival, rank, due, body FROM {{ns}}_job INDEXED BY {{ns}}_job_ready
WHERE q = ? AND t = ? AND state = {{state.queued}} AND (rank, due, arrival) > (?, ?, ?)
ORDER BY rank, due, arrival LIMIT ?;

-- name: ready_entries
-- The entries of one queue in the order of the index, to check it. Index: job_ready, which covers the query.
SELECT q, t, rank, due, arrival FROM {{ns}}_job INDEXED BY {{ns}}_job_ready
WHERE q = ? AND state = {{state.queued}} ORDER BY t, rank, due, arrival LIMIT ?;

-- name: reindex_jobs
-- Make all indexes of the table again from its rows. Only a repair runs this.
REINDEX {{ns}}_job;

-- name: next_queue
-- The next queue in the order of its number.
SELECT q, name FROM {{ns}}_queue WHERE q > ? ORDER BY q LIMIT 1;

-- name: next_ready_task
-- The next task of a queue that has ready jobs: its number, its name, the due time of its first ready job. Index:
-- job_ready.
SELECT t, (SELECT name FROM {{ns}}_task AS task WHERE task.t = job.t), due FROM {{ns}}_job AS job INDEXED BY {{ns}}_job_ready
WHERE q = ? AND t > ? AND state = {{state.queued}} ORDER BY t, rank, due, arrival LIMIT 1;

-- name: due
-- Jobs that have fallen due, in order. Index: job_due.
SELECT arrival, body FROM {{ns}}_job INDEXED BY {{ns}}_job_due
WHERE q = ? AND due <= ? AND state IN ({{by_due}}) ORDER BY due, arrival LIMIT ?;

-- name: next_due
-- Index: job_due.
SELECT due FROM {{ns}}_job INDEXED BY {{ns}}_job_due WHERE q = ? AND state IN ({{by_due}}) ORDER BY due, arrival LIMIT 1;

-- name: count_due
-- Index: job_due.
SELECT count(*), min(due) FROM {{ns}}_job INDEXED BY {{ns}}_job_due WHERE q = ? AND due <= ? AND state IN ({{by_due}});

-- name: next_in_lane
-- The job behind the head that runs next. Index: job_lane.
SELECT arrival, body FROM {{ns}}_job INDEXED BY {{ns}}_job_lane
WHERE q = ? AND lane = ? ORDER BY rank, arrival LIMIT 1;

-- name: earliest_in_lane
-- The job behind the head that arrived first. Index: job_lane.
SELECT arrival, body FROM {{ns}}_job INDEXED BY {{ns}}_job_lane
WHERE q = ? AND lane = ? ORDER BY arrival LIMIT 1;

-- name: key_taker
-- The latest job with a unique key. Index: job_key.
SELECT arrival, body FROM {{ns}}_job INDEXED BY {{ns}}_job_key
WHERE q = ? AND t = ? AND unique_key = ? ORDER BY arrival DESC LIMIT 1;

-- name: held_by
-- The leases of a claim. A token is the claim's id, a dot and a rank; '/' is the character after '.'. Index: job_token.
SELECT arrival, body FROM {{ns}}_job INDEXED BY {{ns}}_job_token
WHERE token > ? || '.' AND token < ? || '/';

-- name: leases
-- Leased jobs whose lease expires then or earlier. There are as many rows as slots. Index: job_token.
SELECT arrival, body FROM {{ns}}_job INDEXED BY {{ns}}_job_token WHERE token IS NOT NULL AND lease_expires <= ?;

-- name: expiring
-- Waiting jobs past their expiry date. Index: job_expires.
SELECT arrival, body FROM {{ns}}_job INDEXED BY {{ns}}_job_expires WHERE expires <= ? ORDER BY expires LIMIT ?;

-- name: ended
-- Ended jobs whose lifetimes have passed and that are no parent of an edge. Index: job_kept, and the key of edge.
SELECT arrival, body FROM {{ns}}_job AS job INDEXED BY {{ns}}_job_kept
WHERE kept_until <= ?
    AND NOT EXISTS (SELECT 1 FROM {{ns}}_edge WHERE parent_q = job.q AND parent_id = job.id)
ORDER BY kept_until LIMIT ?;

-- name: newest
-- Jobs of a queue in one state, latest arrival first. Reads the table backwards: only operators ask this, and an index
-- would cost every job an entry per change.
SELECT arrival, body FROM {{ns}}_job NOT INDEXED
WHERE q = ? AND state = ? AND arrival < ? ORDER BY arrival DESC LIMIT ?;

-- name: newest_queued
-- The same for queued jobs, without reading ended ones. It sorts the entries of the index, and then reads the rows of
-- one page. Index: job_ready.
SELECT arrival, body FROM {{ns}}_job WHERE arrival IN (
    SELECT arrival FROM {{ns}}_job INDEXED BY {{ns}}_job_ready
    WHERE q = ? AND state = ? AND state = {{state.queued}} AND arrival < ? ORDER BY arrival DESC LIMIT ?
) ORDER BY arrival DESC;

-- name: arrivals
-- The first and the last arrival in the table.
SELECT (SELECT min(arrival) FROM {{ns}}_job), (SELECT max(arrival) FROM {{ns}}_job);

-- name: newest_dead
-- The same for failed and cancelled jobs. Index: job_dead.
SELECT arrival, body FROM {{ns}}_job INDEXED BY {{ns}}_job_dead
WHERE q = ? AND state = ? AND state IN ({{unsuccessful}}) AND arrival < ? ORDER BY arrival DESC LIMIT ?;

-- name: live_jobs
-- Live jobs of a queue, or of a lane with this head, latest arrival first. Reads the table: only `clear` asks this.
SELECT arrival, body FROM {{ns}}_job NOT INDEXED
WHERE q = ? AND state IN ({{live}}) AND arrival < ? AND (? IS NULL OR lane = ? OR id = ?) ORDER BY arrival DESC LIMIT ?;

-- name: blocked_jobs
-- Blocked jobs of a queue in arrival order. Reads the table: only the resize of a pool asks this.
SELECT arrival, body FROM {{ns}}_job NOT INDEXED WHERE q = ? AND state = {{state.blocked}} AND arrival > ? ORDER BY arrival LIMIT ?;

-- name: queue
SELECT body FROM {{ns}}_queue WHERE q = ?;

-- name: queues
SELECT body FROM {{ns}}_queue WHERE body IS NOT NULL ORDER BY name;

-- name: put_queue
UPDATE {{ns}}_queue SET body = ? WHERE q = ?;

-- name: drop_counts
DELETE FROM {{ns}}_count WHERE q = ?;

-- name: drop_queue_record
UPDATE {{ns}}_queue SET body = NULL WHERE q = ?;

-- name: drop_queue
-- Remove a name and its number; not while an edge has the number, which is found by it. Edges are few.
DELETE FROM {{ns}}_queue WHERE q = ? AND NOT EXISTS (SELECT 1 FROM {{ns}}_edge WHERE child_q = ?);

-- name: counts
SELECT state, n FROM {{ns}}_count WHERE q = ?;

-- name: count
-- Add what a transaction has changed.
INSERT INTO {{ns}}_count (q, state, n) VALUES (?, ?, ?) ON CONFLICT (q, state) DO UPDATE SET n = n + excluded.n;

-- name: lane
SELECT body FROM {{ns}}_lane WHERE q = ? AND lane = ?;

-- name: next_lanes
-- Lanes after this one that have jobs or are paused, in the order of the key, to check that their heads exist.
SELECT q, lane, body FROM {{ns}}_lane WHERE (q, lane) > (?, ?) AND idle_since IS NULL ORDER BY q, lane LIMIT ?;

-- name: count_waiting
-- The number of jobs behind the head of a lane. Index: job_lane.
SELECT count(*) FROM {{ns}}_job INDEXED BY {{ns}}_job_lane WHERE q = ? AND lane = ?;

-- name: lanes
SELECT body FROM {{ns}}_lane WHERE q = ? ORDER BY lane;

-- name: put_lane
INSERT INTO {{ns}}_lane (q, lane, idle_since, body) VALUES (?, ?, ?, ?)
ON CONFLICT (q, lane) DO UPDATE SET idle_since = excluded.idle_since, body = excluded.body;

-- name: drop_lane
DELETE FROM {{ns}}_lane WHERE q = ? AND lane = ?;

-- name: idle_lanes
-- Index: lane_idle.
SELECT body FROM {{ns}}_lane INDEXED BY {{ns}}_lane_idle WHERE idle_since <= ?;

-- name: any_edge
SELECT 1 FROM {{ns}}_edge LIMIT 1;

-- name: children
SELECT body FROM {{ns}}_edge WHERE parent_q = ? AND parent_id = ? LIMIT ?;

-- name: put_edge
INSERT INTO {{ns}}_edge (parent_q, parent_id, child_q, child_id, body) VALUES (?, ?, ?, ?, ?)
ON CONFLICT DO UPDATE SET body = excluded.body;

-- name: drop_edge
DELETE FROM {{ns}}_edge WHERE parent_q = ? AND parent_id = ? AND child_q = ? AND child_id = ?;

-- name: ended_parent
-- A parent that has ended and still has edges. Edges are few: they exist only while a parent is live.
SELECT queue.name, edge.parent_id FROM {{ns}}_edge AS edge
JOIN {{ns}}_job AS job ON job.q = edge.parent_q AND job.id = edge.parent_id
JOIN {{ns}}_queue AS queue ON queue.q = edge.parent_q
WHERE job.state IN ({{terminal}}) ORDER BY queue.name, edge.parent_id LIMIT 1;

-- name: small_record
SELECT body FROM {{ns}}_small_record WHERE kind = ? AND name = ?;

-- name: small_records
SELECT body FROM {{ns}}_small_record WHERE kind = ? ORDER BY name;

-- name: put_small_record
INSERT INTO {{ns}}_small_record (kind, name, body) VALUES (?, ?, ?) ON CONFLICT (kind, name) DO UPDATE SET body = excluded.body;

-- name: drop_small_record
DELETE FROM {{ns}}_small_record WHERE kind = ? AND name = ?;

-- name: damaged_row
-- The columns of a row whose record is damaged.
SELECT queue.name, job.id, task.name, job.state, job.rank, job.due, job.lane, job.unique_key, job.body
FROM {{ns}}_job AS job JOIN {{ns}}_queue AS queue ON queue.q = job.q JOIN {{ns}}_task AS task ON task.t = job.t
WHERE job.arrival = ?;

-- name: count_states
-- The number of jobs of a queue per state. Reads the table: only a repair asks this.
SELECT state, count(*) FROM {{ns}}_job NOT INDEXED WHERE q = ? GROUP BY state;

-- name: keep_damaged
INSERT INTO {{ns}}_damaged (arrival, queue, id, noticed_us, body) VALUES (?, ?, ?, ?, ?);

-- name: repair_row
-- Write the record that was made from the columns, before the rules end the job.
UPDATE {{ns}}_job SET state = {{state.running}}, token = NULL, lease_expires = NULL, expires = NULL, kept_until = NULL, body = ?
WHERE arrival = ?;

-- name: queue_names
-- For the audit.
SELECT name FROM {{ns}}_queue;

-- name: all_jobs
-- For the audit.
SELECT queue.name, {{job.qualified_columns}}
FROM {{ns}}_job AS job JOIN {{ns}}_queue AS queue ON queue.q = job.q;

-- name: all_edges
-- For the audit.
SELECT body FROM {{ns}}_edge;
