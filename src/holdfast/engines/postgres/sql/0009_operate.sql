-- What an operator does to single jobs: cancel, requeue, trigger, delete. Each answers per job, in the order asked.
--
-- Locks: cancel and trigger take lanes, then jobs. Requeue is an arrival, and takes what arrivals take, in their order:
-- jobs that have ended, keys, lanes. Delete moves nobody in a lane, and takes jobs alone.

CREATE FUNCTION ids_1(p_request jsonb) RETURNS text[] LANGUAGE sql IMMUTABLE AS $$
    SELECT ARRAY(SELECT jsonb_array_elements_text(p_request -> 'ids'))
$$;

CREATE FUNCTION operated_1(p_status text, p_state text DEFAULT NULL) RETURNS text LANGUAGE sql IMMUTABLE AS $$
    SELECT json_build_object('status', p_status, 'state', p_state)::text
$$;

-- Lock jobs alone, or lanes, in order. Each is looked up on its own: for an ordered list of names the planner likes to
-- read the whole queue. A claim passes over jobs that are locked: so whoever locks one that is ready rings for it when it is
-- done, or else it would wait until somebody looks by chance.
CREATE FUNCTION lock_rows_1(p_queue text, p_ids text[]) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
    v_ready boolean;
BEGIN
    SELECT bool_or(j.state = 'queued') INTO v_ready
    FROM (SELECT DISTINCT id COLLATE "C" AS id FROM unnest(p_ids) AS id ORDER BY 1) AS i
    CROSS JOIN LATERAL (SELECT state FROM job WHERE queue = p_queue AND id = i.id FOR UPDATE) AS j;
    IF v_ready THEN
        PERFORM ring_1('queue:' || p_queue);
    END IF;
END $$;

CREATE FUNCTION lock_lane_rows_1(p_queue text, p_lanes text[]) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    PERFORM 1 FROM (SELECT DISTINCT lane COLLATE "C" AS lane FROM unnest(p_lanes) AS lane ORDER BY 1) AS i
    CROSS JOIN LATERAL (SELECT 1 FROM lane WHERE queue = p_queue AND lane = i.lane FOR UPDATE) AS l;
END $$;

-- Lock lanes and jobs, those that are free at once, and answer which. Null: none is, or not all and all were wanted.
--
-- Who holds a job may hold it for long: a transaction of a user's. So nobody waits for a job with a lane in hand, for
-- which others would wait in turn. The block is there for what its end gives back: the lanes.
CREATE FUNCTION lock_free_1(p_queue text, p_ids text[], p_all boolean) RETURNS text[] LANGUAGE plpgsql AS $$
DECLARE
    v_free text[];
BEGIN
    PERFORM lock_lane_rows_1(p_queue, ARRAY(
        SELECT lane FROM job WHERE queue = p_queue AND id = ANY (p_ids) AND lane IS NOT NULL));
    v_free := ARRAY(
        SELECT j.id FROM (SELECT DISTINCT id COLLATE "C" AS id FROM unnest(p_ids) AS id ORDER BY 1) AS i
        CROSS JOIN LATERAL (SELECT id FROM job WHERE queue = p_queue AND id = i.id FOR UPDATE SKIP LOCKED) AS j);
    IF v_free = '{}' OR (p_all AND cardinality(v_free) < (
        SELECT count(*) FROM job WHERE queue = p_queue AND id = ANY (p_ids)))
    THEN
        RAISE SQLSTATE 'HF001';
    END IF;
    PERFORM lock_rows_1(p_queue, v_free);  -- it has them already
    RETURN v_free;
EXCEPTION WHEN SQLSTATE 'HF001' THEN
    RETURN NULL;
END $$;

-- Wait until nobody holds these jobs, and hold nothing afterwards.
CREATE FUNCTION await_rows_1(p_queue text, p_ids text[]) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    PERFORM lock_rows_1(p_queue, p_ids);
    RAISE SQLSTATE 'HF001';
EXCEPTION WHEN SQLSTATE 'HF001' THEN
    NULL;
END $$;

-- Lock jobs with their lanes, all of those that exist.
CREATE FUNCTION lock_jobs_1(p_queue text, p_ids text[]) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    WHILE EXISTS (SELECT 1 FROM job WHERE queue = p_queue AND id = ANY (p_ids)) LOOP
        EXIT WHEN lock_free_1(p_queue, p_ids, true) IS NOT NULL;
        PERFORM await_rows_1(p_queue, p_ids);
    END LOOP;
END $$;

-- Cancel

CREATE FUNCTION cancel_1(p_request jsonb, p_offset bigint, p_floor bigint) RETURNS text
LANGUAGE plpgsql SECURITY DEFINER SET search_path = {schema}, pg_temp
SET enable_seqscan = off SET jit = off SET lock_timeout = '2s' SET plan_cache_mode = force_custom_plan AS $$
DECLARE
    v_queue text := p_request ->> 'queue';
    v_ids text[] := ids_1(p_request);
    v_id text;
    v_now bigint := now_1(p_offset, p_floor);
    v_answers text[] := '{}';
