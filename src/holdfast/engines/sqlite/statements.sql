-- Every statement the SQLite engine runs, by name, with its intent and the index that serves it.
-- {ns} stands for the namespace, which is checked before it is used; everything else is a parameter.

-- name: begin_meta
-- Read what all processes share, at the start of a transaction.
SELECT boot_id, wall, lease, arrival FROM {ns}_meta WHERE one = 1;

-- name: end_meta
-- Write it back, at the end.
UPDATE {ns}_meta SET wall = ?, lease = ?, arrival = ? WHERE one = 1;

-- name: lock
-- Take the write lock, before anything is read, in a transaction that somebody else has begun.
UPDATE {ns}_meta SET wall = wall WHERE one = 1;

-- name: note_join
-- Leave a sign that changes with every transaction of a user's that could not tell of its commit.
INSERT INTO {ns}_thing (kind, name, body) VALUES ('joined', '', x'31')
ON CONFLICT (kind, name) DO UPDATE SET body = CAST(CAST(CAST(body AS TEXT) AS INTEGER) + 1 AS BLOB);

-- name: joins
-- That sign.
SELECT body FROM {ns}_thing WHERE kind = 'joined';

-- name: new_boot
-- The host has started anew: its lease clock begins at zero again.
UPDATE {ns}_meta SET boot_id = ?, lease = 0 WHERE one = 1;

-- name: queue_number
SELECT q FROM {ns}_queue WHERE name = ?;

-- name: add_queue
INSERT INTO {ns}_queue (name) VALUES (?);

-- name: task_number
SELECT t FROM {ns}_task WHERE name = ?;

-- name: add_task
INSERT INTO {ns}_task (name) VALUES (?);

-- name: job
-- One job by its name. Index: job_id.
SELECT arrival, body FROM {ns}_job WHERE q = ? AND id = ?;

-- name: has_job
-- Whether there is such a job. Index: job_id, which has all of it.
SELECT 1 FROM {ns}_job WHERE q = ? AND id = ?;

-- name: add_job
INSERT INTO {ns}_job (arrival, q, id, t, state, rank, due, lane, unique_key, token, lease_expires, expires, kept_until, body)
VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?);

-- name: move_job
-- A job changes its state and nothing that orders it. Leaves most indexes alone.
UPDATE {ns}_job SET state = ?, token = ?, lease_expires = ?, expires = ?, kept_until = ?, body = ? WHERE arrival = ?;

-- name: change_job
-- A job changes in any way, its arrival included.
UPDATE {ns}_job SET arrival = ?, t = ?, state = ?, rank = ?, due = ?, lane = ?, unique_key = ?, token = ?,
    lease_expires = ?, expires = ?, kept_until = ?, body = ? WHERE arrival = ?;

-- name: drop_job
DELETE FROM {ns}_job WHERE arrival = ?;

-- name: ready
-- The next ready jobs of one task, in claim order. Index: job_ready.
SELECT arrival, rank, due, body FROM {ns}_job INDEXED BY {ns}_job_ready
WHERE q = ? AND t = ? AND state = 3 AND (rank, due, arrival) > (?, ?, ?)
ORDER BY rank, due, arrival LIMIT ?;

-- name: oldest_ready
-- The due time of the first ready job of one task. Index: job_ready.
SELECT due FROM {ns}_job INDEXED BY {ns}_job_ready
WHERE q = ? AND t = ? AND state = 3 ORDER BY rank, due, arrival LIMIT 1;

-- name: next_ready_task
-- The tasks of a queue that have ready jobs, one after the other. Index: job_ready.
SELECT t FROM {ns}_job INDEXED BY {ns}_job_ready WHERE q = ? AND t > ? AND state = 3 ORDER BY t LIMIT 1;

-- name: due
-- What has fallen due, in order. Index: job_due.
SELECT arrival, body FROM {ns}_job INDEXED BY {ns}_job_due
WHERE q = ? AND due <= ? AND state IN (1, 6) ORDER BY due, arrival LIMIT ?;

-- name: next_due
-- Index: job_due.
SELECT due FROM {ns}_job INDEXED BY {ns}_job_due WHERE q = ? AND state IN (1, 6) ORDER BY due, arrival LIMIT 1;

