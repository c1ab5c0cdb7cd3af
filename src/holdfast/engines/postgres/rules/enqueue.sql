-- Enqueue: each group of jobs is accepted whole or refused whole. A group is written while it is decided, inside a
-- savepoint: a refusal rolls all of it back. For jobs that cannot conflict see `fast_enqueue.sql`.
--
-- Locks: stored jobs that have ended and keys, in the order of their names (`enqueue_locks.sql`); then new jobs, in the
-- same order; then pools; then lanes. In a user's transaction only own ids and keys are locked (PF5): what concerns
-- lanes, pools and children is deferred until after the commit, and limits are looked at without a lock.

-- A new record, from the producer's request.
-- E4: a due time in the past counts as now.
-- D11: the default scope of a key is `incomplete`, that of an id `result`.
-- D4: a replacement counts its generation and its fence on; see `insert_job`.
CREATE FUNCTION record_of(n new_job, p_arrival bigint, p_now bigint) RETURNS job LANGUAGE plpgsql AS $$
DECLARE
    j job;
BEGIN
    {{requested.assignments}}
    j.hold := 0;
    j.arrival := p_arrival;
    j.created := p_now;
    j.due := CASE WHEN n.due IS NULL THEN p_now + coalesce(n.delay, 0) ELSE greatest(p_now, n.due) END;
    IF n.pool IS NOT NULL THEN
        j.pool_key := n.pool ->> 'key';
        j.pool_hash := (n.pool ->> 'hash')::numeric;
        j.epoch := 1;  -- until it is placed
    END IF;
    j.state := CASE WHEN j.due <= p_now THEN 'queued' ELSE 'scheduled' END;
    RETURN j;
END $$;

-- Any groups. In a user's transaction (`p_user_transaction`) jobs with a lane, a pool or parents are admitted after the
-- commit. `p_fast`: use the fast paths.
-- E1: groups are decided in order, and each gets its own answer.
CREATE FUNCTION enqueue(
    p_groups text, p_user_transaction boolean, p_fast boolean, p_offset bigint, p_not_before_us bigint
) RETURNS text LANGUAGE plpgsql {{entry}} SET enable_seqscan = off SET jit = off AS $$
DECLARE
    v_groups jsonb := p_groups::jsonb;
    v_group jsonb;
    v_answer text;
    v_answers text[] := '{}';
    v_now bigint;
    c_most CONSTANT int := 10;  -- rounds; each further one needs another call that is faster with one of the ids
BEGIN
    PERFORM begin_call(p_user_transaction);
    IF NOT p_user_transaction THEN
        PERFORM lock_limits(v_groups);
    END IF;
    v_now := call_time(p_offset, p_not_before_us);
    IF NOT p_user_transaction THEN
        PERFORM run_deferred_of_lanes(v_groups, v_now);
    END IF;
    FOR v_group IN SELECT value FROM jsonb_array_elements(v_groups) LOOP
        v_answer := NULL;
        FOR i IN 1 .. c_most LOOP
            BEGIN
                v_answer := enqueue_group(v_group, p_user_transaction, p_fast, v_now);
                EXIT;
            EXCEPTION
                WHEN SQLSTATE 'HF001' THEN  -- refused; the message says how
                    v_answer := SQLERRM;
                    EXIT;
                WHEN unique_violation THEN
                    NULL;  -- another call was faster with one of these ids: look again
            END;
        END LOOP;
        IF v_answer IS NULL THEN
            PERFORM give_up_looking('one of these jobs');
        END IF;
        v_answers := v_answers || v_answer;
    END LOOP;
    IF NOT p_user_transaction THEN
        PERFORM resolve(v_now);
    END IF;
    PERFORM write_tally();
    RETURN reply(v_now, '"groups":[' || array_to_string(v_answers, ',') || ']');
END $$;

