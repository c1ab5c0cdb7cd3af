-- What an enqueue locks beside the jobs it writes: limits, ended jobs and keys, each in the order of their names.

-- Calls that bring the same limit wait for each other, so that counting and inserting are one step.
CREATE FUNCTION lock_limits(p_groups jsonb) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
    v_lock bigint;
BEGIN
    FOR v_lock IN
        SELECT DISTINCT hashtextextended('{{namespace}} limit ' || (l.value ->> 'queue'), 0)
        FROM jsonb_array_elements(p_groups) AS g, jsonb_array_elements(coalesce(g.value -> 'limits', '[]')) AS l
        ORDER BY 1
    LOOP
        PERFORM pg_advisory_xact_lock(v_lock);
    END LOOP;
END $$;

-- A job's full name as one text.
CREATE FUNCTION name_of(p_queue text, p_id text) RETURNS text LANGUAGE sql IMMUTABLE AS $$
    SELECT length(p_queue) || ' ' || p_queue || p_id
$$;

-- Lock a key, whether a job has taken it or not. A row that this makes has no effect until it gets an id.
CREATE FUNCTION lock_key(p_queue text, p_task text, p_key text) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
    c_most CONSTANT int := 10;  -- rounds; each further one needs another call that deletes the key in between
BEGIN
    FOR i IN 1 .. c_most LOOP
        INSERT INTO unique_key VALUES (p_queue, p_task, p_key, '') ON CONFLICT DO NOTHING;
        PERFORM 1 FROM unique_key WHERE queue = p_queue AND task = p_task AND unique_key = p_key FOR UPDATE;
        IF FOUND THEN
            RETURN;
        END IF;  -- else its job was deleted meanwhile
    END LOOP;
    PERFORM give_up_looking('key ' || p_key);
END $$;

-- Lock what a group may replace, ended jobs and keys, in order, so that the decision holds. Live jobs are not locked:
-- their workers may hold a lane that this group waits for. In a user's transaction only keys are locked that no live
-- job has: a duplicate is answered without a lock.
CREATE FUNCTION lock_names(p_jobs jsonb, p_user_transaction boolean) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
    k record;
BEGIN
    IF NOT p_user_transaction THEN  -- one by one: planned as one statement, it may read all ended jobs
        FOR k IN
            SELECT DISTINCT n.queue, n.id FROM jsonb_populate_recordset(NULL::new_job, p_jobs) AS n
            WHERE NOT coalesce(n.fresh_id, false) ORDER BY 1, 2
        LOOP
            PERFORM 1 FROM job WHERE queue = k.queue AND id = k.id AND is_terminal(state) IS TRUE FOR UPDATE;
        END LOOP;
    END IF;
    FOR k IN
        SELECT DISTINCT n.queue, coalesce(n.task, '') AS task, n.unique_key
        FROM jsonb_populate_recordset(NULL::new_job, p_jobs) AS n WHERE n.unique_key IS NOT NULL ORDER BY 1, 2, 3
    LOOP
        IF p_user_transaction AND EXISTS (
            SELECT 1 FROM unique_key AS u JOIN job AS j ON j.queue = u.queue AND j.id = u.id
            WHERE u.queue = k.queue AND u.task = k.task AND u.unique_key = k.unique_key AND NOT is_terminal(j.state))
        THEN
            CONTINUE;
        END IF;
        INSERT INTO unique_key VALUES (k.queue, k.task, k.unique_key, '') ON CONFLICT DO NOTHING;
        PERFORM 1 FROM unique_key
        WHERE queue = k.queue AND task = k.task AND unique_key = k.unique_key FOR UPDATE;
        IF NOT FOUND THEN
            RAISE unique_violation;  -- its job was deleted meanwhile: look again
        END IF;
    END LOOP;
END $$;

-- Delete the rows of keys that were locked and then not taken.
CREATE FUNCTION free_keys(p_jobs jsonb) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
    k record;
BEGIN
    FOR k IN
        SELECT DISTINCT n.queue, coalesce(n.task, '') AS task, n.unique_key
        FROM jsonb_populate_recordset(NULL::new_job, p_jobs) AS n WHERE n.unique_key IS NOT NULL
    LOOP
        DELETE FROM unique_key WHERE queue = k.queue AND task = k.task AND unique_key = k.unique_key AND id = '';
    END LOOP;
END $$;
