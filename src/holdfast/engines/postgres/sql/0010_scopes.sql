-- What an operator changes beside the life of single jobs: what was given to them (amend), and whole queues and lanes:
-- pause, resume, clear, emptied. And schedules.

-- Amend: what was given is changed. State and place stay, so the lane need not know.

CREATE FUNCTION amend_1(p_request jsonb, p_offset bigint, p_floor bigint) RETURNS text
LANGUAGE plpgsql SECURITY DEFINER SET search_path = {schema}, pg_temp
SET enable_seqscan = off SET jit = off SET lock_timeout = '2s' SET plan_cache_mode = force_custom_plan AS $$
DECLARE
    v_queue text := p_request ->> 'queue';
    v_ids text[] := ids_1(p_request);
    v_now bigint;
    v_jobs text;
BEGIN
    PERFORM begin_1();
    PERFORM lock_rows_1(v_queue, v_ids);
    v_now := now_1(p_offset, p_floor);
    SELECT string_agg(amend_one_1(v_queue, i.id, p_request, v_now), ',' ORDER BY place) INTO v_jobs
    FROM unnest(v_ids) WITH ORDINALITY AS i (id, place);
    RETURN reply_1(v_now, '"jobs":[' || coalesce(v_jobs, '') || ']');
END $$;

CREATE FUNCTION amend_one_1(p_queue text, p_id text, p_request jsonb, p_now bigint) RETURNS text LANGUAGE plpgsql AS $$
DECLARE
    j job;
    v_retention bigint := (p_request ->> 'retention')::bigint;
    v_result_ttl bigint := (p_request ->> 'result_ttl')::bigint;
    v_due bigint := (p_request ->> 'due')::bigint;
    v_reply text := p_request ->> 'reply';
    v_key bigint;
BEGIN
    SELECT * INTO j FROM job WHERE queue = p_queue AND id = p_id FOR UPDATE;
    IF j.id IS NULL THEN
        RETURN operated_1('not_found');
    ELSIF (p_request ->> 'priority' IS NOT NULL AND is_terminal_1(j.state))
        OR (v_due IS NOT NULL AND j.state NOT IN ('scheduled', 'blocked', 'retrying'))
    THEN
        RETURN operated_1('wrong_state', j.state);
    END IF;
    IF is_terminal_1(j.state) THEN  -- its clocks run anew from when it finished; the key follows if its scope says so
        IF v_retention IS NOT NULL THEN
            j.visible_until := later_1(j.finished, v_retention);
        END IF;
        IF v_result_ttl IS NOT NULL THEN
            j.result_until := later_1(j.finished, v_result_ttl);
        END IF;
        IF j.unique_key IS NULL OR j.key_until > p_now THEN  -- else somebody may have taken it since
            j.key_until := key_until_1(j.key_scope, j.state, j.finished, j.result_until, j.created, j.key_window);
        END IF;
    ELSE
        j.given_retention := coalesce(v_retention, j.given_retention);
        j.given_result_ttl := coalesce(v_result_ttl, j.given_result_ttl);
        j.priority := coalesce((p_request ->> 'priority')::smallint, j.priority);
        IF v_due IS NOT NULL THEN
            j.due := greatest(p_now, v_due);
            PERFORM ring_1('queue:' || p_queue);
        END IF;
        IF v_reply IS NOT NULL AND v_reply <> ALL (j.reply) THEN
            j.reply := j.reply || v_reply;
        END IF;
    END IF;
    PERFORM put_1(j.state, j);
    RETURN operated_1('done', j.state);
END $$;

-- Pause and resume

CREATE FUNCTION pause_1(p_request jsonb, p_offset bigint, p_floor bigint) RETURNS text
LANGUAGE plpgsql SECURITY DEFINER SET search_path = {schema}, pg_temp SET enable_seqscan = off SET jit = off AS $$
BEGIN
    RETURN set_paused_1(p_request ->> 'queue', p_request ->> 'lane', true, p_offset, p_floor);
