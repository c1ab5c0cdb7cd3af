-- Fast paths: jobs that cannot conflict with a stored one are inserted in one statement. `enqueue` does the same for
-- any jobs.

-- Insert jobs that nothing holds back and whose ids are new: numbered in the order given, inserted in the order of
-- their names, so that two calls with the same ids do not wait for each other.
CREATE FUNCTION insert_fast(p_jobs json, p_now bigint, OUT p_arrivals bigint[], OUT p_states text[])
LANGUAGE plpgsql AS $$
DECLARE
    v_queues text[];
    v record;
BEGIN
    WITH given AS MATERIALIZED (
        SELECT n.*, CASE WHEN n.due IS NULL THEN p_now + coalesce(n.delay, 0) ELSE greatest(p_now, n.due) END AS due_at,
            nextval('arrival') AS number
        FROM json_populate_recordset(NULL::new_job, p_jobs) AS n
    ), inserted AS (
        INSERT INTO job (
            {{requested.columns}},
            state, arrival, created, due)
        SELECT
            {{requested.values}},
            CASE WHEN due_at <= p_now THEN 'queued' ELSE 'scheduled' END, number, p_now, due_at
        FROM given AS n ORDER BY n.queue, n.id
        RETURNING queue, state, arrival
    )
    SELECT array_agg(arrival ORDER BY arrival), array_agg(state ORDER BY arrival), array_agg(queue ORDER BY arrival)
    INTO p_arrivals, p_states, v_queues FROM inserted;
    FOR v IN
        SELECT queue, state, count(*)::int AS jobs FROM unnest(v_queues, p_states) AS i (queue, state)
        GROUP BY queue, state
    LOOP
        PERFORM count_moves(v.queue, NULL, v.state, v.jobs), notify('queue:' || v.queue);
    END LOOP;
END $$;

-- Jobs with a generated id and without key, lane, pool, parents or limit. If an id is not new, the insert fails and
-- the client calls `enqueue`.
CREATE FUNCTION enqueue_fast(p_jobs json, p_offset bigint, p_not_before_us bigint) RETURNS text
LANGUAGE plpgsql {{entry}} AS $$
DECLARE
    v_now bigint := call_time(p_offset, p_not_before_us);
    v record;
BEGIN
    PERFORM begin_call();
    v := insert_fast(p_jobs, v_now);
    PERFORM write_tally();
    RETURN reply(v_now, '"arrivals":' || array_to_json(v.p_arrivals) || ',"states":' || array_to_json(v.p_states));
END $$;

-- The same for jobs that differ in nothing but id and payload, as most do that come together: the rest is parsed
-- once. `p_terms` is a new job without the four; null: everything else has its default.
--
-- It also says whether another session has to be notified, because notifying takes a producer more time than
-- enqueueing. A session that listens for queues holds an advisory lock, shared. A session that begins to listen
-- between this look and the commit is not notified, and finds the job because it polls soon after it began.
CREATE FUNCTION enqueue_alike(
    p_queue text, p_task text, p_terms json, p_ids text[], p_payloads bytea[], p_offset bigint, p_not_before_us bigint,
    p_sender text DEFAULT NULL
) RETURNS text LANGUAGE plpgsql {{entry}} AS $$
DECLARE
    n new_job := CASE WHEN p_terms IS NOT NULL THEN json_populate_record(NULL::new_job, p_terms) END;
    v_now bigint := call_time(p_offset, p_not_before_us);
    v_due bigint := CASE WHEN n.due IS NULL THEN v_now + coalesce(n.delay, 0) ELSE greatest(v_now, n.due) END;
    v_state text := CASE WHEN v_due <= v_now THEN 'queued' ELSE 'scheduled' END;
    v_arrival bigint;
    v_arrivals text;
    v_lock bigint := hashtextextended('{{listeners_lock}}', 0);
    v_has_listeners boolean := NOT pg_try_advisory_lock(v_lock);
    v_topic text := to_json('queue:' || p_queue);
    v_sent text := '[]';
BEGIN
    IF NOT v_has_listeners THEN
        v_has_listeners := NOT pg_advisory_unlock(v_lock);
    END IF;
    IF cardinality(p_ids) = 1 THEN  -- two thirds of the time of the statement below
        v_arrival := nextval('arrival');
        v_arrivals := v_arrival;
        INSERT INTO job (
            {{requested.columns}},
            state, arrival, created, due)
        VALUES (
            {{requested.values_one}},
            v_state, v_arrival, v_now, v_due);
    ELSE
        WITH inserted AS (
            INSERT INTO job (
                {{requested.columns}},
                state, arrival, created, due)
            SELECT
                {{requested.values_each}},
                v_state, nextval('arrival'), v_now, v_due
            FROM unnest(p_ids, p_payloads) AS each (id, payload)
            RETURNING arrival
        )
        SELECT string_agg(arrival::text, ',') INTO v_arrivals FROM inserted;
    END IF;
    INSERT INTO tally (queue, state, jobs, ends) VALUES (p_queue, v_state, cardinality(p_ids), 0);
    IF v_has_listeners THEN
        v_sent := notify_at_commit(p_sender, v_topic);
    END IF;
    RETURN '{"has_listeners":' || v_has_listeners || ',"topics":[' || v_topic || '],"sent":' || v_sent
        || ',"answer":{"at":{"wall":' || v_now || ',"lease":' || v_now || '},"arrivals":[' || v_arrivals
        || '],"state":"' || v_state || '"}}';
END $$;

-- True if no stored job has the id of one of these, and none of them has a key. If another call is faster with an id,
-- the insert fails.
CREATE FUNCTION are_new(p_jobs jsonb) RETURNS boolean LANGUAGE sql AS $$
    SELECT count(*) = count(DISTINCT (n.queue, n.id)) AND count(n.unique_key) = 0 AND NOT bool_or(EXISTS (
        SELECT 1 FROM job AS j WHERE j.queue = n.queue AND j.id = n.id))
    FROM jsonb_populate_recordset(NULL::new_job, p_jobs) AS n
$$;

-- A group of such jobs inside `enqueue`, with the depths of limited queues.
CREATE FUNCTION enqueue_group_fast(p_jobs jsonb, p_depths jsonb, p_now bigint) RETURNS text LANGUAGE plpgsql AS $$
DECLARE
    v record := insert_fast(p_jobs::json, p_now);
BEGIN
    RETURN json_build_object('type', 'accepted', 'jobs', (
        SELECT json_agg(json_build_object('status', 'created', 'id', id, 'state', v.p_states[place],
            'arrival', v.p_arrivals[place], 'generation', 0, 'depth', (p_depths ->> queue)::bigint + before)
            ORDER BY place)
        FROM (
            SELECT value ->> 'id' AS id, value ->> 'queue' AS queue, ordinality AS place,
                row_number() OVER (PARTITION BY value ->> 'queue' ORDER BY ordinality) AS before
            FROM jsonb_array_elements(p_jobs) WITH ORDINALITY
        ) AS jobs));
END $$;
