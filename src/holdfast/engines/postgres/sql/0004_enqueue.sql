-- Enqueue: groups of jobs come in, each whole or not at all. A group is decided before anything of it is written.

-- A new record, as its producer asks for it.
CREATE FUNCTION record_of_1(n new_job, p_arrival bigint, p_now bigint) RETURNS job LANGUAGE plpgsql AS $$
DECLARE
    j job;
BEGIN
    j.queue := n.queue;
    j.id := n.id;
    j.task := coalesce(n.task, '');
    j.payload := decode(coalesce(n.payload, ''), 'base64');
    j.codec := coalesce(n.codec, 'json');
    j.metadata := n.metadata;
    j.payload_hash := decode(coalesce(n.payload_hash, ''), 'base64');
    j.priority := coalesce(n.priority, 0);
    j.lane := n.lane;
    j.unique_key := n.unique_key;
    j.key_scope := coalesce(n.key_scope, CASE WHEN n.unique_key IS NULL THEN 'result' ELSE 'incomplete' END);
    j.key_window := coalesce(n.key_window, 0);
    j.expires := n.expires;
    j.reply := CASE WHEN n.reply IS NULL THEN '{}' ELSE ARRAY[n.reply] END;
    j.given_max_attempts := (n.given ->> 0)::bigint;
    j.given_max_losses := (n.given ->> 1)::bigint;
    j.given_timeout := (n.given ->> 2)::bigint;
    j.given_lease_len := (n.given ->> 3)::bigint;
    j.given_result_ttl := (n.given ->> 4)::bigint;
    j.given_retention := (n.given ->> 5)::bigint;
    j.hold := 0;
    j.generation := 0;
    j.arrival := p_arrival;
    j.created := p_now;
    j.due := CASE WHEN n.due IS NULL THEN p_now + coalesce(n.delay, 0) ELSE greatest(p_now, n.due) END;
    j.parents_left := 0;
    j.attempt := 0;
    j.losses := 0;
    j.owner := '';
    j.fence := 0;
    j.lease_len := 0;
    j.max_attempts := 0;
    j.max_losses := 0;
    j.cancel_asked := false;
    j.cancel_note := '';
    j.note := '';
    j.visible_until := 0;
    j.result_until := 0;
    j.key_until := 0;
    j.epoch := 0;
    j.granted := false;
    j.awaited := false;
    IF n.pool IS NOT NULL THEN
        j.pool_key := n.pool ->> 'key';
        j.pool_hash := (n.pool ->> 'hash')::numeric;
        j.epoch := 1;  -- until it is placed
    END IF;
    j.state := CASE WHEN j.due <= p_now THEN 'queued' ELSE 'scheduled' END;
    RETURN j;
END $$;

-- Insert jobs that nothing holds back and that nobody has the ids of: one statement for all.
CREATE FUNCTION insert_plain_1(p_jobs json, p_now bigint, OUT p_arrivals bigint[], OUT p_states text[])
LANGUAGE plpgsql AS $$
DECLARE
    v_queues text[];
    v record;
BEGIN
    WITH given AS MATERIALIZED (
        SELECT n.*, CASE WHEN n.due IS NULL THEN p_now + coalesce(n.delay, 0) ELSE greatest(p_now, n.due) END AS due_at
        FROM json_populate_recordset(NULL::new_job, p_jobs) AS n
    ), inserted AS (
        INSERT INTO job (
            queue, id, task, payload, codec, metadata, payload_hash, priority, key_scope, key_window, expires, reply,
            given_max_attempts, given_max_losses, given_timeout, given_lease_len, given_result_ttl,
            given_retention, state, arrival, created, due)
        SELECT
            queue, id, coalesce(task, ''), decode(coalesce(payload, ''), 'base64'), coalesce(codec, 'json'), metadata,
            decode(coalesce(payload_hash, ''), 'base64'), coalesce(priority, 0), coalesce(key_scope, 'result'),
            coalesce(key_window, 0), expires, CASE WHEN reply IS NULL THEN '{}' ELSE ARRAY[reply] END,
            (given.given ->> 0)::bigint, (given.given ->> 1)::bigint, (given.given ->> 2)::bigint,
            (given.given ->> 3)::bigint, (given.given ->> 4)::bigint, (given.given ->> 5)::bigint,
            CASE WHEN due_at <= p_now THEN 'queued' ELSE 'scheduled' END, nextval('arrival'), p_now, due_at
        FROM given
        RETURNING queue, state, arrival
    )
    SELECT array_agg(arrival), array_agg(state), array_agg(queue) INTO p_arrivals, p_states, v_queues FROM inserted;
    FOR v IN
        SELECT queue, state, count(*)::int AS jobs FROM unnest(v_queues, p_states) AS i (queue, state)
        GROUP BY queue, state
    LOOP
        PERFORM move_1(v.queue, NULL, v.state, v.jobs), ring_1('queue:' || v.queue);
    END LOOP;