-- One group: every job is looked up; then the new ones are inserted in the order of their names, so that two calls
-- with the same ids do not wait for each other; then the limits; then jobs that something may hold back get their
-- places, with lanes locked in order. So no lane is locked while an id is waited for.
-- E1, E2: ids, keys and parents of all jobs first, then the limits, then the places; a refusal leaves no trace.
-- E5: in a lane its depth, elsewhere that of the queue if the group has a limit on it.
CREATE FUNCTION enqueue_group(p_group jsonb, p_user_transaction boolean, p_fast boolean, p_now bigint) RETURNS text
LANGUAGE plpgsql AS $$
DECLARE
    v_jobs jsonb := p_group -> 'jobs';
    v_limits jsonb := coalesce(p_group -> 'limits', '[]');
    v_limited boolean := jsonb_array_length(v_limits) > 0;
    v_depths jsonb;            -- of limited queues, before
    v_held boolean;            -- something may hold one of them back
    v_keys jsonb := '{}';      -- keys that jobs of this group have taken
    v_ids text[] := '{}';      -- per job: its own id, or that of the one that answers for it
    v_names text[] := '{}';    -- of those that are new
    v_places int[] := '{}';    -- where in the group those stand
    v_arrivals bigint[];       -- and the numbers they get, in the order of the group
    v_name text;
    v_twin int;                -- among the names: the same name earlier in the group
    v record;
    v_was jsonb := '{}';       -- how those ended that they replace, for jobs of the group in front of them
    v_state text;
    v_new boolean[] := '{}';
    v_answers text[] := '{}';
    v_lanes text[];
    v_inserted jsonb := '{}';  -- answers of jobs that ended in this insert: their records may be deleted
    v_answer jsonb;
    n new_job;
    v_place int := 0;
    v_existing text;
    v_key text;
BEGIN
    SELECT bool_or(is_held(g)) INTO v_held FROM jsonb_populate_recordset(NULL::new_job, v_jobs) AS g;
    IF v_limited THEN
        PERFORM write_tally();
        v_depths := depths(v_limits);
    END IF;
    IF p_fast AND NOT v_held THEN
        IF are_new(v_jobs) THEN
            PERFORM check_limits(v_limits, v_jobs, NULL, NULL, v_depths);
            RETURN enqueue_group_fast(v_jobs, CASE WHEN NOT p_user_transaction THEN v_depths END, p_now);
        END IF;
    END IF;
    PERFORM lock_names(v_jobs, p_user_transaction);
    FOR n IN SELECT * FROM jsonb_populate_recordset(NULL::new_job, v_jobs) LOOP
        v_place := v_place + 1;
        v_key := CASE WHEN n.unique_key IS NOT NULL
            THEN jsonb_build_array(n.queue, coalesce(n.task, ''), n.unique_key)::text END;
        v_name := name_of(n.queue, n.id);
        v_twin := array_position(v_names, v_name);
        v_existing := existing_id(n, CASE WHEN v_twin IS NOT NULL
            THEN jsonb_populate_record(NULL::new_job, v_jobs -> v_places[v_twin] - 1) END, v_names, v_keys ->> v_key,
            p_now);
        IF v_existing IS NULL THEN
            v_names := v_names || v_name;
            v_places := v_places || v_place;
            IF v_key IS NOT NULL THEN
                v_keys := v_keys || jsonb_build_object(v_key, n.id);
            END IF;
        END IF;
        v_ids := v_ids || coalesce(v_existing, n.id);
        v_new := v_new || (v_existing IS NULL);
    END LOOP;
    v_arrivals := ARRAY(SELECT nextval('arrival') FROM generate_series(1, cardinality(v_names)));
    FOR v IN
        SELECT job, name, arrival FROM unnest(v_names, v_places, v_arrivals) AS i (name, place, arrival)
        CROSS JOIN LATERAL (SELECT v_jobs -> i.place - 1 AS job) AS j ORDER BY job ->> 'queue', job ->> 'id'
    LOOP
        v_state := insert_job(jsonb_populate_record(NULL::new_job, v.job), v.arrival, coalesce(v_held, false), v_names,
            p_user_transaction, p_now);
        IF v_state IS NOT NULL THEN
            v_was := v_was || jsonb_build_object(v.name, v_state);
        END IF;
    END LOOP;
    IF v_held AND v_limited THEN
        v_lanes := choose_lanes(v_jobs, v_new, v_limits);
    END IF;
    IF v_held AND NOT p_user_transaction THEN
        v_lanes := place_group(v_jobs, v_new, v_lanes, p_now);
    END IF;
    v_place := 0;
    IF v_limited THEN
        PERFORM check_limits(v_limits, v_jobs, v_new, v_lanes, v_depths);
    END IF;
    FOR n IN SELECT * FROM jsonb_populate_recordset(NULL::new_job, v_jobs) LOOP
        v_place := v_place + 1;
        IF v_new[v_place] THEN
            v_depths := add_depth(v_depths, n.queue, 1);
            IF v_limited AND n.pool IS NOT NULL AND n.pool ->> 'hash' IS NULL THEN
                PERFORM pass_turn(n.queue, v_lanes[v_place]);
            END IF;
            v_answer := place_new(n, v_held, v_lanes[v_place], v_was, p_user_transaction, p_now);
            v_was := v_was - name_of(n.queue, n.id);
            IF v_answer -> 'position' = 'null' AND NOT p_user_transaction THEN
                v_answer := v_answer || jsonb_build_object('depth', v_depths -> n.queue);
            END IF;
            IF v_answer ->> 'state' = 'cancelled' THEN
                v_depths := add_depth(v_depths, n.queue, -1);
                v_inserted := v_inserted || jsonb_build_object(jsonb_build_array(n.queue, n.id)::text, v_answer);
            END IF;
        ELSE
            v_answer := answer_existing(n, v_ids[v_place], v_inserted, p_user_transaction, p_now);
        END IF;
        v_answers := v_answers || v_answer::text;
    END LOOP;
    PERFORM free_keys(v_jobs);
    RETURN '{"type":"accepted","jobs":[' || array_to_string(v_answers, ',') || ']}';
