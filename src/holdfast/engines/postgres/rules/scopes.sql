-- What is done to a whole queue or lane: pause, resume, clear, emptied, remove.

CREATE FUNCTION pause(p_request jsonb, p_offset bigint, p_not_before_us bigint) RETURNS text
LANGUAGE plpgsql {{entry}} SET enable_seqscan = off SET jit = off AS $$
BEGIN
    RETURN set_paused(p_request ->> 'queue', p_request ->> 'lane', true, p_offset, p_not_before_us);
END $$;

CREATE FUNCTION resume(p_request jsonb, p_offset bigint, p_not_before_us bigint) RETURNS text
LANGUAGE plpgsql {{entry}} SET enable_seqscan = off SET jit = off AS $$
BEGIN
    RETURN set_paused(p_request ->> 'queue', p_request ->> 'lane', false, p_offset, p_not_before_us);
END $$;

-- U3: a pause gives an unknown queue or lane a record; a resume of one changes nothing.
-- U4: the answer counts the live jobs of the scope.
-- U1: claims read the flag of a queue.
-- N1: a resumed queue is notified.
CREATE FUNCTION set_paused(
    p_queue text, p_lane text, p_paused boolean, p_offset bigint, p_not_before_us bigint
) RETURNS text LANGUAGE plpgsql AS $$
DECLARE
    v_now bigint := call_time(p_offset, p_not_before_us);
    v_changed boolean := false;
    v_count bigint;
    v_is_unknown boolean;
BEGIN
    PERFORM begin_call();
    IF p_paused THEN
        PERFORM keep_queue(p_queue);
    END IF;
    IF p_lane IS NOT NULL THEN
        PERFORM run_deferred(p_queue, true, v_now, ARRAY[p_lane]);
        v_is_unknown := lane_paused(p_queue, p_lane) IS NULL;
        v_now := call_time(p_offset, v_now);
        IF p_paused OR NOT v_is_unknown THEN
            PERFORM lock_lane(p_queue, p_lane, v_now);
            v_changed := set_lane_paused(p_queue, p_lane, p_paused, v_now);
        END IF;
        v_count := lane_depth(p_queue, p_lane);
        PERFORM write_tally();
    ELSE
        UPDATE queue SET paused = p_paused WHERE queue = p_queue AND paused <> p_paused;
        v_changed := FOUND;
        v_now := call_time(p_offset, v_now);
        IF v_changed AND NOT p_paused THEN
            PERFORM notify('queue:' || p_queue);
        END IF;
        v_count := depth(p_queue);
    END IF;
    RETURN reply(v_now, '"count":' || v_count || ',"changed":' || v_changed);
END $$;

-- End live jobs of a queue or lane.
-- CL1: as cancelled, leased ones too; their tokens are void.
--
-- Beside the fields of the command: `chunk` ends at most that many jobs, the latest first, and none that arrived
-- after `up_to`. The answer has `up_to` for the next call, and whether there is `more`. Without `chunk` all jobs end
-- at once.
--
-- Between the chunks of a queue no job of it is claimed: claims read `queue.clearing`, an instant, so the stop ends
-- by itself if the client goes away. Of a lane only the head can be claimed, and it ends last.
CREATE FUNCTION clear(p_request jsonb, p_offset bigint, p_not_before_us bigint) RETURNS text
LANGUAGE plpgsql {{entry}}
SET enable_seqscan = off SET enable_hashjoin = off SET enable_mergejoin = off SET jit = off AS $$
DECLARE
    v_queue text := p_request ->> 'queue';
    v_lane text := p_request ->> 'lane';
    v_chunk bigint := (p_request ->> 'chunk')::bigint;
    v_fast boolean := coalesce((p_request ->> 'fast')::boolean, true);
    v_up_to bigint := coalesce((p_request ->> 'up_to')::bigint, (SELECT last_value FROM arrival));
    v_now bigint := call_time(p_offset, p_not_before_us);
    v_epoch bigint := 0;
    v_ids text[];
    v_free text[];
    v_count bigint := 0;
    v_more boolean;
    c_most CONSTANT int := 1000;  -- rounds; each ends jobs, or waits for one that another call has locked