END $$;

CREATE FUNCTION resume_1(p_request jsonb, p_offset bigint, p_floor bigint) RETURNS text
LANGUAGE plpgsql SECURITY DEFINER SET search_path = {schema}, pg_temp SET enable_seqscan = off SET jit = off AS $$
BEGIN
    RETURN set_paused_1(p_request ->> 'queue', p_request ->> 'lane', false, p_offset, p_floor);
END $$;

-- Throw the switch, and count the live jobs in the scope. A queue's is a flag that claims read.
CREATE FUNCTION set_paused_1(p_queue text, p_lane text, p_paused boolean, p_offset bigint, p_floor bigint) RETURNS text
LANGUAGE plpgsql AS $$
DECLARE
    v_now bigint := now_1(p_offset, p_floor);
    v_changed boolean;
    v_count bigint;
BEGIN
    PERFORM begin_1();
    PERFORM declare_queue_1(p_queue);
    IF p_lane IS NOT NULL THEN
        PERFORM chores_1(p_queue, true, v_now);
        PERFORM lane_paused_1(p_queue, p_lane);
        v_now := now_1(p_offset, v_now);
        PERFORM lock_lane_1(p_queue, p_lane, v_now);
        v_changed := set_lane_paused_1(p_queue, p_lane, p_paused, v_now);
        v_count := lane_depth_1(p_queue, p_lane);
        PERFORM close_1();
    ELSE
        UPDATE queue SET paused = p_paused WHERE queue = p_queue AND paused <> p_paused;
        v_changed := FOUND;
        v_now := now_1(p_offset, v_now);
        IF v_changed AND NOT p_paused THEN
            PERFORM ring_1('queue:' || p_queue);
        END IF;
        v_count := depth_1(p_queue);
    END IF;
    RETURN reply_1(v_now, '"count":' || v_count || ',"changed":' || v_changed);
END $$;

-- A lane's head that waits to run moves with the switch. A head that is leased is left alone, and not waited for: while
-- the lane is locked it can become queued for nobody else.
CREATE FUNCTION set_lane_paused_1(p_queue text, p_lane text, p_paused boolean, p_now bigint) RETURNS boolean
LANGUAGE plpgsql AS $$
DECLARE
    v_head text;
    j job;
    v_from text;
BEGIN
    UPDATE lane SET paused = p_paused WHERE queue = p_queue AND lane = p_lane AND paused <> p_paused
    RETURNING head INTO v_head;
    IF NOT FOUND THEN
        RETURN false;
    END IF;
    SELECT * INTO j FROM job WHERE queue = p_queue AND id = v_head AND (state = 'queued' OR hold = 4) FOR UPDATE;
    IF FOUND THEN
        v_from := j.state;
        j := rest_1(j, p_paused, p_now);
        PERFORM put_1(v_from, j);
    END IF;
    RETURN true;
END $$;

-- Clear: every live job of a queue or lane ends as cancelled, leased ones too: their tokens are void.
--
-- Beside the command's own fields: `chunk` ends no more than so many, the latest first, and none that arrived after
-- `up_to`. The answer says `up_to`, to be sent along with the next call, and whether there is `more`. Without `chunk`
-- all go at once.
--
-- Between the chunks of a queue nothing of it is claimed: `queue.clearing` tells claims until when to take nothing, and
-- it runs out by itself if whoever clears goes away. Of a lane only the head can be claimed, and it goes last.
CREATE FUNCTION clear_1(p_request jsonb, p_offset bigint, p_floor bigint) RETURNS text
LANGUAGE plpgsql SECURITY DEFINER SET search_path = {schema}, pg_temp
SET enable_seqscan = off SET enable_hashjoin = off SET enable_mergejoin = off SET jit = off
SET lock_timeout = '2s' AS $$
DECLARE
    v_queue text := p_request ->> 'queue';
    v_lane text := p_request ->> 'lane';
    v_chunk bigint := (p_request ->> 'chunk')::bigint;
    v_up_to bigint := coalesce((p_request ->> 'up_to')::bigint, (SELECT last_value FROM arrival));
    v_now bigint := now_1(p_offset, p_floor);
    v_epoch bigint := 0;
    v_ids text[];
    v_free text[];
    v_count bigint := 0;
    v_more boolean;