END $$;

-- The depths of limited queues, that of one queue changed. Other queues are not counted.
CREATE FUNCTION add_depth(p_depths jsonb, p_queue text, p_more int) RETURNS jsonb LANGUAGE sql IMMUTABLE AS $$
    SELECT CASE WHEN p_depths ? p_queue
        THEN p_depths || jsonb_build_object(p_queue, (p_depths ->> p_queue)::bigint + p_more) ELSE p_depths END
$$;

-- The id of the job that answers for a new one. Null: it is to be inserted. `p_twin`: the job of the same id earlier
-- in its group; `p_names`: the jobs of its group that will be inserted; `p_key_holder`: the one that has taken its key.
-- S1, D1: the id is looked at before the key.
-- E3: inside a group the first of two wins.
-- E9: a fresh id is looked up here too; `fast_enqueue.sql` does not.
-- D8: with a key, the scope governs the key, and the id is taken until the result lapses.
-- D9: a duplicate of another task or payload is a conflict.
-- P1: a parent exists, or stands earlier in the group.
CREATE FUNCTION existing_id(n new_job, p_twin new_job, p_names text[], p_key_holder text, p_now bigint) RETURNS text
LANGUAGE plpgsql AS $$
DECLARE
    j job;
    v_holder text := p_key_holder;
    v_parent jsonb;
