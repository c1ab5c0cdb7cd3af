-- The audit: everything that is derived is computed again from the jobs and compared with what is stored. It reads
-- every row, as of one moment, and locks nothing. Work that a user's transaction has deferred is no problem.

-- The jobs that lanes and pools count: admitted, and not known to have ended.
CREATE VIEW member AS
    SELECT queue, id, lane, state, hold, arrival, fence, token, epoch, pool_key FROM job
    WHERE state NOT IN ({{terminal}}) AND hold & {{hold.arriving}} = 0
    UNION ALL
    SELECT queue, id, lane, state, 0, arrival, fence, NULL, epoch, NULL FROM deferred WHERE kind = 'end';

CREATE FUNCTION audit_counts() RETURNS SETOF text LANGUAGE sql STABLE AS $$
    SELECT format('queue %L: %s %s jobs are counted, %s are there',
        queue, coalesce(c.jobs, 0), state, coalesce(n.jobs, 0))
    FROM counts AS c
    FULL JOIN (SELECT queue, state, count(*) AS jobs FROM job GROUP BY queue, state) AS n USING (queue, state)
    WHERE coalesce(c.jobs, 0) <> coalesce(n.jobs, 0)
    UNION ALL
    SELECT format('queue %L: %s ends in state %s are counted, %s jobs are in it', queue, ends, state, jobs) FROM counts
    WHERE CASE WHEN is_terminal(state) THEN ends < jobs ELSE ends <> 0 END
$$;

-- What a record alone must fulfil.
CREATE FUNCTION audit_jobs() RETURNS SETOF text LANGUAGE sql STABLE AS $$
    SELECT format('job %L of queue %L (%s): %s', id, queue, state, wrong)
    FROM job AS j CROSS JOIN LATERAL (SELECT concat_ws(', ',
        CASE WHEN state NOT IN ({{states}}) THEN 'no such state' END,
        CASE WHEN state IN ({{leased}}) <> (token IS NOT NULL)
            OR state IN ({{leased}}) <> (lease_expires IS NOT NULL)
            THEN 'a lease without a leased state or the other way round' END,
        CASE WHEN token IS NOT NULL AND (NOT granted OR fence = 0) THEN 'a lease that was not granted' END,
        CASE WHEN (state = 'blocked') <> (hold <> 0) THEN 'held by ' || hold END,
        CASE WHEN hold & {{hold.paused}} = {{hold.paused}} AND hold <> {{hold.paused}}
            THEN 'held by a pause and by something else' END,
        CASE WHEN hold & {{hold.lane}} = {{hold.lane}} AND lane IS NULL THEN 'held by a lane it does not have' END,
        CASE WHEN hold & {{hold.epoch}} = {{hold.epoch}} AND (epoch = 0 OR pool_key IS NULL)
            THEN 'held by a pool''s size without a key in it' END,
        CASE WHEN (parents_left > 0) <> (hold & {{hold.parents}} = {{hold.parents}})
            THEN parents_left || ' parents left and held by ' || hold END,
        CASE WHEN is_terminal(state) <> (finished IS NOT NULL)
            THEN 'it has a finish time and has not ended, or it has ended without one' END,
        CASE WHEN attempt < 0 OR losses < 0 THEN 'attempt ' || attempt || ' and losses ' || losses END,
        CASE WHEN result IS NOT NULL AND state <> 'succeeded' THEN 'a result without success' END,
        CASE WHEN jsonb_array_length(history) > {{history.length}} THEN 'a history without bounds' END,
        CASE WHEN (pool_key IS NULL) <> (pool_hash IS NULL)
            THEN 'a pool''s key without its hash or the other way round' END
    ) AS wrong) AS found
    WHERE wrong <> ''
    UNION ALL
    SELECT format('queue %L: %s jobs share the arrival %s', queue, count(*), arrival)
    FROM job GROUP BY queue, arrival HAVING count(*) > 1
    UNION ALL
    SELECT format('%s leases share the token %L', count(*), token)
    FROM job WHERE token IS NOT NULL GROUP BY token HAVING count(*) > 1