BEGIN
    PERFORM begin_call();
    PERFORM run_deferred(v_queue, true, v_now);
    -- Before the lanes. The size of the pool stays from now on.
    PERFORM lock_pool(v_queue, CASE old_live WHEN 0 THEN epoch ELSE 0 END) FROM pool WHERE name = v_queue;
    v_epoch := coalesce((SELECT epoch FROM pool WHERE name = v_queue), 0);
    FOR i IN 1 .. c_most LOOP
        v_ids := live_ids(v_queue, v_lane, v_up_to, v_chunk);
        EXIT WHEN v_ids = '{}';
        v_free := lock_free(v_queue, v_ids, false);
        IF v_free IS NULL THEN
            PERFORM wait_for_rows(v_queue, v_ids[1:1]);  -- other calls hold all of them
            CONTINUE;
        END IF;
        v_now := call_time(p_offset, v_now);
        IF v_fast THEN
            v_count := v_count + clear_fast(v_queue, v_free, v_up_to, v_epoch, v_now);
        END IF;
        v_count := v_count + clear_one_by_one(v_queue, v_free, v_up_to, v_now);
        EXIT WHEN v_chunk IS NOT NULL;
    END LOOP;
    PERFORM resolve(v_now);
    v_more := live_ids(v_queue, v_lane, v_up_to, 1) <> '{}';
    IF NOT v_more THEN
        PERFORM repair_lane(queue, lane, v_now) FROM headless_lane
        WHERE queue = v_queue AND lane = coalesce(v_lane, lane);
    END IF;
    IF v_chunk IS NOT NULL AND v_lane IS NULL THEN
        PERFORM set_clearing(v_queue, v_more, v_now);
    END IF;
    PERFORM write_tally();
    RETURN reply(v_now, '"count":' || v_count || ',"more":' || v_more || ',"up_to":' || v_up_to);
END $$;

-- Live jobs of a queue or lane, the latest first; a lane's head behind all jobs that it holds back. Indexes
-- job_lane_live, job_state and job_token.
CREATE FUNCTION live_ids(p_queue text, p_lane text, p_up_to bigint, p_most bigint) RETURNS text[]
LANGUAGE plpgsql SET enable_bitmapscan = off SET enable_sort = off AS $$
DECLARE
    v_ids text[];
BEGIN
    IF p_lane IS NOT NULL THEN
        v_ids := ARRAY(
            SELECT id FROM job
            WHERE queue = p_queue AND lane = p_lane AND state NOT IN ({{terminal}})
                AND arrival <= p_up_to AND hold & {{hold.lane}} = {{hold.lane}} ORDER BY arrival DESC LIMIT p_most);
        IF cardinality(v_ids) = p_most THEN
            RETURN v_ids;
        END IF;
        RETURN v_ids || ARRAY(
            SELECT id FROM job
            WHERE queue = p_queue AND lane = p_lane AND state NOT IN ({{terminal}})
                AND arrival <= p_up_to AND hold & {{hold.lane}} = 0
            ORDER BY arrival DESC LIMIT p_most - cardinality(v_ids));
    END IF;
    RETURN ARRAY(
        -- A step of its own: by their tokens, because there are few. The planner may take the queue for small.
        WITH leased AS MATERIALIZED (SELECT queue, id, arrival FROM job WHERE token IS NOT NULL)
        SELECT live.id FROM (
            SELECT w.id, w.arrival FROM unnest(ARRAY[{{waiting}}]) AS s (state)
            CROSS JOIN LATERAL (
                SELECT id, arrival FROM job
                WHERE queue = p_queue AND state = s.state AND state NOT IN ({{leased}})
                    AND arrival <= p_up_to ORDER BY arrival DESC LIMIT p_most
            ) AS w
            UNION ALL
            SELECT id, arrival FROM leased WHERE queue = p_queue AND arrival <= p_up_to
        ) AS live ORDER BY live.arrival DESC LIMIT p_most);
END $$;

-- The latest first, so that lanes promote few of the jobs that are about to end.
CREATE FUNCTION clear_one_by_one(p_queue text, p_ids text[], p_up_to bigint, p_now bigint) RETURNS bigint
LANGUAGE plpgsql AS $$
DECLARE
    c_flush CONSTANT int := 500;  -- jobs; each further line copies what the settings have gathered
    v_count bigint := 0;
    v_id text;
    j job;
    v_from text;