BEGIN
    IF p_twin.id IS NOT NULL THEN
        j := record_of(p_twin, 0, p_now);
    ELSE
        SELECT * INTO j FROM job WHERE queue = n.queue AND id = n.id;
    END IF;
    IF j.id IS NOT NULL AND is_taken(j, CASE WHEN j.unique_key IS NULL
            THEN j.key_until ELSE j.result_until END, p_now) THEN
        IF j.task <> coalesce(n.task, '') OR (coalesce(n.payload_hash, '') <> '' AND j.payload_hash <> ''
                AND j.payload_hash <> decode(n.payload_hash, 'base64')) THEN
            PERFORM refuse(json_build_object(
                'type', 'conflict', 'job', json_build_object('queue', n.queue, 'id', n.id)));
        END IF;
        RETURN n.id;
    END IF;
    IF n.unique_key IS NOT NULL THEN
        IF v_holder IS NULL THEN
            v_holder := key_holder(n.queue, coalesce(n.task, ''), n.unique_key, p_now);
            IF name_of(n.queue, v_holder) = ANY (p_names) THEN
                v_holder := NULL;  -- this group replaces that job, and frees its key
            END IF;
        END IF;
        IF v_holder IS NOT NULL THEN
            RETURN v_holder;
        END IF;
    END IF;
    FOR v_parent IN SELECT value -> 'job' FROM jsonb_array_elements(coalesce(n.parents, '[]')) LOOP
        IF NOT EXISTS (SELECT 1 FROM job WHERE queue = v_parent ->> 'queue' AND id = v_parent ->> 'id')
            AND name_of(v_parent ->> 'queue', v_parent ->> 'id') <> ALL (p_names)
        THEN
            PERFORM refuse(json_build_object('type', 'orphan', 'parent', v_parent));
        END IF;
    END LOOP;
    RETURN NULL;
END $$;

CREATE FUNCTION refuse(p_answer json) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    RAISE EXCEPTION SQLSTATE 'HF001' USING MESSAGE = p_answer::text;
END $$;

-- True if a record keeps its id or key, so that a new job is a duplicate.
-- D3, D7: a live job keeps it; a succeeded one until that instant; a failed or cancelled one does not.
CREATE FUNCTION is_taken(j job, p_until bigint, p_now bigint) RETURNS boolean LANGUAGE sql IMMUTABLE AS $$
    SELECT NOT is_terminal(j.state) OR (j.state = 'succeeded' AND p_now < p_until)
$$;

-- The id of the job that keeps this key, so that a new job is a duplicate. Null: the key is free.
-- S1, D10: a live holder, or a succeeded one until its `key_until`.
CREATE FUNCTION key_holder(p_queue text, p_task text, p_key text, p_now bigint) RETURNS text LANGUAGE sql AS $$
    SELECT j.id FROM unique_key AS k JOIN job AS j ON j.queue = k.queue AND j.id = k.id
    WHERE k.queue = p_queue AND k.task = p_task AND k.unique_key = p_key
        AND j.task = p_task AND j.unique_key = p_key AND is_taken(j, j.key_until, p_now)
$$;

-- Live jobs of the queues that have a limit.
CREATE FUNCTION depths(p_limits jsonb) RETURNS jsonb LANGUAGE sql AS $$
    SELECT coalesce(jsonb_object_agg(queue, depth(queue)), '{}') FROM (
        SELECT DISTINCT value ->> 'queue' AS queue FROM jsonb_array_elements(p_limits)
        WHERE value ->> 'lane' IS NULL AND NOT coalesce((value ->> 'each_lane')::boolean, false)) AS limited
$$;

-- Refuse the group if it does not fit. `p_new` null: all jobs are new.
-- E6, E7: in the order given, with the depths before the group; of several full lanes the first in the order of the
-- group.
-- E8: in the lane that a job names or that the pool has chosen.
-- PF5: in a user's transaction no lock keeps others from inserting meanwhile, and the limit may be exceeded.
CREATE FUNCTION check_limits(p_limits jsonb, p_jobs jsonb, p_new boolean[], p_lanes text[], p_depths jsonb) RETURNS void
LANGUAGE plpgsql AS $$
DECLARE
    l record;
    v_lane record;
    v_more bigint;
    v_depth bigint;