END $$;

-- Jobs that can meet nobody: an id made for them alone, no key, no lane, no parents, no limit.
CREATE FUNCTION enqueue_plain_1(p_jobs json, p_offset bigint, p_floor bigint) RETURNS text
LANGUAGE plpgsql SECURITY DEFINER SET search_path = {schema}, pg_temp AS $$
DECLARE
    v_now bigint := now_1(p_offset, p_floor);
    v record;
BEGIN
    PERFORM begin_1();
    v := insert_plain_1(p_jobs, v_now);
    PERFORM close_1();
    RETURN reply_1(v_now, '"arrivals":' || array_to_json(v.p_arrivals) || ',"states":' || array_to_json(v.p_states));
END $$;

-- The same where they differ in nothing but id and payload, as most do that come together: what they share is read once,
-- and the rest needs no parsing. `p_terms` is a new job without the two.
--
-- It also says whether anybody has to be told: to ring takes a producer more time than to enqueue. Whoever listens for
-- queues holds the lock of the bells, shared, in the session that listens. Who begins to listen between this and our commit
-- is not told, and finds the job by looking a second time soon.
CREATE FUNCTION enqueue_alike_1(p_terms json, p_ids text[], p_payloads bytea[], p_offset bigint, p_floor bigint)
RETURNS text LANGUAGE plpgsql SECURITY DEFINER SET search_path = {schema}, pg_temp AS $$
DECLARE
    n new_job := json_populate_record(NULL::new_job, p_terms);
    v_now bigint := now_1(p_offset, p_floor);
    v_due bigint := CASE WHEN n.due IS NULL THEN v_now + coalesce(n.delay, 0) ELSE greatest(v_now, n.due) END;
    v_state text := CASE WHEN v_due <= v_now THEN 'queued' ELSE 'scheduled' END;
    v_arrivals text;
    v_lock bigint := hashtextextended('{schema} bells', 0);
    v_heard boolean := NOT pg_try_advisory_lock(v_lock);
BEGIN
    IF NOT v_heard THEN
        v_heard := NOT pg_advisory_unlock(v_lock);
    END IF;
    WITH inserted AS (
        INSERT INTO job (
            queue, id, task, payload, codec, metadata, payload_hash, priority, key_scope, key_window, expires, reply,
            given_max_attempts, given_max_losses, given_timeout, given_lease_len, given_result_ttl,
            given_retention, state, arrival, created, due)
        SELECT
            n.queue, given.id, coalesce(n.task, ''), given.payload, coalesce(n.codec, 'json'), n.metadata,
            decode(coalesce(n.payload_hash, ''), 'base64'), coalesce(n.priority, 0), coalesce(n.key_scope, 'result'), coalesce(n.key_window, 0), n.expires,
            CASE WHEN n.reply IS NULL THEN '{}' ELSE ARRAY[n.reply] END,
            (n.given ->> 0)::bigint, (n.given ->> 1)::bigint, (n.given ->> 2)::bigint,
            (n.given ->> 3)::bigint, (n.given ->> 4)::bigint, (n.given ->> 5)::bigint,
            v_state, nextval('arrival'), v_now, v_due
        FROM unnest(p_ids, p_payloads) AS given (id, payload)
        RETURNING arrival
    )
    SELECT string_agg(arrival::text, ',') INTO v_arrivals FROM inserted;
    INSERT INTO tally (queue, state, jobs, ends) VALUES (n.queue, v_state, cardinality(p_ids), 0);
    RETURN '{"heard":' || v_heard || ',"rings":[' || to_json('queue:' || n.queue)
        || '],"answer":{"at":{"wall":' || v_now || ',"lease":' || v_now || '},"arrivals":[' || v_arrivals || '],"state":"' || v_state || '"}}';