BEGIN
    PERFORM begin_1();
    PERFORM chores_1(v_queue, true, v_now);
    PERFORM lock_pool_1(v_queue, min(epoch)) FROM job WHERE queue = v_queue AND id = ANY (v_ids) AND epoch > 0
        HAVING count(*) > 0;
    PERFORM lock_jobs_1(v_queue, v_ids);
    v_now := now_1(p_offset, v_now);
    FOREACH v_id IN ARRAY v_ids LOOP
        v_answers := v_answers || cancel_one_1(v_queue, v_id, coalesce(p_request ->> 'note', ''), v_now);
        PERFORM resolve_1(v_now);
    END LOOP;
    PERFORM close_1();
    RETURN reply_1(v_now, '"jobs":[' || array_to_string(v_answers, ',') || ']');
END $$;

CREATE FUNCTION cancel_one_1(p_queue text, p_id text, p_note text, p_now bigint) RETURNS text LANGUAGE plpgsql AS $$
DECLARE
    j job := lock_job_1(p_queue, p_id);
BEGIN
    IF j.id IS NULL THEN
        RETURN operated_1('not_found');
    ELSIF is_terminal_1(j.state) THEN
        RETURN operated_1('finished', j.state);
    ELSIF j.token IS NULL THEN
        PERFORM finish_1(j.state, j, 'cancelled', 'asked', p_note, NULL, NULL, NULL, p_now);
        RETURN operated_1('cancelled', 'cancelled');
    END IF;
    IF NOT j.cancel_asked THEN  -- the first note stays
        j.cancel_asked := true;
        j.cancel_note := p_note;
        PERFORM put_1(j.state, j);
    END IF;
    PERFORM ring_1('worker:' || j.owner);
    RETURN operated_1('requested', j.state);
END $$;

-- Requeue

CREATE FUNCTION requeue_1(p_request jsonb, p_offset bigint, p_floor bigint) RETURNS text
LANGUAGE plpgsql SECURITY DEFINER SET search_path = {schema}, pg_temp
SET enable_seqscan = off SET jit = off SET lock_timeout = '2s' SET plan_cache_mode = force_custom_plan AS $$
DECLARE
    v_queue text := p_request ->> 'queue';
    v_limits jsonb := coalesce(p_request -> 'limits', '[]');
    v_ids text[] := ids_1(p_request);
    v_now bigint := now_1(p_offset, p_floor);
    v_jobs text;
    k record;
BEGIN
    PERFORM begin_1();
    PERFORM lock_limits_1(jsonb_build_array(jsonb_build_object('limits', v_limits)));
    PERFORM all_chores_1(v_queue, v_now);
    PERFORM lock_rows_1(v_queue, v_ids);
    v_now := now_1(p_offset, v_now);
    PERFORM late_ends_1(v_queue, v_ids, v_now);
    FOR k IN
        SELECT DISTINCT task, unique_key FROM job
        WHERE queue = v_queue AND id = ANY (v_ids) AND unique_key IS NOT NULL AND state IN ('failed', 'cancelled')
        ORDER BY 1, 2
    LOOP
        PERFORM lock_key_1(v_queue, k.task, k.unique_key);
    END LOOP;
    PERFORM lock_pool_1(name, 4611686018427387904) FROM pool WHERE name = v_queue;  -- as every arrival: before the lanes
    PERFORM lock_lane_rows_1(v_queue, ARRAY(
        SELECT lane_again_1(j) FROM job AS j
        WHERE queue = v_queue AND id = ANY (v_ids) AND state IN ('failed', 'cancelled')));
    SELECT string_agg(requeue_one_1(v_queue, i.id, v_limits, v_now), ',' ORDER BY place) INTO v_jobs
    FROM unnest(v_ids) WITH ORDINALITY AS i (id, place);
    PERFORM close_1();
    RETURN reply_1(v_now, '"jobs":[' || coalesce(v_jobs, '') || ']');
END $$;

CREATE FUNCTION requeue_one_1(p_queue text, p_id text, p_limits jsonb, p_now bigint) RETURNS text LANGUAGE plpgsql AS $$
DECLARE
    j job;
    v_from text;
    v_refusal text;