BEGIN
    FOR l IN
        SELECT value ->> 'queue' AS queue, (value ->> 'limit')::bigint AS "limit", value ->> 'lane' AS lane,
            coalesce((value ->> 'each_lane')::boolean, false) AS each_lane
        FROM jsonb_array_elements(p_limits)
    LOOP
        IF l.lane IS NULL AND NOT l.each_lane THEN
            SELECT count(*) INTO v_more FROM jsonb_array_elements(p_jobs) WITH ORDINALITY
            WHERE coalesce(p_new[ordinality], true) AND value ->> 'queue' = l.queue;
            v_depth := (p_depths ->> l.queue)::bigint;
            IF v_more > 0 AND v_depth + v_more > l."limit" THEN
                PERFORM refuse(json_build_object(
                    'type', 'full', 'queue', l.queue, 'lane', NULL, 'depth', v_depth, 'limit', l."limit"));
            END IF;
            CONTINUE;
        END IF;
        FOR v_lane IN
            SELECT p_lanes[ordinality] AS lane, count(*) AS more FROM jsonb_array_elements(p_jobs) WITH ORDINALITY
            WHERE p_new[ordinality] AND value ->> 'queue' = l.queue AND p_lanes[ordinality] IS NOT NULL
                AND (l.each_lane OR p_lanes[ordinality] = l.lane)
            GROUP BY 1 ORDER BY min(ordinality)
        LOOP
            v_depth := depth_for_limit(l.queue, v_lane.lane, l."limit");
            IF v_depth + v_lane.more > l."limit" THEN
                PERFORM refuse(json_build_object(
                    'type', 'full', 'queue', l.queue, 'lane', v_lane.lane, 'depth', v_depth, 'limit', l."limit"));
            END IF;
        END LOOP;
    END LOOP;
END $$;

-- Live jobs of a lane, as its limit counts them: in a user's transaction with those that other ones bring.
CREATE FUNCTION depth_for_limit(p_queue text, p_lane text, p_limit bigint) RETURNS bigint LANGUAGE plpgsql AS $$
BEGIN
    RETURN lane_depth(p_queue, p_lane) + CASE WHEN current_setting('holdfast.user_transaction')::boolean
        THEN jobs_arriving(p_queue, p_lane, p_limit) ELSE 0 END;
END $$;

-- Jobs of users' transactions that are not admitted to a lane yet; at most `p_most`.
CREATE FUNCTION jobs_arriving(p_queue text, p_lane text, p_most bigint) RETURNS bigint LANGUAGE plpgsql AS $$
BEGIN
    RETURN (
        SELECT count(*) FROM (
            SELECT 1 FROM deferred WHERE kind = 'arrive' AND queue = p_queue AND lane = p_lane LIMIT p_most
        ) AS arriving);
END $$;

-- True if something beside its due time may hold the job back.
CREATE FUNCTION is_held(n new_job) RETURNS boolean LANGUAGE sql IMMUTABLE AS $$
    SELECT n.lane IS NOT NULL OR n.pool IS NOT NULL OR jsonb_array_length(coalesce(n.parents, '[]')) > 0
$$;

-- Write a new job, or replace a record of its id that has lapsed, failed or been cancelled. `p_arriving`: it gets its
-- place and its arrival when the lanes of its group are locked. `p_names`: the jobs that its group inserts. Answers how
-- the replaced job had ended.
-- D2, D4, D7: no record keeps that id.
-- P7: the children get the end of the old job, not that of the new one.
-- N1: workers that wait look again when the job is due.
-- PF5: a user's transaction locks neither the lane of the old job nor its children nor its key. The row of a key that
-- its job does not have any more has no effect.
CREATE FUNCTION insert_job(
    n new_job, p_arrival bigint, p_arriving boolean, p_names text[], p_user_transaction boolean, p_now bigint
) RETURNS text LANGUAGE plpgsql AS $$
DECLARE
    j job := record_of(n, p_arrival, p_now);
    v_old job;
    v_holder text;
