-- What an operator does to single jobs: cancel, requeue, trigger, delete, amend. Each answers per job, in the order
-- of the request.
--
-- Locks: cancel and trigger take lanes, then jobs. Requeue brings a job, and takes what an enqueue takes, in its
-- order: ended jobs, keys, pools, lanes. Delete and amend move no job in a lane, and take jobs alone.

CREATE FUNCTION ids_of(p_request jsonb) RETURNS text[] LANGUAGE sql IMMUTABLE AS $$
    SELECT ARRAY(SELECT jsonb_array_elements_text(p_request -> 'ids'))
$$;

CREATE FUNCTION operator_answer(p_status text, p_state text DEFAULT NULL) RETURNS text LANGUAGE sql IMMUTABLE AS $$
    SELECT json_build_object('status', p_status, 'state', p_state)::text
$$;

-- Lock jobs alone, in order. Each is looked up on its own: for an ordered list of names the planner tends to read the
-- whole queue. A claim passes over locked jobs; so if one of them is ready, its queue is notified after the commit.
CREATE FUNCTION lock_rows(p_queue text, p_ids text[]) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
    v_ready boolean;
BEGIN
    SELECT bool_or(j.state = 'queued') INTO v_ready
    FROM (SELECT DISTINCT id COLLATE "C" AS id FROM unnest(p_ids) AS id ORDER BY 1) AS i
    CROSS JOIN LATERAL (SELECT state FROM job WHERE queue = p_queue AND id = i.id FOR UPDATE) AS j;
    IF v_ready THEN
        PERFORM notify('queue:' || p_queue);
    END IF;
END $$;

-- Lock lanes and jobs, those that no other call has locked, and answer which. Null: none is free, or not all are and
-- all were requested.
--
-- A user's transaction may hold a job for long. So no call waits for a job while it holds a lane that others would
-- wait for in turn. The end of the block releases the lanes.
CREATE FUNCTION lock_free(p_queue text, p_ids text[], p_all boolean) RETURNS text[] LANGUAGE plpgsql AS $$
DECLARE
    v_free text[];
BEGIN
    PERFORM lock_lane_rows(p_queue, ARRAY(
        SELECT lane FROM job WHERE queue = p_queue AND id = ANY (p_ids) AND lane IS NOT NULL));
    v_free := ARRAY(
        SELECT j.id FROM (SELECT DISTINCT id COLLATE "C" AS id FROM unnest(p_ids) AS id ORDER BY 1) AS i
        CROSS JOIN LATERAL (SELECT id FROM job WHERE queue = p_queue AND id = i.id FOR UPDATE SKIP LOCKED) AS j);
    IF v_free = '{}' OR (p_all AND cardinality(v_free) < (
        SELECT count(*) FROM job WHERE queue = p_queue AND id = ANY (p_ids)))
    THEN
        RAISE SQLSTATE 'HF001';
    END IF;
    PERFORM lock_rows(p_queue, v_free);  -- it has them already
    RETURN v_free;
EXCEPTION WHEN SQLSTATE 'HF001' THEN
    RETURN NULL;
END $$;

-- Wait until no other call holds these jobs, and hold nothing afterwards.
CREATE FUNCTION wait_for_rows(p_queue text, p_ids text[]) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    PERFORM lock_rows(p_queue, p_ids);
    RAISE SQLSTATE 'HF001';
EXCEPTION WHEN SQLSTATE 'HF001' THEN
    NULL;
END $$;

-- Lock jobs with their lanes, all of those that exist.
CREATE FUNCTION lock_jobs(p_queue text, p_ids text[]) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
    c_most CONSTANT int := 100;  -- rounds; each further one needs another call that locks one of the jobs in between
BEGIN
    FOR i IN 1 .. c_most LOOP
        IF NOT EXISTS (SELECT 1 FROM job WHERE queue = p_queue AND id = ANY (p_ids))
            OR lock_free(p_queue, p_ids, true) IS NOT NULL
        THEN
            RETURN;
        END IF;
        PERFORM wait_for_rows(p_queue, p_ids);
    END LOOP;
    PERFORM give_up_looking('one of these jobs');
END $$;

