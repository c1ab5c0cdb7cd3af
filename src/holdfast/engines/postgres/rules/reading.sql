-- Readers: get, find, stats, lanes, now. They see the stored state, all of it as of one moment (therefore they are
-- STABLE), and lock nothing.

-- A job, packed by position in the order of the model's JobRecord.
CREATE FUNCTION record_json(j job) RETURNS json LANGUAGE sql STABLE AS $$
    SELECT json_build_array(
        {{record.fields}})
$$;

CREATE FUNCTION now(p_request jsonb, p_offset bigint, p_not_before_us bigint) RETURNS text
LANGUAGE plpgsql STABLE {{entry}} AS $$
BEGIN
    PERFORM begin_call();
    RETURN reply(call_time(p_offset, p_not_before_us), '');
END $$;

-- RD1: stored states. A job that is due but not promoted yet shows its stored state and its due time.
CREATE FUNCTION get(p_request jsonb, p_offset bigint, p_not_before_us bigint) RETURNS text
LANGUAGE plpgsql STABLE {{entry}}
SET enable_seqscan = off SET jit = off AS $$
DECLARE
    v_jobs text;
BEGIN
    PERFORM begin_call();
    SELECT string_agg(CASE WHEN j.id IS NULL THEN 'null' ELSE record_json(j)::text END, ',' ORDER BY requested.place)
    INTO v_jobs
    FROM ROWS FROM (jsonb_to_recordset(p_request -> 'jobs') AS (queue text, id text))
        WITH ORDINALITY AS requested (queue, id, place)
    LEFT JOIN job AS j ON j.queue = requested.queue AND j.id = requested.id;
    RETURN reply(call_time(p_offset, p_not_before_us), '"jobs":[' || coalesce(v_jobs, '') || ']');
END $$;

-- RD3: newest arrival first, at most `scan` rows per call; the cursor is the last arrival looked at.
--
-- Rows are fetched one by one, with one more than wanted, to know whether there is more. Leased jobs, never more than
-- there are slots, are not in the index by state but in the one by token; a plain condition on the queue would lead
-- the planner to read all of it. The statement is planned again each time: a plan for any limit would sort everything.
CREATE FUNCTION find(p_request jsonb, p_offset bigint, p_not_before_us bigint) RETURNS text
LANGUAGE plpgsql STABLE {{entry}}
SET enable_seqscan = off SET enable_bitmapscan = off SET enable_sort = off SET jit = off AS $$
DECLARE
    v_limit bigint := coalesce((p_request ->> 'limit')::bigint, {{find.limit}});
    v_scan bigint := coalesce((p_request ->> 'scan')::bigint, {{find.scan}});
    v_below bigint := (p_request ->> 'cursor')::bigint;
    v_looked_at bigint := 0;
    v_records text[] := '{}';
    v_more boolean := false;
    v record;
BEGIN
    PERFORM begin_call();
    FOR v IN EXECUTE format($find$
        SELECT j.arrival, CASE WHEN
            ($5 IS NULL OR j.task = $5) AND ($6 IS NULL OR j.lane = $6) AND ($7 IS NULL OR j.created >= $7)
            AND coalesce(j.metadata, '{}') @> $8 THEN record_json(j)::text END AS record
        FROM job AS j WHERE %s AND j.state = $2 AND j.arrival < $3
        ORDER BY j.arrival DESC LIMIT $4
        $find$, CASE WHEN p_request ->> 'state' IN ({{leased}})
            THEN $by$j.token IS NOT NULL AND j.queue || '' = $1$by$
            ELSE $by$j.queue = $1 AND j.state NOT IN ({{leased}})$by$ END)
    USING p_request ->> 'queue', p_request ->> 'state', coalesce(v_below, {{forever}}), v_scan + 1,
        p_request ->> 'task', p_request ->> 'lane', (p_request ->> 'since')::bigint,
        coalesce(p_request -> 'metadata', '{}')
    LOOP
        IF v_looked_at = v_scan OR cardinality(v_records) = v_limit THEN
            v_more := true;
            EXIT;
        END IF;
        v_looked_at := v_looked_at + 1;
        v_below := v.arrival;
        IF v.record IS NOT NULL THEN
            v_records := v_records || v.record;
        END IF;
    END LOOP;
    RETURN reply(call_time(p_offset, p_not_before_us), '"jobs":[' || array_to_string(v_records, ',') || '],"cursor":'
        || coalesce(CASE WHEN v_more THEN v_below END::text, 'null'));
END $$;

-- The tasks that have ready jobs, each with the due time of its first one, which a claim would meet next. It goes from
-- task to task in the index job_ready, however many jobs each of them has.
CREATE FUNCTION first_ready(p_queue text) RETURNS TABLE (task text, due bigint) LANGUAGE sql STABLE AS $$
    WITH RECURSIVE first_of AS (
        (SELECT task, due FROM job WHERE queue = p_queue AND state = 'queued'
        ORDER BY task, (-priority::int), due, arrival LIMIT 1)
        UNION ALL
        SELECT n.task, n.due FROM first_of AS f CROSS JOIN LATERAL (
            SELECT task, due FROM job WHERE queue = p_queue AND state = 'queued' AND task > f.task
            ORDER BY task, (-priority::int), due, arrival LIMIT 1
        ) AS n
    )
    SELECT task, due FROM first_of
$$;

-- RD2: from counters and indexes.
-- RD4: tasks with queued jobs.
CREATE FUNCTION queue_stats(p_queue text, p_now bigint) RETURNS json LANGUAGE plpgsql STABLE AS $$
DECLARE
    v_counts json;
    v_queued bigint;
    v_totals json;
    v_fallen bigint;
    v_since bigint;
    v_oldest bigint;
    v_tasks json;