BEGIN
    SELECT * INTO j FROM job WHERE queue = p_queue AND id = p_id FOR UPDATE;
    v_from := j.state;
    IF j.id IS NULL THEN
        RETURN operated_1('not_found');
    ELSIF v_from NOT IN ('failed', 'cancelled') THEN
        RETURN operated_1('wrong_state', v_from);
    END IF;
    IF NOT told_children_1(j, p_now) THEN
        v_refusal := 'not_found';
        v_from := NULL;
    ELSIF j.unique_key IS NOT NULL THEN
        PERFORM lock_key_1(j.queue, j.task, j.unique_key);
        IF key_holder_1(j.queue, j.task, j.unique_key, p_now) IS NOT NULL THEN
            v_refusal := 'key_taken';
        END IF;
    END IF;
    IF v_refusal IS NULL AND is_full_1(j, p_limits) THEN
        v_refusal := 'queue_full';
    END IF;
    IF v_refusal IS NOT NULL THEN
        DELETE FROM unique_key
        WHERE queue = j.queue AND task = j.task AND unique_key = j.unique_key AND id = '';  -- locked, and not taken
        RETURN operated_1(v_refusal, v_from);
    END IF;
    j := revived_1(j, p_now);
    IF j.epoch > 0 AND EXISTS (SELECT 1 FROM pool WHERE name = j.queue) THEN
        j := place_1(j, 1);  -- where its key belongs now; the stored number of lanes counts
    END IF;
    IF j.lane IS NOT NULL THEN
        PERFORM lock_lane_1(j.queue, j.lane, p_now);
        j := admit_1(j, p_now);
    ELSE
        j := rest_1(j, false, p_now);
    END IF;
    PERFORM put_1(v_from, j);
    IF j.unique_key IS NOT NULL THEN
        UPDATE unique_key SET id = j.id WHERE queue = j.queue AND task = j.task AND unique_key = j.unique_key;
    END IF;
    RETURN operated_1('done', j.state);
END $$;

-- A record that begins another life, at the tail: what the last one has left of itself goes, but for the history.
CREATE FUNCTION revived_1(INOUT j job, p_now bigint) LANGUAGE plpgsql AS $$
BEGIN
    j.generation := j.generation + 1;
    j.arrival := nextval('arrival');
    j.due := p_now;
    j.hold := 0;
    j.attempt := 0;
    j.losses := 0;
    j.started := NULL;
    j.last_started := NULL;
    j.progress := NULL;
    j.cancel_asked := false;
    j.cancel_note := '';
    j.finished := NULL;
    j.reason := NULL;
    j.note := '';
    j.result := NULL;
    j.visible_until := 0;
    j.result_until := 0;
    j.key_until := 0;
    j.granted := false;  -- its fence is one of the lane that it was in, which need not be the next one's
    j.awaited := false;
END $$;

-- Whether a limit has no room for a job that is to come back, where that will be.
CREATE FUNCTION is_full_1(j job, p_limits jsonb) RETURNS boolean LANGUAGE plpgsql AS $$
DECLARE
    l jsonb;
    v_lane text := lane_again_1(j);
    v_depth bigint;
BEGIN
    FOR l IN SELECT value FROM jsonb_array_elements(p_limits) WHERE value ->> 'queue' = j.queue LOOP
        IF l ->> 'lane' IS NULL AND NOT coalesce((l ->> 'each_lane')::boolean, false) THEN
            PERFORM close_1();
            v_depth := depth_1(j.queue);
        ELSIF v_lane IS NULL OR v_lane <> coalesce(l ->> 'lane', v_lane) THEN
            CONTINUE;
        ELSE
            v_depth := lane_depth_1(j.queue, v_lane);
        END IF;
        IF v_depth >= (l ->> 'limit')::bigint THEN
            RETURN true;
        END IF;
    END LOOP;
    RETURN false;
END $$;

-- The lane that `place_1` would give the job now.
CREATE FUNCTION lane_again_1(j job) RETURNS text LANGUAGE plpgsql AS $$
DECLARE
    p pool;
BEGIN
    IF j.epoch > 0 THEN
        SELECT * INTO p FROM pool WHERE name = j.queue;
    END IF;
    IF p.name IS NULL THEN
        RETURN j.lane;
    END IF;
    RETURN (coalesce(j.pool_hash, turn_1(p.turns)) % p.lanes)::text;
END $$;

-- Lock a key, whether somebody has it or not. A row that this makes says nothing until it gets an id.
CREATE FUNCTION lock_key_1(p_queue text, p_task text, p_key text) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    LOOP
        INSERT INTO unique_key VALUES (p_queue, p_task, p_key, '') ON CONFLICT DO NOTHING;
        PERFORM 1 FROM unique_key WHERE queue = p_queue AND task = p_task AND unique_key = p_key FOR UPDATE;
        EXIT WHEN FOUND;  -- else its job was deleted meanwhile
    END LOOP;
END $$;