BEGIN
    PERFORM begin_1();
    PERFORM chores_1(v_queue, true, v_now);
    -- Before the lanes: the pool's size stays now.
    PERFORM lock_pool_1(v_queue, CASE old_live WHEN 0 THEN epoch ELSE 0 END) FROM pool WHERE name = v_queue;
    v_epoch := coalesce((SELECT epoch FROM pool WHERE name = v_queue), 0);
    LOOP
        v_ids := live_1(v_queue, v_lane, v_up_to, v_chunk);
        EXIT WHEN v_ids = '{}';
        v_free := lock_free_1(v_queue, v_ids, false);
        IF v_free IS NULL THEN
            PERFORM await_rows_1(v_queue, v_ids[1:1]);  -- somebody holds every single one
            CONTINUE;
        END IF;
        v_now := now_1(p_offset, v_now);
        v_count := v_count + clear_plain_1(v_queue, v_free, v_up_to, v_epoch, v_now)
            + clear_rest_1(v_queue, v_free, v_up_to, v_now);
        EXIT WHEN v_chunk IS NOT NULL;
    END LOOP;
    PERFORM resolve_1(v_now);
    v_more := live_1(v_queue, v_lane, v_up_to, 1) <> '{}';
    IF v_chunk IS NOT NULL AND v_lane IS NULL THEN
        PERFORM set_clearing_1(v_queue, v_more, v_now);
    END IF;
    PERFORM close_1();
    RETURN reply_1(v_now, '"count":' || v_count || ',"more":' || v_more || ',"up_to":' || v_up_to);
END $$;

-- Live jobs of a queue or lane, the latest first; a lane's head behind all that it holds back.
CREATE FUNCTION live_1(p_queue text, p_lane text, p_up_to bigint, p_most bigint) RETURNS text[]
LANGUAGE plpgsql SET enable_bitmapscan = off SET enable_sort = off AS $$
DECLARE
    v_ids text[];
BEGIN
    IF p_lane IS NOT NULL THEN
        v_ids := ARRAY(
            SELECT id FROM job
            WHERE queue = p_queue AND lane = p_lane AND state NOT IN ('succeeded', 'failed', 'cancelled')
                AND arrival <= p_up_to AND hold & 1 = 1 ORDER BY arrival DESC LIMIT p_most);
        IF cardinality(v_ids) = p_most THEN
            RETURN v_ids;
        END IF;
        RETURN v_ids || ARRAY(
            SELECT id FROM job
            WHERE queue = p_queue AND lane = p_lane AND state NOT IN ('succeeded', 'failed', 'cancelled')
                AND arrival <= p_up_to AND hold & 1 = 0 ORDER BY arrival DESC LIMIT p_most - cardinality(v_ids));
    END IF;
    RETURN ARRAY(
        -- A step of its own: by their tokens, since there are few of them. The planner may take the queue for small.
        WITH leased AS MATERIALIZED (SELECT queue, id, arrival FROM job WHERE token IS NOT NULL)
        SELECT live.id FROM (
            SELECT w.id, w.arrival FROM unnest('{scheduled, blocked, queued, retrying}'::text[]) AS s (state)
            CROSS JOIN LATERAL (
                SELECT id, arrival FROM job
                WHERE queue = p_queue AND state = s.state AND state NOT IN ('assigned', 'running')
                    AND arrival <= p_up_to ORDER BY arrival DESC LIMIT p_most
            ) AS w
            UNION ALL
            SELECT id, arrival FROM leased WHERE queue = p_queue AND arrival <= p_up_to
        ) AS live ORDER BY live.arrival DESC LIMIT p_most);