BEGIN
    SELECT coalesce(json_object_agg(state, jobs) FILTER (WHERE jobs <> 0), '{}'),
        coalesce(sum(jobs) FILTER (WHERE state = 'queued'), 0),
        json_build_object(
            'succeeded', coalesce(sum(ends) FILTER (WHERE state = 'succeeded'), 0),
            'failed', coalesce(sum(ends) FILTER (WHERE state = 'failed'), 0),
            'cancelled', coalesce(sum(ends) FILTER (WHERE state = 'cancelled'), 0))
    INTO v_counts, v_queued, v_totals FROM counts WHERE queue = p_queue;
    SELECT count(*), min(due) INTO v_fallen, v_since
    FROM job WHERE queue = p_queue AND state IN ({{by_due}}) AND due <= p_now;
    SELECT min(due), coalesce(json_agg(task ORDER BY task COLLATE "C"), '[]') INTO v_oldest, v_tasks
    FROM first_ready(p_queue);
    RETURN json_build_object(
        'queue', p_queue,
        'paused', coalesce((SELECT paused FROM queue WHERE queue = p_queue), false),
        'counts', v_counts,
        'due', v_queued + v_fallen,
        'oldest_due', least(v_since, v_oldest),
        'next_due', (SELECT due FROM job WHERE queue = p_queue AND state IN ({{by_due}})
            ORDER BY due LIMIT 1),
        'totals', v_totals,
        'ready_tasks', v_tasks,
        'clearing', coalesce((SELECT clearing > p_now FROM queue WHERE queue = p_queue), false));
END $$;

CREATE FUNCTION stats(p_request jsonb, p_offset bigint, p_not_before_us bigint) RETURNS text
LANGUAGE plpgsql STABLE {{entry}}
SET enable_seqscan = off SET jit = off AS $$
DECLARE
    v_now bigint := call_time(p_offset, p_not_before_us);
    v_names text[];
    v_queues json;
BEGIN
    PERFORM begin_call();
    IF jsonb_typeof(p_request -> 'queues') = 'array' THEN
        v_names := ARRAY(SELECT jsonb_array_elements_text(p_request -> 'queues'));
    ELSE
        SELECT array_agg(queue ORDER BY queue) INTO v_names
        FROM (SELECT queue FROM queue UNION SELECT queue FROM counter UNION SELECT queue FROM tally) AS known;
    END IF;
    SELECT json_agg(queue_stats(name, v_now) ORDER BY place) INTO v_queues
    FROM unnest(v_names) WITH ORDINALITY AS requested (name, place);
    RETURN reply(v_now, '"queues":' || coalesce(v_queues, '[]'));
END $$;

-- RD5: the lanes of a queue, by name. The fence of a lane is written when a job leaves it; until then its head has the
-- last one.
CREATE FUNCTION lanes(p_request jsonb, p_offset bigint, p_not_before_us bigint) RETURNS text
LANGUAGE plpgsql STABLE {{entry}}
SET enable_seqscan = off SET jit = off AS $$
DECLARE
    v_names text[];
    v_lanes json;
BEGIN
    PERFORM begin_call();
    IF jsonb_typeof(p_request -> 'lanes') = 'array' THEN
        v_names := ARRAY(SELECT jsonb_array_elements_text(p_request -> 'lanes'));
    ELSE
        v_names := ARRAY(SELECT lane FROM lane WHERE queue = p_request ->> 'queue' ORDER BY lane);
    END IF;
    SELECT json_agg(json_build_object(
        'queue', l.queue, 'lane', l.lane, 'head', l.head, 'depth', l.depth, 'paused', l.paused,
        'totals', json_build_object('succeeded', l.succeeded, 'failed', l.failed, 'cancelled', l.cancelled),
        'fence', greatest(l.fence, CASE WHEN j.granted THEN j.fence END), 'emptied', l.emptied) ORDER BY place)
    INTO v_lanes
    FROM unnest(v_names) WITH ORDINALITY AS requested (name, place)
        JOIN lane AS l ON l.queue = p_request ->> 'queue' AND l.lane = name
        LEFT JOIN job AS j ON j.queue = l.queue AND j.id = l.head;
    RETURN reply(call_time(p_offset, p_not_before_us), '"lanes":' || coalesce(v_lanes, '[]'));
END $$;

-- PF1: for the error of a call that has waited too long: the sessions whose transactions hold locks on the tables, the
-- oldest first. Text for people; null: none is left.
CREATE FUNCTION lock_holders() RETURNS text LANGUAGE plpgsql STABLE {{entry}} AS $$
BEGIN
    RETURN (
        SELECT string_agg(format('session %s of %s (%s%s%s)', pid, coalesce(usename, 'an unknown user'),
            coalesce(nullif(application_name, ''), 'no application name'), ', ' || state,
            ', in a transaction since ' || round(extract(epoch FROM clock_timestamp() - xact_start)::numeric, 1) || ' s'
        ), '; ')
        FROM (
            SELECT pid, usename, application_name, state, xact_start FROM pg_stat_activity AS a
            WHERE pid <> pg_backend_pid() AND EXISTS (
                SELECT 1 FROM pg_locks AS l JOIN pg_class AS c ON c.oid = l.relation
                WHERE l.pid = a.pid AND l.granted AND l.mode <> 'AccessShareLock' AND l.locktype = 'relation'
                    AND l.database = (SELECT oid FROM pg_database WHERE datname = current_database())
                    AND c.relnamespace = '{{namespace}}'::regnamespace)
            ORDER BY xact_start LIMIT 3
        ) AS holders);
END $$;