-- name: count_due
-- Index: job_due.
SELECT count(*), min(due) FROM {ns}_job INDEXED BY {ns}_job_due WHERE q = ? AND due <= ? AND state IN (1, 6);

-- name: next_in_lane
-- The best of those who wait behind the head. Index: job_lane.
SELECT arrival, body FROM {ns}_job INDEXED BY {ns}_job_lane
WHERE q = ? AND lane = ? ORDER BY rank, arrival LIMIT 1;

-- name: earliest_in_lane
-- The one that has waited longest behind the head. Index: job_lane.
SELECT arrival, body FROM {ns}_job INDEXED BY {ns}_job_lane
WHERE q = ? AND lane = ? ORDER BY arrival LIMIT 1;

-- name: key_taker
-- The job that took a key last. Index: job_key.
SELECT arrival, body FROM {ns}_job INDEXED BY {ns}_job_key
WHERE q = ? AND t = ? AND unique_key = ? ORDER BY arrival DESC LIMIT 1;

-- name: held_by
-- What a claim holds: tokens are the claim's id, a dot and a rank ('/' sorts after '.'). Index: job_token.
SELECT arrival, body FROM {ns}_job INDEXED BY {ns}_job_token
WHERE token > ? || '.' AND token < ? || '/';

-- name: leases
-- Every leased job whose lease expires by then: as many rows as there are slots. Index: job_token.
SELECT arrival, body FROM {ns}_job INDEXED BY {ns}_job_token WHERE token IS NOT NULL AND lease_expires <= ?;

-- name: expiring
-- Waiting jobs past their expiry date. Index: job_expires.
SELECT arrival, body FROM {ns}_job INDEXED BY {ns}_job_expires WHERE expires <= ? ORDER BY expires LIMIT ?;

-- name: ended
-- Finished jobs past all their clocks that no edge keeps. Index: job_kept, and the key of edge.
SELECT arrival, body FROM {ns}_job AS job INDEXED BY {ns}_job_kept
WHERE kept_until <= ?
    AND NOT EXISTS (SELECT 1 FROM {ns}_edge WHERE parent_q = job.q AND parent_id = job.id)
ORDER BY kept_until LIMIT ?;

-- name: newest
-- Jobs of a queue in one state, latest arrival first. Walks the table backwards: an operator's question, which must
-- not cost every job an index entry per change.
SELECT arrival, body FROM {ns}_job NOT INDEXED
WHERE q = ? AND state = ? AND arrival < ? ORDER BY arrival DESC LIMIT ?;

-- name: newest_queued
-- The same for queued jobs, without passing over what has ended. Index: job_ready.
SELECT arrival, body FROM {ns}_job INDEXED BY {ns}_job_ready
WHERE q = ? AND state = ? AND state = 3 AND arrival < ? ORDER BY arrival DESC LIMIT ?;

-- name: newest_dead
-- The same for failed and cancelled jobs. Index: job_dead.
SELECT arrival, body FROM {ns}_job INDEXED BY {ns}_job_dead
WHERE q = ? AND state = ? AND state IN (8, 9) AND arrival < ? ORDER BY arrival DESC LIMIT ?;

-- name: live_jobs
-- Live jobs of a queue, or of a lane with this head, latest arrival first. Walks the table: asked for by `clear`.
SELECT arrival, body FROM {ns}_job NOT INDEXED
WHERE q = ? AND state <= 6 AND arrival < ? AND (? IS NULL OR lane = ? OR id = ?) ORDER BY arrival DESC LIMIT ?;

-- name: blocked_jobs
-- Blocked jobs of a queue in arrival order. Walks the table: asked for when a pool has changed its size.
SELECT arrival, body FROM {ns}_job NOT INDEXED WHERE q = ? AND state = 2 AND arrival > ? ORDER BY arrival LIMIT ?;

-- name: queue
SELECT body FROM {ns}_queue WHERE q = ?;

-- name: queues
SELECT body FROM {ns}_queue WHERE body IS NOT NULL ORDER BY name;

-- name: put_queue
UPDATE {ns}_queue SET body = ? WHERE q = ?;

-- name: counts
SELECT state, n FROM {ns}_tally WHERE q = ?;

-- name: count
-- Book what a transaction has moved.
INSERT INTO {ns}_tally (q, state, n) VALUES (?, ?, ?) ON CONFLICT (q, state) DO UPDATE SET n = n + excluded.n;