-- Children that still wait hear of an end before its record goes or lives again. False: that was all that kept it.
CREATE FUNCTION told_children_1(j job, p_now bigint) RETURNS boolean LANGUAGE plpgsql AS $$
BEGIN
    IF EXISTS (SELECT 1 FROM edge WHERE parent_queue = j.queue AND parent_id = j.id) THEN
        PERFORM resolve_one_1(j.queue, j.id, NULL, p_now);
        RETURN EXISTS (SELECT 1 FROM job WHERE queue = j.queue AND id = j.id);
    END IF;
    RETURN true;
END $$;

-- Users' transactions that end jobs leave it to others to tell lane and pool. These two see to it that nobody takes
-- such a job away before that: do what is left to do, as the only one until the end of this call; and once the jobs are
-- locked, what was left since.
CREATE FUNCTION all_chores_1(p_queue text, p_now bigint) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    PERFORM pg_advisory_xact_lock(hashtextextended(current_schema || ' chores ' || p_queue, 0));
    PERFORM chores_1(p_queue, true, p_now);
END $$;

CREATE FUNCTION late_ends_1(p_queue text, p_ids text[], p_now bigint) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
    c chore;
BEGIN
    FOR c IN
        DELETE FROM chore WHERE kind = 'end' AND queue = p_queue AND id = ANY (p_ids) RETURNING *
    LOOP
        PERFORM after_end_1(c, p_now);
    END LOOP;
END $$;

-- Trigger: due now.

CREATE FUNCTION trigger_1(p_request jsonb, p_offset bigint, p_floor bigint) RETURNS text
LANGUAGE plpgsql SECURITY DEFINER SET search_path = {schema}, pg_temp
SET enable_seqscan = off SET jit = off SET lock_timeout = '2s' SET plan_cache_mode = force_custom_plan AS $$
DECLARE
    v_queue text := p_request ->> 'queue';
    v_ids text[] := ids_1(p_request);
    v_now bigint := now_1(p_offset, p_floor);
    v_jobs text;
BEGIN
    PERFORM begin_1();
    PERFORM chores_1(v_queue, true, v_now);
    PERFORM lock_jobs_1(v_queue, v_ids);
    v_now := now_1(p_offset, v_now);
    SELECT string_agg(trigger_one_1(v_queue, i.id, v_now), ',' ORDER BY place) INTO v_jobs
    FROM unnest(v_ids) WITH ORDINALITY AS i (id, place);
    PERFORM close_1();
    RETURN reply_1(v_now, '"jobs":[' || coalesce(v_jobs, '') || ']');
END $$;

CREATE FUNCTION trigger_one_1(p_queue text, p_id text, p_now bigint) RETURNS text LANGUAGE plpgsql AS $$
DECLARE
    j job := lock_job_1(p_queue, p_id);
    v_from text := j.state;
BEGIN
    IF j.id IS NULL THEN
        RETURN operated_1('not_found');
    ELSIF v_from = 'queued' THEN
        RETURN operated_1('done', v_from);
    ELSIF v_from NOT IN ('scheduled', 'retrying') THEN
        RETURN operated_1('wrong_state', v_from);
    END IF;
    j.due := p_now;
    j := rest_1(j, lane_paused_1(j.queue, j.lane), p_now);
    PERFORM put_1(v_from, j);
    RETURN operated_1('done', j.state);
END $$;

-- Delete: ended jobs, with key and history.

CREATE FUNCTION delete_1(p_request jsonb, p_offset bigint, p_floor bigint) RETURNS text
LANGUAGE plpgsql SECURITY DEFINER SET search_path = {schema}, pg_temp
SET enable_seqscan = off SET jit = off SET lock_timeout = '2s' SET plan_cache_mode = force_custom_plan AS $$
DECLARE
    v_queue text := p_request ->> 'queue';
    v_ids text[] := ids_1(p_request);
    v_id text;
    v_now bigint := now_1(p_offset, p_floor);
    j job;
    v_answers text[] := '{}';
BEGIN
    PERFORM begin_1();
    PERFORM all_chores_1(v_queue, v_now);
    PERFORM lock_rows_1(v_queue, v_ids);
    v_now := now_1(p_offset, v_now);
    PERFORM late_ends_1(v_queue, v_ids, v_now);
    FOREACH v_id IN ARRAY v_ids LOOP
        SELECT * INTO j FROM job WHERE queue = v_queue AND id = v_id FOR UPDATE;
        IF j.id IS NULL THEN
            v_answers := v_answers || operated_1('not_found');
        ELSIF NOT is_terminal_1(j.state) THEN
            v_answers := v_answers || operated_1('wrong_state', j.state);
        ELSE
            IF told_children_1(j, v_now) THEN
                PERFORM drop_1(v_queue, v_id);
            END IF;
            v_answers := v_answers || operated_1('done', j.state);
        END IF;
    END LOOP;
    PERFORM close_1();
    RETURN reply_1(v_now, '"jobs":[' || array_to_string(v_answers, ',') || ']');
END $$;
