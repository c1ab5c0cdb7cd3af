-- Prune: delete what is past its lifetime, a limited number per call, and fold the counters. Many may prune at once:
-- each takes what no other call has locked, and waits for nothing.

-- PR1, K6: waiting jobs past their `expires`, then ended jobs whose lifetimes have passed and that no edge keeps.
-- PR2: silent workers.
-- L9: lanes that have long been empty; the queue's totals have counted their jobs.
CREATE FUNCTION prune(p_request jsonb, p_offset bigint, p_not_before_us bigint) RETURNS text
LANGUAGE plpgsql {{entry}} SET enable_seqscan = off SET jit = off AS $$
DECLARE
    v_limit bigint := coalesce((p_request ->> 'limit')::bigint, {{prune.limit}});
    v_now bigint := call_time(p_offset, p_not_before_us);
    c_rows CONSTANT int := 20000;  -- of the tally, in one call
    v_expired json;
    v_deleted json;
    v_workers json;
    v_more boolean;
    v_late boolean;
BEGIN
    PERFORM begin_call();
    PERFORM prune_deferred(v_now);
    SELECT e.p_expired, e.p_more INTO v_expired, v_late FROM prune_expired(v_limit, v_now) AS e;
    PERFORM resolve(v_now);
    SELECT d.p_deleted, d.p_more INTO v_deleted, v_more FROM prune_ended(v_limit, v_now) AS d;
    v_workers := prune_workers(v_now);
    PERFORM prune_lanes(v_now);
    PERFORM write_tally();
    PERFORM 1 FROM deferred WHERE kind = 'parent' LIMIT 1 FOR UPDATE SKIP LOCKED;
    v_more := v_more OR v_late OR FOUND;
    v_more := fold_tally(c_rows) = c_rows OR v_more;
    RETURN reply(v_now, '"deleted":' || v_deleted || ',"expired":' || v_expired || ',"workers":' || v_workers
        || ',"more":' || v_more);
END $$;

-- Waiting jobs past their `expires`, the longest overdue first; index job_expires.
CREATE FUNCTION expiring(p_limit bigint, p_now bigint)
RETURNS TABLE (queue text, id text, lane text, epoch bigint, place bigint) LANGUAGE sql AS $$
    SELECT *, row_number() OVER () FROM (
        SELECT queue, id, lane, epoch FROM job
        WHERE expires <= p_now AND expires IS NOT NULL AND state IN ({{waiting}})
        ORDER BY expires LIMIT p_limit
    ) AS late
$$;

-- They are cancelled, in the order of their names. Pools are locked before lanes.
CREATE FUNCTION prune_expired(p_limit bigint, p_now bigint, OUT p_expired json, OUT p_more boolean)
LANGUAGE plpgsql AS $$
DECLARE
    v record;
    j job;
    v_names json[] := '{}';
BEGIN
    p_more := false;
    FOR v IN
        SELECT l.queue, min(l.epoch) AS epoch FROM expiring(p_limit, p_now) AS l WHERE l.epoch > 0
        GROUP BY l.queue ORDER BY l.queue COLLATE "C"
    LOOP
        PERFORM lock_pool(v.queue, v.epoch);
    END LOOP;
    FOR v IN
        SELECT l.queue, l.id, l.lane, l.place > p_limit AS beyond FROM expiring(p_limit + 1, p_now) AS l
        ORDER BY l.queue COLLATE "C", l.id COLLATE "C"
    LOOP
        IF v.beyond THEN
            p_more := true;
            CONTINUE;
        END IF;
        IF v.lane IS NOT NULL THEN
            PERFORM 1 FROM lane WHERE queue = v.queue AND lane = v.lane FOR UPDATE SKIP LOCKED;
            CONTINUE WHEN NOT FOUND AND EXISTS (SELECT 1 FROM lane WHERE queue = v.queue AND lane = v.lane);
        END IF;
        SELECT * INTO j FROM job WHERE queue = v.queue AND id = v.id AND expires <= p_now
            AND lane IS NOT DISTINCT FROM v.lane AND state IN ({{waiting}})
        FOR UPDATE SKIP LOCKED;
        CONTINUE WHEN NOT FOUND;
        PERFORM cancel_waiting(j, 'expired', '', p_now);
        v_names := v_names || json_build_object('queue', v.queue, 'id', v.id);
    END LOOP;
    p_expired := to_json(v_names);
END $$;

-- Delete ended jobs whose last lifetime has passed (index job_ended); not while children wait for them,
-- nor while an end in a user's transaction is deferred.
CREATE FUNCTION prune_ended(p_limit bigint, p_now bigint, OUT p_deleted json, OUT p_more boolean)
LANGUAGE plpgsql AS $$
DECLARE
    v_count bigint;