-- Lock live jobs with their lanes, after the deferred work of their queue. `p_ends`: they may end, so their pool comes
-- first. Answers the time of the call.
CREATE FUNCTION lock_live(
    p_queue text, p_ids text[], p_ends boolean, p_offset bigint, p_not_before_us bigint
) RETURNS bigint LANGUAGE plpgsql AS $$
DECLARE
    v_now bigint := call_time(p_offset, p_not_before_us);
BEGIN
    PERFORM run_deferred(p_queue, true, v_now);
    IF p_ends THEN
        PERFORM lock_pool(p_queue, min(epoch)) FROM job WHERE queue = p_queue AND id = ANY (p_ids) AND epoch > 0
            HAVING count(*) > 0;
    END IF;
    PERFORM lock_jobs(p_queue, p_ids);
    RETURN call_time(p_offset, v_now);
END $$;

-- Lock ended jobs that are to be deleted or requeued, after their lanes and pools have counted their ends. Answers the
-- time of the call.
CREATE FUNCTION lock_ended(p_queue text, p_ids text[], p_offset bigint, p_not_before_us bigint) RETURNS bigint
LANGUAGE plpgsql AS $$
DECLARE
    v_now bigint := call_time(p_offset, p_not_before_us);
BEGIN
    PERFORM run_all_deferred(p_queue, p_ids, v_now);
    PERFORM lock_rows(p_queue, p_ids);
    v_now := call_time(p_offset, v_now);
    PERFORM run_deferred_ends(p_queue, p_ids, v_now);
    RETURN v_now;
END $$;

CREATE FUNCTION cancel(p_request jsonb, p_offset bigint, p_not_before_us bigint) RETURNS text
LANGUAGE plpgsql {{entry}}
SET enable_seqscan = off SET jit = off SET plan_cache_mode = force_custom_plan AS $$
DECLARE
    v_queue text := p_request ->> 'queue';
    v_ids text[] := ids_of(p_request);
    v_id text;
    v_now bigint;
    v_answers text[] := '{}';
BEGIN
    PERFORM begin_call();
    v_now := lock_live(v_queue, v_ids, true, p_offset, p_not_before_us);
    FOREACH v_id IN ARRAY v_ids LOOP
        v_answers := v_answers || cancel_one(v_queue, v_id, coalesce(p_request ->> 'note', ''), v_now);
        PERFORM resolve(v_now);
    END LOOP;
    PERFORM write_tally();
    RETURN reply(v_now, '"jobs":[' || array_to_string(v_answers, ',') || ']');
END $$;

-- X3: absent or ended.
-- X1: a waiting job ends at once.
-- X2: a leased job is marked, and the first note stays.
-- N4: its worker is notified.
CREATE FUNCTION cancel_one(p_queue text, p_id text, p_note text, p_now bigint) RETURNS text LANGUAGE plpgsql AS $$
DECLARE
    j job := lock_job(p_queue, p_id);
BEGIN
    IF j.id IS NULL THEN
        RETURN operator_answer('not_found');
    ELSIF is_terminal(j.state) THEN
        RETURN operator_answer('finished', j.state);
    ELSIF j.token IS NULL THEN
        PERFORM cancel_waiting(j, 'asked', p_note, p_now);
        RETURN operator_answer('cancelled', 'cancelled');
    END IF;
    IF NOT j.cancel_asked THEN  -- the first note stays
        j.cancel_asked := true;
        j.cancel_note := p_note;
        PERFORM put_job(j.state, j);
    END IF;
    PERFORM notify('worker:' || j.owner);
    RETURN operator_answer('requested', j.state);
END $$;

CREATE FUNCTION requeue(p_request jsonb, p_offset bigint, p_not_before_us bigint) RETURNS text
LANGUAGE plpgsql {{entry}}
SET enable_seqscan = off SET jit = off SET plan_cache_mode = force_custom_plan AS $$
DECLARE
    v_queue text := p_request ->> 'queue';
    v_limits jsonb := coalesce(p_request -> 'limits', '[]');
    v_ids text[] := ids_of(p_request);
    v_now bigint;
    v_jobs text;
    k record;