$$;

CREATE FUNCTION audit_lanes() RETURNS SETOF text LANGUAGE sql STABLE AS $$
    WITH found AS (
        SELECT queue, lane, count(*) AS jobs,
            coalesce(array_agg(id ORDER BY arrival) FILTER (WHERE hold & {{hold.lane}} = 0), '{}') AS heads,
            bool_or(hold & {{hold.paused}} = {{hold.paused}}) AS held_by_pause, bool_or(state = 'queued') AS any_queued,
            max(fence) FILTER (WHERE token IS NOT NULL) AS granted
        FROM member WHERE lane IS NOT NULL GROUP BY queue, lane
    )
    SELECT format('lane %L of queue %L: %s', lane, queue, what)
    FROM lane AS l FULL JOIN found AS f USING (queue, lane) CROSS JOIN LATERAL (VALUES
        (l.depth IS NULL, 'it has jobs and no record'),
        (l.depth <> coalesce(f.jobs, 0), format('depth %s, %s live jobs', l.depth, coalesce(f.jobs, 0))),
        (l.depth IS NOT NULL
            AND coalesce(f.heads, '{}') IS DISTINCT FROM CASE WHEN l.head IS NULL THEN '{}' ELSE ARRAY[l.head] END,
            format('head %s, not held by the lane: %s', coalesce(quote_literal(l.head), 'none'),
                coalesce(f.heads, '{}')::text)),
        (NOT l.paused AND f.held_by_pause, 'it holds a job by a pause it does not have'),
        (l.paused AND f.any_queued, 'it is paused and has a queued job'),
        (f.granted <= l.fence, format('fence %s, its head was granted %s', l.fence, f.granted))
    ) AS checks (wrong, what)
    WHERE wrong
$$;

-- The row of a key may outlive its job, but a job that holds a key is named by it.
CREATE FUNCTION audit_keys(p_now bigint) RETURNS SETOF text LANGUAGE sql STABLE AS $$
    SELECT format('queue %L: key %L does not name job %L, which holds it', j.queue, j.unique_key, j.id)
    FROM job AS j LEFT JOIN unique_key AS k
        ON k.queue = j.queue AND k.task = j.task AND k.unique_key = j.unique_key
    WHERE j.unique_key IS NOT NULL AND is_taken(j, j.key_until, p_now) AND k.id IS DISTINCT FROM j.id
$$;

-- The edges of a job that is not admitted yet are not counted at its parents.
CREATE FUNCTION audit_edges() RETURNS SETOF text LANGUAGE sql STABLE AS $$
    SELECT format('job %L of queue %L: %s parents left, edges say %s',
        j.id, j.queue, j.parents_left, coalesce(e.edges, 0))
    FROM job AS j LEFT JOIN (
        SELECT child_queue, child_id, arrival, count(*) AS edges FROM edge GROUP BY child_queue, child_id, arrival
    ) AS e ON e.child_queue = j.queue AND e.child_id = j.id AND e.arrival = j.arrival
    WHERE j.hold & {{hold.parents}} = {{hold.parents}} AND j.parents_left <> coalesce(e.edges, 0)
    UNION ALL
    SELECT format('an edge from job %L of queue %L, which %s', e.parent_id, e.parent_queue, CASE
        WHEN p.id IS NULL THEN 'does not exist'
        WHEN is_terminal(p.state) THEN 'has ended, and no call will resolve it'
        ELSE 'is not marked as awaited' END)
    FROM edge AS e
    LEFT JOIN job AS p ON p.queue = e.parent_queue AND p.id = e.parent_id AND p.arrival = e.parent_arrival
    WHERE NOT EXISTS (
        SELECT 1 FROM deferred AS c WHERE c.kind IN ('arrive', 'link') AND c.queue = e.child_queue
            AND c.id = e.child_id AND c.arrival = e.arrival
    ) AND NOT EXISTS (
        SELECT 1 FROM deferred AS c WHERE c.kind IN ('parent', 'end') AND c.queue = e.parent_queue
            AND c.id = e.parent_id AND c.arrival = e.parent_arrival
    ) AND NOT (coalesce(p.awaited, false) AND NOT is_terminal(p.state))
    UNION ALL
    SELECT format('job %L of queue %L: children await it, and no edge says so', j.id, j.queue)
    FROM job AS j WHERE j.awaited AND NOT EXISTS (
        SELECT 1 FROM edge AS e
        WHERE e.parent_queue = j.queue AND e.parent_id = j.id AND e.parent_arrival = j.arrival)