END $$;

-- Those whose end lets nobody else go on, in one statement: outside lanes, or not at the head of one; of the size that
-- their pool has now, if of a pool at all. They are locked, but may have ended or come back before that.
CREATE FUNCTION clear_plain_1(p_queue text, p_ids text[], p_up_to bigint, p_epoch bigint, p_now bigint) RETURNS bigint
LANGUAGE plpgsql AS $$
DECLARE
    v_ended json;
    v_count bigint;
    v record;
BEGIN
    WITH plain AS MATERIALIZED (
        SELECT id, state, reply, CASE WHEN hold & 8 = 0 THEN lane END AS lane FROM job
        WHERE queue = p_queue AND id = ANY (p_ids) AND arrival <= p_up_to
            AND state IN ('scheduled', 'blocked', 'queued', 'assigned', 'retrying') AND NOT awaited
            AND (coalesce(given_retention, 1) > 0 OR coalesce(given_result_ttl, 1) > 0)
            -- Who is still arriving is known to neither lane nor pool.
            AND (hold & 8 = 8 OR ((lane IS NULL OR hold & 1 = 1) AND epoch IN (0, p_epoch)))
    ), ended AS (
        UPDATE job AS j SET
            state = 'cancelled', hold = 0, parents_left = 0, token = NULL, lease_expires = NULL, finished = p_now,
            reason = 'cleared', note = '', result = NULL, key_until = p_now,
            visible_until = later_1(p_now, coalesce(j.given_retention, 86400000000)),
            result_until = later_1(p_now, coalesce(j.given_result_ttl, 3600000000))
        FROM plain AS p WHERE j.queue = p_queue AND j.id = p.id
    ), shorter AS (
        UPDATE lane AS l SET depth = l.depth - gone.jobs, cancelled = l.cancelled + gone.jobs
        FROM (SELECT lane, count(*) AS jobs FROM plain WHERE lane IS NOT NULL GROUP BY lane) AS gone
        WHERE l.queue = p_queue AND l.lane = gone.lane
    )
    SELECT count(*), json_agg(json_build_array(state, reply)) INTO v_count, v_ended FROM plain;
    FOR v IN SELECT e ->> 0 AS state, count(*)::int AS jobs FROM json_array_elements(v_ended) AS e GROUP BY 1 LOOP
        PERFORM move_1(p_queue, v.state, 'cancelled', v.jobs), ring_1('room:' || p_queue);
    END LOOP;
    FOR v IN
        SELECT DISTINCT process FROM json_array_elements(v_ended) AS e, json_array_elements_text(e -> 1) AS process
    LOOP
        PERFORM ring_1('reply:' || v.process);
    END LOOP;
    RETURN v_count;
END $$;

-- The others, one by one, the latest first: so lanes promote little of what is about to go.
CREATE FUNCTION clear_rest_1(p_queue text, p_ids text[], p_up_to bigint, p_now bigint) RETURNS bigint
LANGUAGE plpgsql AS $$
DECLARE
    v_count bigint := 0;
    v_id text;
    j job;
    v_from text;
BEGIN
    FOR v_id IN
        SELECT id FROM job
        WHERE queue = p_queue AND id = ANY (p_ids) AND arrival <= p_up_to AND NOT is_terminal_1(state)
        ORDER BY arrival DESC
    LOOP
        SELECT * INTO j FROM job WHERE queue = p_queue AND id = v_id;
        v_from := j.state;
        IF v_from = 'running' THEN
            j := end_attempt_1(j, 'cancelled', NULL, p_now);
        END IF;
        PERFORM finish_1(v_from, j, 'cancelled', 'cleared', '', NULL, NULL, NULL, p_now);
        v_count := v_count + 1;
        IF v_count % 500 = 0 THEN  -- what is gathered in settings is copied with every line
            PERFORM close_1(), set_config('holdfast.emptied', '', true);
        END IF;
    END LOOP;
    RETURN v_count;