-- name: lane
SELECT body FROM {ns}_lane WHERE q = ? AND lane = ?;

-- name: next_lanes
-- Lanes after this one that have jobs or are paused, in the order of the key, to look whether their heads are there.
SELECT q, lane, body FROM {ns}_lane WHERE (q, lane) > (?, ?) AND idle_since IS NULL ORDER BY q, lane LIMIT ?;

-- name: count_waiting
-- How many wait behind the head of a lane. Index: job_lane.
SELECT count(*) FROM {ns}_job INDEXED BY {ns}_job_lane WHERE q = ? AND lane = ?;

-- name: lanes
SELECT body FROM {ns}_lane WHERE q = ? ORDER BY lane;

-- name: put_lane
INSERT INTO {ns}_lane (q, lane, idle_since, body) VALUES (?, ?, ?, ?)
ON CONFLICT (q, lane) DO UPDATE SET idle_since = excluded.idle_since, body = excluded.body;

-- name: drop_lane
DELETE FROM {ns}_lane WHERE q = ? AND lane = ?;

-- name: idle_lanes
-- Index: lane_idle.
SELECT body FROM {ns}_lane INDEXED BY {ns}_lane_idle WHERE idle_since <= ?;

-- name: any_edge
SELECT 1 FROM {ns}_edge LIMIT 1;

-- name: children
SELECT body FROM {ns}_edge WHERE parent_q = ? AND parent_id = ? LIMIT ?;

-- name: put_edge
INSERT INTO {ns}_edge (parent_q, parent_id, child_q, child_id, body) VALUES (?, ?, ?, ?, ?)
ON CONFLICT DO UPDATE SET body = excluded.body;

-- name: drop_edge
DELETE FROM {ns}_edge WHERE parent_q = ? AND parent_id = ? AND child_q = ? AND child_id = ?;

-- name: ended_parent
-- Some parent that has ended with edges left. Edges are few: they stand only while a parent is live.
SELECT queue.name, edge.parent_id FROM {ns}_edge AS edge
JOIN {ns}_job AS job ON job.q = edge.parent_q AND job.id = edge.parent_id
JOIN {ns}_queue AS queue ON queue.q = edge.parent_q
WHERE job.state >= 7 ORDER BY queue.name, edge.parent_id LIMIT 1;

-- name: thing
SELECT body FROM {ns}_thing WHERE kind = ? AND name = ?;

-- name: things
SELECT body FROM {ns}_thing WHERE kind = ? ORDER BY name;

-- name: put_thing
INSERT INTO {ns}_thing (kind, name, body) VALUES (?, ?, ?) ON CONFLICT (kind, name) DO UPDATE SET body = excluded.body;

-- name: drop_thing
DELETE FROM {ns}_thing WHERE kind = ? AND name = ?;

-- name: damaged_row
-- What the columns of a damaged row still say.
SELECT queue.name, job.id, task.name, job.state, job.rank, job.due, job.lane, job.unique_key, job.body
FROM {ns}_job AS job JOIN {ns}_queue AS queue ON queue.q = job.q JOIN {ns}_task AS task ON task.t = job.t
WHERE job.arrival = ?;

-- name: count_states
-- The jobs of a queue by their states. Walks the table: asked for when rows have been deleted by hand.
SELECT state, count(*) FROM {ns}_job NOT INDEXED WHERE q = ? GROUP BY state;

-- name: keep_damaged
INSERT INTO {ns}_damaged (arrival, queue, id, noticed, body) VALUES (?, ?, ?, ?, ?);

-- name: mend_row
-- The record that the columns make, as it is written before the job ends.
UPDATE {ns}_job SET state = 5, token = NULL, lease_expires = NULL, expires = NULL, kept_until = NULL, body = ?
WHERE arrival = ?;

-- name: queue_names
-- For the audit.
SELECT name FROM {ns}_queue;

-- name: all_jobs
-- For the audit.
SELECT queue.name, job.arrival, job.t, job.state, job.rank, job.due, job.lane, job.unique_key, job.token,
    job.lease_expires, job.expires, job.kept_until, job.body
FROM {ns}_job AS job JOIN {ns}_queue AS queue ON queue.q = job.q;

-- name: all_edges
-- For the audit.
SELECT body FROM {ns}_edge;