END $$;

-- An answer as text: the bells to ring once it is committed, the time, and what the verb says. `p_walked`: how many entries
-- of the index of ready jobs a claim has met.
CREATE FUNCTION reply_1(p_now bigint, p_fields text, p_walked bigint DEFAULT 0) RETURNS text LANGUAGE plpgsql AS $$
BEGIN
    RETURN '{"rings":' || lines_1('holdfast.rings') || ',"walked":' || p_walked
        || ',"answer":{"at":{"wall":' || p_now || ',"lease":' || p_now || '}'
        || CASE p_fields WHEN '' THEN '' ELSE ',' || p_fields END || '}}';
END $$;

-- Any groups. `p_joined`: in a transaction of the user's, where nothing is locked that others may wait for, but own ids
-- and keys; jobs with a lane, a pool or parents are left to be admitted after the commit.
--
-- A group is written as it is decided, inside a savepoint: a refusal takes all of it back.
CREATE FUNCTION enqueue_1(p_groups text, p_joined boolean, p_offset bigint, p_floor bigint) RETURNS text
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = {schema}, pg_temp SET enable_seqscan = off SET jit = off SET lock_timeout = '2s' AS $$
DECLARE
    v_groups jsonb := p_groups::jsonb;
    v_group jsonb;
    v_answer text;
    v_answers text[] := '{}';
    v_now bigint;
    v_queue text;
    v_turns jsonb;
BEGIN
    PERFORM begin_1(p_joined);
    PERFORM lock_limits_1(v_groups);
    v_now := now_1(p_offset, p_floor);
    IF NOT p_joined THEN
        FOR v_queue IN
            SELECT DISTINCT n.queue FROM jsonb_array_elements(v_groups) AS g,
                jsonb_populate_recordset(NULL::new_job, g.value -> 'jobs') AS n
            WHERE n.lane IS NOT NULL OR n.pool IS NOT NULL ORDER BY 1
        LOOP
            PERFORM chores_1(v_queue, true, v_now);
        END LOOP;
    END IF;
    FOR v_group IN SELECT value FROM jsonb_array_elements(v_groups) LOOP
        v_turns := turns_1(v_group);
        LOOP
            BEGIN
                v_answer := group_1(v_group, p_joined, v_now);
                EXIT;
            EXCEPTION
                WHEN SQLSTATE 'HF001' THEN  -- refused; the message says how
                    v_answer := SQLERRM;
                    PERFORM give_turns_back_1(v_turns);
                    EXIT;
                WHEN unique_violation THEN
                    NULL;  -- somebody was faster with one of these ids: look again
            END;
        END LOOP;
        v_answers := v_answers || v_answer;
    END LOOP;
    IF NOT p_joined THEN
        PERFORM resolve_1(v_now);
    END IF;
    PERFORM close_1();
    RETURN reply_1(v_now, '"groups":[' || array_to_string(v_answers, ',') || ']');
END $$;

-- Whoever brings a limit waits for the others that bring the same one, so that counting and inserting are one step.
CREATE FUNCTION lock_limits_1(p_groups jsonb) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
    v_lock bigint;
BEGIN
    FOR v_lock IN
        SELECT DISTINCT hashtextextended(current_schema || ' limit ' || (l.value ->> 'queue'), 0)
        FROM jsonb_array_elements(p_groups) AS g, jsonb_array_elements(coalesce(g.value -> 'limits', '[]')) AS l
        ORDER BY 1
    LOOP
        PERFORM pg_advisory_xact_lock(v_lock);
    END LOOP;