BEGIN
    PERFORM begin_call();
    PERFORM lock_limits(jsonb_build_array(jsonb_build_object('limits', v_limits)));
    v_now := lock_ended(v_queue, v_ids, p_offset, p_not_before_us);
    FOR k IN
        SELECT DISTINCT task, unique_key FROM job
        WHERE queue = v_queue AND id = ANY (v_ids) AND unique_key IS NOT NULL AND state IN ({{unsuccessful}})
        ORDER BY 1, 2
    LOOP
        PERFORM lock_key(v_queue, k.task, k.unique_key);
    END LOOP;
    PERFORM lock_pool(name, {{forever}}) FROM pool WHERE name = v_queue;  -- as every arrival: before the lanes
    PERFORM lock_lane_rows(v_queue, ARRAY(
        SELECT lane_again(j) FROM job AS j
        WHERE queue = v_queue AND id = ANY (v_ids) AND state IN ({{unsuccessful}})));
    SELECT string_agg(requeue_one(v_queue, i.id, v_limits, v_now), ',' ORDER BY place) INTO v_jobs
    FROM unnest(v_ids) WITH ORDINALITY AS i (id, place);
    PERFORM write_tally();
    RETURN reply(v_now, '"jobs":[' || coalesce(v_jobs, '') || ']');
END $$;

-- RQ1: failed or cancelled jobs whose key is free and for which there is room.
-- P7: the children get this end before the job is requeued.
-- P8: only its edges may have kept the record.
-- L6: at the tail.
CREATE FUNCTION requeue_one(p_queue text, p_id text, p_limits jsonb, p_now bigint) RETURNS text LANGUAGE plpgsql AS $$
DECLARE
    j job;
    v_from text;
    v_refusal text;
    v_lane text;
BEGIN
    SELECT * INTO j FROM job WHERE queue = p_queue AND id = p_id FOR UPDATE;
    v_from := j.state;
    IF j.id IS NULL THEN
        RETURN operator_answer('not_found');
    ELSIF v_from NOT IN ({{unsuccessful}}) THEN
        RETURN operator_answer('wrong_state', v_from);
    END IF;
    IF NOT resolve_children(j, p_now) THEN
        v_refusal := 'not_found';
        v_from := NULL;
    ELSIF j.unique_key IS NOT NULL THEN
        PERFORM lock_key(j.queue, j.task, j.unique_key);
        IF key_holder(j.queue, j.task, j.unique_key, p_now) IS NOT NULL THEN
            v_refusal := 'key_taken';
        END IF;
    END IF;
    v_lane := lane_again(j, p_limits);
    IF v_refusal IS NULL AND is_full(j, p_limits, v_lane) THEN
        v_refusal := 'queue_full';
    END IF;
    IF v_refusal IS NOT NULL THEN
        DELETE FROM unique_key
        WHERE queue = j.queue AND task = j.task AND unique_key = j.unique_key AND id = '';  -- locked, and not taken
        RETURN operator_answer(v_refusal, v_from);
    END IF;
    j := revive(j, p_now);
    IF j.epoch > 0 AND EXISTS (SELECT 1 FROM pool WHERE name = j.queue) THEN
        j := place(j, 1, v_lane);  -- the stored number of lanes counts
        IF j.pool_hash IS NULL THEN
            PERFORM pass_turn(j.queue, v_lane);
        END IF;
    END IF;
    IF j.lane IS NOT NULL THEN
        PERFORM lock_lane(j.queue, j.lane, p_now);
        j := admit(j, p_now);
    ELSE
        j := as_waiting(j, false, p_now);
    END IF;
    PERFORM put_job(v_from, j);
    IF j.unique_key IS NOT NULL THEN
        UPDATE unique_key SET id = j.id WHERE queue = j.queue AND task = j.task AND unique_key = j.unique_key;
    END IF;
    RETURN operator_answer('done', j.state);
END $$;