BEGIN
    FOR v_id IN
        SELECT id FROM job
        WHERE queue = p_queue AND id = ANY (p_ids) AND arrival <= p_up_to AND NOT is_terminal(state)
        ORDER BY arrival DESC
    LOOP
        SELECT * INTO j FROM job WHERE queue = p_queue AND id = v_id;
        v_from := j.state;
        IF v_from = 'running' THEN
            j := end_attempt(j, 'cancelled', NULL, p_now);
        END IF;
        PERFORM finish(v_from, j, 'cancelled', 'cleared', '', NULL, NULL, NULL, p_now);
        v_count := v_count + 1;
        IF v_count % c_flush = 0 THEN
            PERFORM write_tally(), set_config('holdfast.emptied', '', true);
        END IF;
    END LOOP;
    RETURN v_count;
END $$;

-- Stop claims until the next chunk comes, or allow them again.
CREATE FUNCTION set_clearing(p_queue text, p_more boolean, p_now bigint) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
    c_wait CONSTANT bigint := 10 * 1000000;  -- microseconds in which the next chunk has to come
BEGIN
    IF p_more THEN
        INSERT INTO queue AS q (queue, clearing) VALUES (p_queue, p_now + c_wait)
        ON CONFLICT (queue) DO UPDATE SET clearing = excluded.clearing;
    ELSE
        UPDATE queue SET clearing = 0 WHERE queue = p_queue AND clearing > 0;
        IF FOUND THEN
            PERFORM notify('queue:' || p_queue);
        END IF;
    END IF;
END $$;

-- EM1: compare the number of ends with that of the last true answer. True for one caller: a second one waits for the
-- first, and then finds the number moved.
CREATE FUNCTION emptied(p_request jsonb, p_offset bigint, p_not_before_us bigint) RETURNS text
LANGUAGE plpgsql {{entry}} SET enable_seqscan = off SET jit = off AS $$
DECLARE
    v_queue text := p_request ->> 'queue';
    v_ends bigint;
    v_live bigint;
    v_emptied boolean := false;
BEGIN
    PERFORM begin_call();
    -- In one statement, so that both numbers are of one instant.
    SELECT coalesce(sum(ends), 0), coalesce(sum(jobs) FILTER (WHERE NOT is_terminal(state)), 0) INTO v_ends, v_live
    FROM counts WHERE queue = v_queue;
    IF v_live = 0 AND v_ends > coalesce((SELECT emptied_at FROM queue WHERE queue = v_queue), 0) THEN
        INSERT INTO queue AS q (queue, emptied_at) VALUES (v_queue, v_ends)
        ON CONFLICT (queue) DO UPDATE SET emptied_at = excluded.emptied_at WHERE q.emptied_at < excluded.emptied_at;
        v_emptied := FOUND;
    END IF;
    RETURN reply(call_time(p_offset, p_not_before_us), '"emptied":' || v_emptied);
END $$;

-- Remove a queue in which nothing is.
-- RM1: only a queue without jobs, pause and live workers.
-- RM2: its lanes, its pool, its totals and its name are deleted, by `drop_queue`.
-- RM3: a job whose transaction has not committed yet is not seen, and its own row of `tally` makes the queue anew.
--
-- It waits for the pool and for the queue, but for no lane: a call that has locked a lane may wait for the pool. So it
-- locks nothing as long as there are jobs, and a lane that another call has locked counts as a job.
CREATE FUNCTION remove_queue(p_request jsonb, p_offset bigint, p_not_before_us bigint) RETURNS text
LANGUAGE plpgsql {{entry}} SET enable_seqscan = off SET jit = off AS $$
DECLARE
    v_queue text := p_request ->> 'queue';
    v_now bigint := call_time(p_offset, p_not_before_us);
    v_status text;
    v_jobs bigint;
    v_workers json;