BEGIN
    IF p_arriving THEN
        j.hold := {{hold.arriving}};
        j.state := 'blocked';
    END IF;
    SELECT * INTO v_old FROM job WHERE queue = j.queue AND id = j.id FOR UPDATE;
    IF NOT is_terminal(v_old.state) THEN
        RAISE unique_violation;  -- it has come since: look again
    END IF;
    IF p_user_transaction THEN
        IF v_old.awaited THEN
            PERFORM defer_children(v_old.queue, v_old.id, v_old.arrival, v_old.state);
        END IF;
    ELSE
        IF v_old.id IS NOT NULL AND EXISTS (
            SELECT 1 FROM deferred WHERE kind = 'end' AND queue = j.queue AND id = j.id)
        THEN  -- it ended in a user's transaction: first its lane and its pool count that
            PERFORM run_deferred_ends(j.queue, ARRAY[j.id], p_now);
            SELECT * INTO v_old FROM job WHERE queue = j.queue AND id = j.id FOR UPDATE;
        END IF;
        IF v_old.awaited OR EXISTS (
            SELECT 1 FROM deferred WHERE kind = 'parent' AND queue = v_old.queue AND id = v_old.id)
        THEN
            PERFORM resolve_one(v_old.queue, v_old.id, v_old.arrival, v_old.state, NULL, p_now);
            SELECT * INTO v_old FROM job WHERE queue = j.queue AND id = j.id FOR UPDATE;
        END IF;
    END IF;
    IF v_old.id IS NULL THEN
        INSERT INTO job (
            {{job.columns}})
        VALUES (
            {{job.values}});
        PERFORM count_moves(j.queue, NULL, j.state);
        IF j.state <> 'blocked' THEN
            PERFORM notify('queue:' || j.queue);
        END IF;
    ELSE
        IF v_old.unique_key IS NOT NULL AND NOT p_user_transaction THEN
            DELETE FROM unique_key WHERE queue = j.queue AND task = v_old.task
                AND unique_key = v_old.unique_key AND id = j.id;
        END IF;
        j.generation := v_old.generation + 1;
        j.fence := v_old.fence;
        PERFORM put_job(v_old.state, j);
        IF j.state = 'scheduled' THEN
            PERFORM notify('queue:' || j.queue);
        END IF;
    END IF;
    IF j.unique_key IS NOT NULL THEN
        PERFORM lock_key(j.queue, j.task, j.unique_key);
        v_holder := key_holder(j.queue, j.task, j.unique_key, p_now);
        IF v_holder <> j.id AND name_of(j.queue, v_holder) <> ALL (p_names) THEN
            RAISE unique_violation;  -- another call has taken it since, without a lock: look again
        END IF;
        UPDATE unique_key SET id = j.id WHERE queue = j.queue AND task = j.task AND unique_key = j.unique_key;
    END IF;
    RETURN v_old.state;
END $$;

-- The lanes of a group's new jobs: as they name them, or as their pool chooses. Locks all of them, in order. `p_chosen`:
-- as the limits allow.
CREATE FUNCTION place_group(p_jobs jsonb, p_new boolean[], p_chosen text[], p_now bigint) RETURNS text[]
LANGUAGE plpgsql AS $$
DECLARE
    n new_job;
    j job;
    v_lanes text[] := '{}';
    v_lane text;
    v_place int := 0;
    v record;
BEGIN
    FOR n IN SELECT * FROM jsonb_populate_recordset(NULL::new_job, p_jobs) LOOP
        v_place := v_place + 1;
        v_lane := n.lane;
        IF n.pool IS NOT NULL AND p_new[v_place] THEN
            SELECT * INTO j FROM job WHERE queue = n.queue AND id = n.id;
            j := place(j, (n.pool ->> 'lanes')::bigint, p_chosen[v_place]);
            v_lane := j.lane;
            UPDATE job SET lane = j.lane, epoch = j.epoch, hold = j.hold WHERE queue = j.queue AND id = j.id;
        END IF;
        v_lanes := v_lanes || v_lane;
    END LOOP;
    FOR v IN
        SELECT DISTINCT value ->> 'queue' AS queue, v_lanes[ordinality] AS lane
        FROM jsonb_array_elements(p_jobs) WITH ORDINALITY
        WHERE p_new[ordinality] AND v_lanes[ordinality] IS NOT NULL ORDER BY 1, 2
    LOOP
        PERFORM lock_lane(v.queue, v.lane, p_now);
    END LOOP;
    RETURN v_lanes;