$$;

CREATE FUNCTION audit_pools() RETURNS SETOF text LANGUAGE sql STABLE AS $$
    WITH found AS (
        SELECT m.queue, count(*) FILTER (WHERE m.epoch < p.epoch) AS older,
            count(*) FILTER (WHERE m.epoch > p.epoch) AS newer,
            count(*) FILTER (WHERE m.hold & {{hold.epoch}} = {{hold.epoch}}) AS held,
            count(*) FILTER (WHERE m.epoch = p.epoch AND NOT is_pool_lane(m.queue, m.lane)) AS strays
        FROM member AS m LEFT JOIN pool AS p ON p.name = m.queue WHERE m.epoch > 0 GROUP BY m.queue
    )
    SELECT format('pool %L: %s', coalesce(p.name, f.queue), what)
    FROM pool AS p FULL JOIN found AS f ON f.queue = p.name CROSS JOIN LATERAL (VALUES
        (p.name IS NULL, 'it has jobs and no record'),
        (p.old_live <> coalesce(f.older, 0),
            format('%s jobs of an older size, %s are there', p.old_live, coalesce(f.older, 0))),
        (f.newer > 0, format('%s jobs of a size it does not have yet', f.newer)),
        (p.old_live = 0 AND f.held > 0,
            format('it holds %s jobs back for those of an older size, and has none', f.held)),
        (f.strays > 0, format('%s jobs of its size are in a lane it does not have', f.strays))
    ) AS checks (wrong, what)
    WHERE wrong
$$;

-- Deferred work must be about a job that is there, and a job that waits for it must have a row.
CREATE FUNCTION audit_deferred() RETURNS SETOF text LANGUAGE sql STABLE AS $$
    SELECT format('job %L of queue %L came in a transaction, and no call will admit it', j.id, j.queue)
    FROM job AS j WHERE j.hold & {{hold.arriving}} = {{hold.arriving}} AND NOT EXISTS (
        SELECT 1 FROM deferred AS c
        WHERE c.kind = 'arrive' AND c.queue = j.queue AND c.id = j.id AND c.arrival = j.arrival)
    UNION ALL
    SELECT format('job %L of queue %L ended in a transaction, and is %s', c.id, c.queue, coalesce(j.state, 'not there'))
    FROM deferred AS c LEFT JOIN job AS j ON j.queue = c.queue AND j.id = c.id
    WHERE c.kind = 'end' AND (j.id IS NULL OR (j.arrival = c.arrival AND NOT is_terminal(j.state)))
$$;

-- Whole tables are read, so sequential scans are allowed.
CREATE FUNCTION audit(p_request jsonb, p_offset bigint, p_not_before_us bigint) RETURNS text
LANGUAGE plpgsql STABLE {{entry}} SET jit = off AS $$
DECLARE
    v_now bigint := call_time(p_offset, p_not_before_us);
    v_problems json;
BEGIN
    PERFORM begin_call();
    SELECT coalesce(json_agg(problem), '[]') INTO v_problems FROM (
        SELECT audit_counts() AS problem UNION ALL SELECT audit_jobs() UNION ALL SELECT audit_lanes()
        UNION ALL SELECT audit_keys(v_now) UNION ALL SELECT audit_edges() UNION ALL SELECT audit_pools()
        UNION ALL SELECT audit_deferred() LIMIT 1000
    ) AS found;
    RETURN reply(v_now, '"problems":' || v_problems);
END $$;