-- The record of a job that is requeued: its next generation.
-- RQ2: everything about the last generation is cleared, except the history.
-- H3, P9, T3, W5: so history and last error stay, the child has no parents, and its fence grows.
CREATE FUNCTION revive(INOUT j job, p_now bigint) LANGUAGE plpgsql AS $$
BEGIN
    j.generation := j.generation + 1;
    j.arrival := nextval('arrival');
    j.due := p_now;
    j.hold := 0;
    j.attempt := 0;
    j.losses := 0;
    j.reaped_token := NULL;
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
    j.granted := false;  -- its fence counts for the lane that it was in, which may be another one now
    j.awaited := false;
END $$;

-- RQ1: true if a limit has no room for a job that is to come back, in the lane where that will be.
CREATE FUNCTION is_full(j job, p_limits jsonb, p_lane text) RETURNS boolean LANGUAGE plpgsql AS $$
DECLARE
    l jsonb;
    v_depth bigint;
BEGIN
    FOR l IN SELECT value FROM jsonb_array_elements(p_limits) WHERE value ->> 'queue' = j.queue LOOP
        IF l ->> 'lane' IS NULL AND NOT coalesce((l ->> 'each_lane')::boolean, false) THEN
            PERFORM write_tally();
            v_depth := depth(j.queue);
        ELSIF p_lane IS NULL OR p_lane <> coalesce(l ->> 'lane', p_lane) THEN
            CONTINUE;
        ELSE
            v_depth := lane_depth(j.queue, p_lane);
        END IF;
        IF v_depth >= (l ->> 'limit')::bigint THEN
            RETURN true;
        END IF;
    END LOOP;
    RETURN false;
END $$;

CREATE FUNCTION trigger(p_request jsonb, p_offset bigint, p_not_before_us bigint) RETURNS text
LANGUAGE plpgsql {{entry}}
SET enable_seqscan = off SET jit = off SET plan_cache_mode = force_custom_plan AS $$
DECLARE
    v_queue text := p_request ->> 'queue';
    v_ids text[] := ids_of(p_request);
    v_now bigint;
    v_jobs text;
BEGIN
    PERFORM begin_call();
    v_now := lock_live(v_queue, v_ids, false, p_offset, p_not_before_us);
    SELECT string_agg(trigger_one(v_queue, i.id, v_now), ',' ORDER BY place) INTO v_jobs
    FROM unnest(v_ids) WITH ORDINALITY AS i (id, place);
    PERFORM write_tally();
    RETURN reply(v_now, '"jobs":[' || coalesce(v_jobs, '') || ']');
END $$;

-- TR1: a waiting job is due now. A queued one is answered as done.
CREATE FUNCTION trigger_one(p_queue text, p_id text, p_now bigint) RETURNS text LANGUAGE plpgsql AS $$
DECLARE
    j job := lock_job(p_queue, p_id);
    v_from text := j.state;
BEGIN
    IF j.id IS NULL THEN
        RETURN operator_answer('not_found');
    ELSIF v_from = 'queued' THEN
        RETURN operator_answer('done', v_from);
    ELSIF v_from NOT IN ({{by_due}}) THEN
        RETURN operator_answer('wrong_state', v_from);
    END IF;
    j.due := p_now;
    j := as_waiting(j, lane_paused(j.queue, j.lane), p_now);
    PERFORM put_job(v_from, j);
    RETURN operator_answer('done', j.state);
END $$;

-- DL1: ended jobs only. Children that still wait get the end first.
CREATE FUNCTION delete(p_request jsonb, p_offset bigint, p_not_before_us bigint) RETURNS text
LANGUAGE plpgsql {{entry}}
SET enable_seqscan = off SET jit = off SET plan_cache_mode = force_custom_plan AS $$
DECLARE
    v_queue text := p_request ->> 'queue';
    v_ids text[] := ids_of(p_request);
    v_now bigint;
    v_jobs text;
BEGIN
    PERFORM begin_call();
    v_now := lock_ended(v_queue, v_ids, p_offset, p_not_before_us);
    SELECT string_agg(delete_one(v_queue, i.id, v_now), ',' ORDER BY place) INTO v_jobs
    FROM unnest(v_ids) WITH ORDINALITY AS i (id, place);
    PERFORM write_tally();
    RETURN reply(v_now, '"jobs":[' || coalesce(v_jobs, '') || ']');
END $$;