END $$;

-- Admit an inserted job to its lane and pool, and make its answer. Its lane is locked.
-- P3: created, and cancelled at once.
CREATE FUNCTION place_new(
    n new_job, p_held boolean, p_lane text, p_was jsonb, p_user_transaction boolean, p_now bigint
) RETURNS jsonb LANGUAGE plpgsql AS $$
DECLARE
    j job;
    v_left int := 0;
    v_failed boolean := false;
    v_position bigint;
BEGIN
    SELECT * INTO j FROM job WHERE queue = n.queue AND id = n.id;
    IF p_held AND p_user_transaction THEN
        PERFORM defer_arrival(n, j, p_lane, p_was);
    ELSIF p_held THEN
        j.hold := j.hold & ~{{hold.arriving}};
        j.arrival := nextval('arrival');
        IF jsonb_array_length(coalesce(n.parents, '[]')) > 0 THEN
            SELECT * INTO v_left, v_failed FROM link(j.queue, j.id, j.arrival, n.parents, p_was);
            j.parents_left := v_left;
            IF v_left > 0 OR v_failed THEN
                j.hold := j.hold | {{hold.parents}};
            END IF;
        END IF;
        IF p_lane IS NULL THEN
            j := as_waiting(j, false, p_now);
        ELSE
            v_position := lane_depth(j.queue, p_lane);
            j := admit(j, p_now);
        END IF;
        PERFORM put_job('blocked', j);
        IF j.state = 'scheduled' THEN
            PERFORM notify('queue:' || j.queue);
        END IF;
    END IF;
    IF v_failed THEN
        PERFORM cancel_waiting(j, 'parent_failed', 'a parent had failed before', p_now);
        j.state := 'cancelled';
    END IF;
    RETURN jsonb_build_object('status', 'created', 'id', j.id, 'state', j.state, 'arrival', j.arrival,
        'generation', j.generation, 'position', v_position, 'depth', v_position + 1, 'lane', j.lane);
END $$;

-- The stored job answers for the new one.
-- E3: a duplicate is answered, not failed.
-- D5, D6: completed while the result is kept, duplicate after that.
-- D12: the second caller is notified too.
CREATE FUNCTION answer_existing(
    n new_job, p_id text, p_inserted jsonb, p_user_transaction boolean, p_now bigint
) RETURNS jsonb LANGUAGE plpgsql AS $$
DECLARE
    j job;
    v_name text := jsonb_build_array(n.queue, p_id)::text;
    v_completed boolean;
BEGIN
    SELECT * INTO j FROM job WHERE queue = n.queue AND id = p_id;
    IF j.id IS NULL AND p_inserted ? v_name THEN  -- the first of the two ended in its insert, and its record is deleted
        RETURN (p_inserted -> v_name) || '{"status": "duplicate", "position": null, "depth": null}';
    ELSIF (j.id IS NULL OR j.state IN ({{unsuccessful}})) AND NOT p_inserted ? v_name THEN
        RAISE unique_violation;  -- it has ended since, and can be replaced: look again
    END IF;
    IF n.reply IS NOT NULL AND NOT p_user_transaction AND NOT is_terminal(j.state) AND n.reply <> ALL (j.reply) THEN
        UPDATE job SET reply = reply || n.reply WHERE queue = j.queue AND id = j.id;
        IF j.state = 'queued' THEN
            PERFORM notify('queue:' || j.queue);  -- a claim may have passed over it meanwhile
        END IF;
    END IF;
    v_completed := j.state = 'succeeded' AND p_now < j.result_until;
    RETURN jsonb_build_object('status', CASE WHEN v_completed THEN 'completed' ELSE 'duplicate' END, 'id', j.id,
        'state', j.state, 'arrival', j.arrival, 'generation', j.generation, 'codec', j.codec, 'lane', j.lane,
        'result', CASE WHEN v_completed THEN base64(j.result) END);
END $$;