END $$;

-- Keep claims off for as long as the next chunk may take to come, or let them in again.
CREATE FUNCTION set_clearing_1(p_queue text, p_more boolean, p_now bigint) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    IF p_more THEN
        INSERT INTO queue AS q (queue, clearing) VALUES (p_queue, p_now + 10000000)
        ON CONFLICT (queue) DO UPDATE SET clearing = excluded.clearing;
    ELSE
        UPDATE queue SET clearing = 0 WHERE queue = p_queue AND clearing > 0;
        IF FOUND THEN
            PERFORM ring_1('queue:' || p_queue);
        END IF;
    END IF;
END $$;

-- Emptied: compare the number of ends with the one answered last. True for one caller per drain: who comes second waits
-- for the first and then finds the mark moved.
CREATE FUNCTION emptied_1(p_request jsonb, p_offset bigint, p_floor bigint) RETURNS text
LANGUAGE plpgsql SECURITY DEFINER SET search_path = {schema}, pg_temp SET enable_seqscan = off SET jit = off AS $$
DECLARE
    v_queue text := p_request ->> 'queue';
    v_ends bigint;
    v_live bigint;
    v_emptied boolean := false;
BEGIN
    PERFORM begin_1();
    -- In one statement, so that both numbers are of one instant.
    SELECT coalesce(sum(ends), 0), coalesce(sum(jobs) FILTER (WHERE NOT is_terminal_1(state)), 0) INTO v_ends, v_live
    FROM counts WHERE queue = v_queue;
    IF v_live = 0 AND v_ends > coalesce((SELECT emptied_at FROM queue WHERE queue = v_queue), 0) THEN
        INSERT INTO queue AS q (queue, emptied_at) VALUES (v_queue, v_ends)
        ON CONFLICT (queue) DO UPDATE SET emptied_at = excluded.emptied_at WHERE q.emptied_at < excluded.emptied_at;
        v_emptied := FOUND;
    END IF;
    RETURN reply_1(now_1(p_offset, p_floor), '"emptied":' || v_emptied);
END $$;

-- Schedules

CREATE FUNCTION schedules_reply_1(p_now bigint) RETURNS text LANGUAGE plpgsql AS $$
DECLARE
    v_schedules json;
BEGIN
    SELECT json_agg(record ORDER BY name) INTO v_schedules FROM schedule;
    RETURN reply_1(p_now, '"schedules":' || coalesce(v_schedules, '[]'));
END $$;

CREATE FUNCTION put_schedule_1(p_request jsonb, p_offset bigint, p_floor bigint) RETURNS text
LANGUAGE plpgsql SECURITY DEFINER SET search_path = {schema}, pg_temp SET jit = off AS $$
DECLARE
    v_record jsonb := p_request -> 'schedule';
BEGIN
    PERFORM begin_1();
    INSERT INTO schedule (name, record) VALUES (v_record ->> 'name', v_record)
    ON CONFLICT (name) DO UPDATE SET record = excluded.record;
    RETURN schedules_reply_1(now_1(p_offset, p_floor));
END $$;

CREATE FUNCTION drop_schedule_1(p_request jsonb, p_offset bigint, p_floor bigint) RETURNS text
LANGUAGE plpgsql SECURITY DEFINER SET search_path = {schema}, pg_temp SET jit = off AS $$
BEGIN
    PERFORM begin_1();
    DELETE FROM schedule WHERE name = p_request ->> 'name';
    RETURN schedules_reply_1(now_1(p_offset, p_floor));
END $$;

CREATE FUNCTION schedules_1(p_request jsonb, p_offset bigint, p_floor bigint) RETURNS text
LANGUAGE plpgsql SECURITY DEFINER SET search_path = {schema}, pg_temp SET jit = off AS $$
BEGIN
    PERFORM begin_1();
    RETURN schedules_reply_1(now_1(p_offset, p_floor));
END $$;