-- DL1: ended jobs only.
-- P7: children that still wait get the end first.
CREATE FUNCTION delete_one(p_queue text, p_id text, p_now bigint) RETURNS text LANGUAGE plpgsql AS $$
DECLARE
    j job;
BEGIN
    SELECT * INTO j FROM job WHERE queue = p_queue AND id = p_id FOR UPDATE;
    IF j.id IS NULL THEN
        RETURN operator_answer('not_found');
    ELSIF NOT is_terminal(j.state) THEN
        RETURN operator_answer('wrong_state', j.state);
    END IF;
    IF resolve_children(j, p_now) THEN
        PERFORM drop_job(p_queue, p_id);
    END IF;
    RETURN operator_answer('done', j.state);
END $$;

-- State and place stay, so the lane is not locked.
CREATE FUNCTION amend(p_request jsonb, p_offset bigint, p_not_before_us bigint) RETURNS text
LANGUAGE plpgsql {{entry}}
SET enable_seqscan = off SET jit = off SET plan_cache_mode = force_custom_plan AS $$
DECLARE
    v_queue text := p_request ->> 'queue';
    v_ids text[] := ids_of(p_request);
    v_now bigint;
    v_jobs text;
BEGIN
    PERFORM begin_call();
    PERFORM lock_rows(v_queue, v_ids);
    v_now := call_time(p_offset, p_not_before_us);
    SELECT string_agg(amend_one(v_queue, i.id, p_request, v_now), ',' ORDER BY place) INTO v_jobs
    FROM unnest(v_ids) WITH ORDINALITY AS i (id, place);
    RETURN reply(v_now, '"jobs":[' || coalesce(v_jobs, '') || ']');
END $$;

-- AM4: if one part is refused, nothing of that job changes.
-- AM1: the lifetimes of an ended job are counted again from its finish. A key that has lapsed stays free: another job
-- may have taken it.
-- AM2: the priority of a live job; the due time of one that is not ready.
-- AM3: a reply address is added to a live job.
CREATE FUNCTION amend_one(p_queue text, p_id text, p_request jsonb, p_now bigint) RETURNS text LANGUAGE plpgsql AS $$
DECLARE
    j job;
    v_retention bigint := (p_request ->> 'retention')::bigint;
    v_result_ttl bigint := (p_request ->> 'result_ttl')::bigint;
    v_due bigint := (p_request ->> 'due')::bigint;
    v_reply text := p_request ->> 'reply';
BEGIN
    SELECT * INTO j FROM job WHERE queue = p_queue AND id = p_id FOR UPDATE;
    IF j.id IS NULL THEN
        RETURN operator_answer('not_found');
    ELSIF (p_request ->> 'priority' IS NOT NULL AND is_terminal(j.state))
        OR (v_due IS NOT NULL AND (j.state NOT IN ({{waiting}}) OR j.state = 'queued'))
    THEN
        RETURN operator_answer('wrong_state', j.state);
    END IF;
    IF is_terminal(j.state) THEN  -- its lifetimes count again from its finish; the key follows if its scope says so
        IF v_retention IS NOT NULL THEN
            j.visible_until := later(j.finished, v_retention);
        END IF;
        IF v_result_ttl IS NOT NULL THEN
            j.result_until := later(j.finished, v_result_ttl);
        END IF;
        IF j.unique_key IS NULL OR j.key_until > p_now THEN  -- else another job may have taken it
            j.key_until := key_until(j.key_scope, j.state, j.finished, j.result_until, j.created, j.key_window);
        END IF;
    ELSE
        j.given_retention := coalesce(v_retention, j.given_retention);
        j.given_result_ttl := coalesce(v_result_ttl, j.given_result_ttl);
        j.priority := coalesce((p_request ->> 'priority')::smallint, j.priority);
        IF v_due IS NOT NULL THEN
            j.due := greatest(p_now, v_due);
            PERFORM notify('queue:' || p_queue);
        END IF;
        IF v_reply IS NOT NULL AND v_reply <> ALL (j.reply) THEN
            j.reply := j.reply || v_reply;
        END IF;
    END IF;
    PERFORM put_job(j.state, j);
    RETURN operator_answer('done', j.state);
END $$;