END $$;

-- A job's full name as one text.
CREATE FUNCTION name_1(p_queue text, p_id text) RETURNS text LANGUAGE sql IMMUTABLE AS $$
    SELECT length(p_queue) || ' ' || p_queue || p_id
$$;

-- One group: first every job is looked up and, if new, inserted; then those that something may hold back are brought to
-- their places, lanes locked in order. So no lane is locked while an id is waited for.
CREATE FUNCTION group_1(p_group jsonb, p_joined boolean, p_now bigint) RETURNS text LANGUAGE plpgsql AS $$
DECLARE
    v_jobs jsonb := p_group -> 'jobs';
    v_limits jsonb := coalesce(p_group -> 'limits', '[]');
    v_limited boolean := jsonb_array_length(v_limits) > 0;
    v_depths jsonb;            -- of limited queues, before
    v_held boolean;            -- something may hold one of them back
    v_keys jsonb := '{}';      -- keys that jobs of this group have taken
    v_ids text[] := '{}';      -- per job: its own id, or that of the one that answers for it
    v_names text[] := '{}';    -- of those that are new
    v_name text;
    v_was jsonb := '{}';       -- how those ended that they replace, for jobs of the group in front of them
    v_state text;
    v_new boolean[] := '{}';
    v_answers text[] := '{}';
    v_lanes text[];
    v_inserted jsonb := '{}';  -- answers of those that ended as they came, which nobody can look up any more
    v_answer jsonb;
    n new_job;
    v_place int := 0;
    v_existing text;
    v_key text;
BEGIN
    SELECT bool_or(is_held_1(g)) INTO v_held FROM jsonb_populate_recordset(NULL::new_job, v_jobs) AS g;
    IF v_limited THEN
        PERFORM close_1();
        v_depths := depths_1(v_limits);
    END IF;
    IF NOT v_held AND are_new_1(v_jobs) THEN
        PERFORM check_room_1(v_limits, v_jobs, NULL, NULL, v_depths);
        RETURN plain_group_1(v_jobs, v_depths, p_now);
    END IF;
    PERFORM lock_names_1(v_jobs, p_joined);
    FOR n IN SELECT * FROM jsonb_populate_recordset(NULL::new_job, v_jobs) LOOP
        v_key := CASE WHEN n.unique_key IS NOT NULL
            THEN jsonb_build_array(n.queue, coalesce(n.task, ''), n.unique_key)::text END;
        v_name := name_1(n.queue, n.id);
        v_existing := existing_1(n, v_name = ANY (v_names), v_keys ->> v_key, p_now);
        IF v_existing IS NULL THEN
            v_state := insert_1(n, coalesce(v_held, false), p_now);
            IF v_state IS NOT NULL THEN
                v_was := v_was || jsonb_build_object(v_name, v_state);
            END IF;
            v_names := v_names || v_name;
            IF v_key IS NOT NULL THEN
                v_keys := v_keys || jsonb_build_object(v_key, n.id);
            END IF;
        END IF;
        v_ids := v_ids || coalesce(v_existing, n.id);
        v_new := v_new || (v_existing IS NULL);
    END LOOP;
    IF v_held AND NOT p_joined THEN
        v_lanes := place_group_1(v_jobs, v_new, p_now);
    END IF;
    IF v_limited THEN
        PERFORM check_room_1(v_limits, v_jobs, v_new, v_lanes, v_depths);
    END IF;
    FOR n IN SELECT * FROM jsonb_populate_recordset(NULL::new_job, v_jobs) LOOP
        v_place := v_place + 1;
        IF v_new[v_place] THEN
            v_depths := deeper_1(v_depths, n.queue, 1);
            v_answer := settle_in_1(n, v_held, v_lanes[v_place], v_was, p_joined, p_now);
            v_was := v_was - name_1(n.queue, n.id);
            IF v_answer -> 'position' = 'null' THEN
                v_answer := v_answer || jsonb_build_object('depth', v_depths -> n.queue);
            END IF;
            IF v_answer ->> 'state' = 'cancelled' THEN
                v_depths := deeper_1(v_depths, n.queue, -1);
                v_inserted := v_inserted || jsonb_build_object(jsonb_build_array(n.queue, n.id)::text, v_answer);
            END IF;
        ELSE
            v_answer := answer_existing_1(n, v_ids[v_place], v_inserted, p_joined, p_now);
        END IF;
        v_answers := v_answers || v_answer::text;
    END LOOP;
    PERFORM free_keys_1(v_jobs);
    RETURN '{"type":"accepted","jobs":[' || array_to_string(v_answers, ',') || ']}';