BEGIN
    PERFORM begin_call();
    PERFORM run_deferred(v_queue, true, v_now);
    PERFORM write_tally();
    v_jobs := stored_jobs(v_queue);
    IF v_jobs = 0 THEN
        PERFORM pg_advisory_xact_lock(hashtextextended('{{namespace}} pool ' || v_queue, 0));
        PERFORM 1 FROM queue WHERE queue = v_queue FOR UPDATE;
        v_jobs := stored_jobs(v_queue);
    END IF;
    v_now := call_time(p_offset, v_now);
    v_workers := workers_of_queue(v_queue, v_now);
    v_status := CASE
        WHEN v_jobs IS NULL THEN 'not_found'
        WHEN v_jobs > 0 THEN 'has_jobs'
        WHEN EXISTS (SELECT 1 FROM queue WHERE queue = v_queue AND paused)
            OR EXISTS (SELECT 1 FROM lane WHERE queue = v_queue AND paused) THEN 'paused'
        WHEN v_workers::text <> '[]' THEN 'served'
        ELSE 'removed' END;
    IF v_status = 'removed' AND NOT drop_queue(v_queue) THEN
        v_status := 'has_jobs';  -- they came meanwhile
        v_jobs := greatest(stored_jobs(v_queue), 1);
    END IF;
    RETURN reply(v_now, '"status":"' || v_status
        || '","jobs":' || CASE v_status WHEN 'has_jobs' THEN v_jobs ELSE 0 END
        || ',"workers":' || CASE v_status WHEN 'served' THEN v_workers ELSE '[]' END);
END $$;

-- The stored jobs of a queue, ended ones too; null: there is no such queue. At least 1 while the end of a job that may
-- be deleted is deferred.
CREATE FUNCTION stored_jobs(p_queue text) RETURNS bigint LANGUAGE plpgsql AS $$
DECLARE
    v_states bigint;
    v_jobs bigint;
BEGIN
    SELECT count(*), coalesce(sum(jobs), 0) INTO v_states, v_jobs FROM counts WHERE queue = p_queue;
    IF v_states = 0 AND NOT EXISTS (SELECT 1 FROM queue WHERE queue = p_queue) THEN
        RETURN NULL;
    END IF;
    RETURN greatest(v_jobs, has_deferred(p_queue)::int);
END $$;

-- The live workers that take from a queue, by name.
CREATE FUNCTION workers_of_queue(p_queue text, p_now bigint) RETURNS json LANGUAGE plpgsql AS $$
BEGIN
    RETURN (
        SELECT coalesce(json_agg(worker ORDER BY worker), '[]') FROM worker
        WHERE record -> 'queues' ? p_queue AND p_now - seen <= {{alive_for_intervals}} * coalesce(
            nullif((record ->> 'interval')::bigint, 0), {{interval_if_unknown}}));
END $$;

-- Delete what is stored of a queue beside jobs. False: a job has come meanwhile, and nothing is deleted. Keys that
-- another call has locked stay: the row of a key without its job has no effect.
--
-- The counters come last, because a statement sees all that earlier ones saw: if the deleted counters are 0, none of
-- them saw a job. The lock keeps prune from folding counters meanwhile.
CREATE FUNCTION drop_queue(p_queue text) RETURNS boolean LANGUAGE plpgsql AS $$
DECLARE
    v_left bigint;
BEGIN
    PERFORM pg_advisory_xact_lock(hashtextextended('{{namespace}} fold', 0));
    DELETE FROM lane AS l USING (
        SELECT queue, lane FROM lane WHERE queue = p_queue AND depth = 0 AND NOT paused FOR UPDATE SKIP LOCKED
    ) AS free WHERE l.queue = free.queue AND l.lane = free.lane;
    DELETE FROM pool WHERE name = p_queue;
    DELETE FROM queue WHERE queue = p_queue AND NOT paused;
    DELETE FROM unique_key AS k USING (
        SELECT queue, task, unique_key FROM unique_key AS u
        WHERE queue = p_queue AND NOT EXISTS (SELECT 1 FROM job AS j WHERE j.queue = u.queue AND j.id = u.id)
        FOR UPDATE SKIP LOCKED
    ) AS free WHERE (k.queue, k.task, k.unique_key) = (free.queue, free.task, free.unique_key);
    WITH folded AS (
        DELETE FROM counter WHERE queue = p_queue RETURNING state, jobs
    ), unfolded AS (
        DELETE FROM tally WHERE queue = p_queue RETURNING state, jobs
    )
    SELECT count(*) INTO v_left FROM (
        SELECT 1 FROM (SELECT * FROM folded UNION ALL SELECT * FROM unfolded) AS both_of
        GROUP BY state HAVING sum(jobs) <> 0) AS states;
    IF v_left > 0 OR EXISTS (SELECT 1 FROM lane WHERE queue = p_queue) THEN
        RAISE SQLSTATE 'HF001';  -- the end of the block brings back what was deleted
    END IF;
    RETURN true;
EXCEPTION WHEN SQLSTATE 'HF001' THEN
    RETURN false;
END $$;