BEGIN
    WITH passed AS MATERIALIZED (
        SELECT queue, id FROM job AS j
        WHERE greatest(visible_until, result_until, key_until) <= p_now
            AND state IN ({{terminal}}) AND NOT awaited
            AND NOT EXISTS (SELECT 1 FROM deferred AS c WHERE c.kind = 'end' AND c.queue = j.queue AND c.id = j.id)
        ORDER BY greatest(visible_until, result_until, key_until) LIMIT p_limit FOR UPDATE OF j SKIP LOCKED
    ), gone AS (
        DELETE FROM job AS j USING passed AS p WHERE j.queue = p.queue AND j.id = p.id
        RETURNING j.queue, j.id, j.task, j.state, j.unique_key
    ), freed AS (
        DELETE FROM unique_key AS k USING (
            SELECT u.queue, u.task, u.unique_key
            FROM gone AS g JOIN unique_key AS u
                ON u.queue = g.queue AND u.task = g.task AND u.unique_key = g.unique_key AND u.id = g.id
            FOR UPDATE OF u SKIP LOCKED  -- the row of a key without its job has no effect
        ) AS mine WHERE k.queue = mine.queue AND k.task = mine.task AND k.unique_key = mine.unique_key
    ), booked AS (
        INSERT INTO tally (queue, state, jobs, ends) SELECT queue, state, -count(*), 0 FROM gone GROUP BY queue, state
    )
    SELECT coalesce(json_agg(json_build_object('queue', queue, 'id', id) ORDER BY queue, id), '[]'), count(*)
    INTO p_deleted, v_count FROM gone;
    p_more := v_count = p_limit AND EXISTS (
        SELECT 1 FROM job
        WHERE greatest(visible_until, result_until, key_until) <= p_now
            AND state IN ({{terminal}}) AND NOT awaited);
END $$;

-- Workers without a heartbeat for too many of their intervals.
CREATE FUNCTION prune_workers(p_now bigint) RETURNS json LANGUAGE sql AS $$
    WITH gone AS (
        DELETE FROM worker AS w USING (
            SELECT worker FROM worker
            WHERE p_now - seen > greatest(
                {{silent_after_intervals}} * coalesce((record ->> 'interval')::bigint, 0), {{silent_at_least}})
            FOR UPDATE SKIP LOCKED
        ) AS silent WHERE w.worker = silent.worker RETURNING w.worker
    )
    SELECT coalesce(json_agg(worker ORDER BY worker), '[]') FROM gone
$$;

-- Lanes that have been empty for as long as a record is kept. Looks at the next lanes after `lane_cursor`; if another
-- call does so, it looks at none.
-- PR3: it also repairs those whose head is missing.
CREATE FUNCTION prune_lanes(p_now bigint) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
    c_lanes CONSTANT int := 1000;  -- in one call
    w lane_cursor;
    v_lanes int;
    v_queue text;
    v_lane text;
BEGIN
    SELECT * INTO w FROM lane_cursor FOR UPDATE SKIP LOCKED;
    IF NOT FOUND THEN
        RETURN;
    END IF;
    SELECT count(*), (array_agg(queue ORDER BY queue DESC, lane DESC))[1],
        (array_agg(lane ORDER BY queue DESC, lane DESC))[1]
    INTO v_lanes, v_queue, v_lane
    FROM (
        SELECT queue, lane FROM lane WHERE (queue, lane) > (w.queue, w.lane) ORDER BY queue, lane LIMIT c_lanes
    ) AS next;
    IF v_lanes < c_lanes THEN
        v_queue := '';
        v_lane := '';
    END IF;
    DELETE FROM lane AS l USING (
        SELECT queue, lane FROM lane
        WHERE (queue, lane) > (w.queue, w.lane) AND (v_queue = '' OR (queue, lane) <= (v_queue, v_lane))
            AND depth = 0 AND NOT paused AND emptied <= p_now - {{retention}} AND NOT is_pool_lane(queue, lane)
        ORDER BY queue, lane FOR UPDATE SKIP LOCKED
    ) AS idle WHERE l.queue = idle.queue AND l.lane = idle.lane;
    UPDATE lane_cursor SET queue = v_queue, lane = v_lane WHERE queue <> v_queue OR lane <> v_lane;
    PERFORM repair_lane(queue, lane, p_now) FROM headless_lane
    WHERE (queue, lane) > (w.queue, w.lane) AND (v_queue = '' OR (queue, lane) <= (v_queue, v_lane));
END $$;

-- Fold rows of `tally` into `counter`; answers how many. One statement, so readers, who add up the two, count each
-- row once. One caller at a time, and last in its call, so that no call waits for a counter.
CREATE FUNCTION fold_tally(p_lines int) RETURNS int LANGUAGE plpgsql AS $$
DECLARE
    v_count int;
BEGIN
    IF NOT pg_try_advisory_xact_lock(hashtextextended('{{namespace}} fold', 0)) THEN
        RETURN 0;
    END IF;
    WITH line AS (
        DELETE FROM tally WHERE ctid = ANY (ARRAY(SELECT ctid FROM tally LIMIT p_lines))
        RETURNING queue, state, jobs, ends
    ), folded AS (
        INSERT INTO counter AS c (queue, state, jobs, ends)
        SELECT queue, state, sum(jobs), sum(ends) FROM line GROUP BY queue, state ORDER BY queue, state
        ON CONFLICT (queue, state) DO UPDATE SET jobs = c.jobs + excluded.jobs, ends = c.ends + excluded.ends
    )
    SELECT count(*) INTO v_count FROM line;
    RETURN v_count;
END $$;