END $$;

-- The depths of limited queues, one of them with so many more. Others are not counted, and stay unknown.
CREATE FUNCTION deeper_1(p_depths jsonb, p_queue text, p_more int) RETURNS jsonb LANGUAGE sql IMMUTABLE AS $$
    SELECT CASE WHEN p_depths ? p_queue
        THEN p_depths || jsonb_build_object(p_queue, (p_depths ->> p_queue)::bigint + p_more) ELSE p_depths END
$$;

-- Whether nobody has the ids of these jobs, and none of them has a key. (Who is faster with one fails the insert.)
CREATE FUNCTION are_new_1(p_jobs jsonb) RETURNS boolean LANGUAGE sql AS $$
    SELECT count(*) = count(DISTINCT (n.queue, n.id)) AND count(n.unique_key) = 0 AND NOT bool_or(EXISTS (
        SELECT 1 FROM job AS j WHERE j.queue = n.queue AND j.id = n.id))
    FROM jsonb_populate_recordset(NULL::new_job, p_jobs) AS n
$$;

CREATE FUNCTION plain_group_1(p_jobs jsonb, p_depths jsonb, p_now bigint) RETURNS text LANGUAGE plpgsql AS $$
DECLARE
    v record := insert_plain_1(p_jobs::json, p_now);
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

-- The id of the job that answers for a new one; null: it is to be inserted. `p_twin`: its id may have come before in its
-- group; `p_key_holder`: the job of its group that has taken its key.
CREATE FUNCTION existing_1(n new_job, p_twin boolean, p_key_holder text, p_now bigint) RETURNS text
LANGUAGE plpgsql AS $$
DECLARE
    j job;
    v_holder text := p_key_holder;
    v_parent jsonb;
BEGIN
    SELECT * INTO j FROM job WHERE queue = n.queue AND id = n.id;
    IF j.id IS NOT NULL AND (p_twin OR is_taken_1(j, CASE WHEN j.unique_key IS NULL
            THEN j.key_until ELSE j.result_until END, p_now)) THEN
        IF j.task <> coalesce(n.task, '') OR (coalesce(n.payload_hash, '') <> '' AND j.payload_hash <> ''
                AND j.payload_hash <> decode(n.payload_hash, 'base64')) THEN
            PERFORM refuse_1(json_build_object(
                'type', 'conflict', 'job', json_build_object('queue', n.queue, 'id', n.id)));
        END IF;
        RETURN n.id;
    END IF;
    IF n.unique_key IS NOT NULL THEN
        v_holder := coalesce(v_holder, key_holder_1(n.queue, coalesce(n.task, ''), n.unique_key, p_now));
        IF v_holder IS NOT NULL THEN
            RETURN v_holder;
        END IF;
    END IF;
    FOR v_parent IN SELECT value -> 'job' FROM jsonb_array_elements(coalesce(n.parents, '[]')) LOOP
        IF NOT EXISTS (SELECT 1 FROM job WHERE queue = v_parent ->> 'queue' AND id = v_parent ->> 'id') THEN
            PERFORM refuse_1(json_build_object('type', 'orphan', 'parent', v_parent));
        END IF;
    END LOOP;
    RETURN NULL;
END $$;

CREATE FUNCTION refuse_1(p_answer json) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    RAISE EXCEPTION SQLSTATE 'HF001' USING MESSAGE = p_answer::text;
END $$;
