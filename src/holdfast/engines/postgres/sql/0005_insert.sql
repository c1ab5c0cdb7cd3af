-- Enqueue, the parts: deciding who is there already, counting the room, writing.

-- Whether a record turns away a new job of its name: while it lives, and having succeeded until then.
CREATE FUNCTION is_taken_1(j job, p_until bigint, p_now bigint) RETURNS boolean LANGUAGE sql IMMUTABLE AS $$
    SELECT NOT is_terminal_1(j.state) OR (j.state = 'succeeded' AND p_now < p_until)
$$;

-- The id of the job that turns away a new one of this key.
CREATE FUNCTION key_holder_1(p_queue text, p_task text, p_key text, p_now bigint) RETURNS text LANGUAGE sql AS $$
    SELECT j.id FROM unique_key AS k JOIN job AS j ON j.queue = k.queue AND j.id = k.id
    WHERE k.queue = p_queue AND k.task = p_task AND k.unique_key = p_key
        AND j.task = p_task AND j.unique_key = p_key AND is_taken_1(j, j.key_until, p_now)
$$;

-- Lock what a group may replace, the ended jobs and the keys that it names, in order, so that what is decided of them
-- holds. Who lives is not locked: its worker may hold its lane, for which this group may wait. In a user's transaction only
-- keys that nobody holds: who is there already is answered without a lock.
CREATE FUNCTION lock_names_1(p_jobs jsonb, p_joined boolean) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
    k record;
BEGIN
    IF NOT p_joined THEN  -- one by one, by name: planned as one statement, it may read all that have ended
        FOR k IN
            SELECT DISTINCT n.queue, n.id FROM jsonb_populate_recordset(NULL::new_job, p_jobs) AS n
            WHERE NOT coalesce(n.fresh_id, false) ORDER BY 1, 2
        LOOP
            PERFORM 1 FROM job WHERE queue = k.queue AND id = k.id AND is_terminal_1(state) IS TRUE FOR UPDATE;
        END LOOP;
    END IF;
    FOR k IN
        SELECT DISTINCT n.queue, coalesce(n.task, '') AS task, n.unique_key
        FROM jsonb_populate_recordset(NULL::new_job, p_jobs) AS n WHERE n.unique_key IS NOT NULL ORDER BY 1, 2, 3
    LOOP
        IF p_joined AND EXISTS (
            SELECT 1 FROM unique_key AS u JOIN job AS j ON j.queue = u.queue AND j.id = u.id
            WHERE u.queue = k.queue AND u.task = k.task AND u.unique_key = k.unique_key AND NOT is_terminal_1(j.state))
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

-- Keys that were locked and then not taken.
CREATE FUNCTION free_keys_1(p_jobs jsonb) RETURNS void LANGUAGE plpgsql AS $$
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

CREATE FUNCTION lane_depth_1(p_queue text, p_lane text) RETURNS bigint LANGUAGE sql AS $$
    SELECT coalesce((SELECT depth FROM lane WHERE queue = p_queue AND lane = p_lane), 0)
$$;

-- How many numbers a pool's sequence has given.
CREATE FUNCTION turn_1(p_turns text) RETURNS bigint LANGUAGE plpgsql AS $$
DECLARE
    v_turn bigint;
BEGIN
    EXECUTE format('SELECT CASE WHEN is_called THEN last_value ELSE 0 END FROM %I', p_turns) INTO v_turn;
    RETURN v_turn;
END $$;

-- The turns of the pools that a group goes to, as long as a limit may refuse it.
CREATE FUNCTION turns_1(p_group jsonb) RETURNS jsonb LANGUAGE sql AS $$
    SELECT CASE WHEN jsonb_array_length(coalesce(p_group -> 'limits', '[]')) > 0 THEN (
        SELECT jsonb_object_agg(p.turns, turn_1(p.turns)) FROM pool AS p WHERE p.name IN (
            SELECT n.queue FROM jsonb_populate_recordset(NULL::new_job, p_group -> 'jobs') AS n
            WHERE n.pool IS NOT NULL)) END
$$;

-- A refused group gives back the turns it has taken. Two that do so at once may give one lane two jobs in a row: no more.
CREATE FUNCTION give_turns_back_1(p_turns jsonb) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
    v record;
BEGIN
    FOR v IN SELECT key AS turns, value::bigint AS turn FROM jsonb_each(coalesce(p_turns, '{}')) LOOP
        PERFORM setval(v.turns::regclass, greatest(v.turn, 1), v.turn > 0);
    END LOOP;
END $$;

-- The live jobs of the queues that have a limit.
CREATE FUNCTION depths_1(p_limits jsonb) RETURNS jsonb LANGUAGE sql AS $$
    SELECT coalesce(jsonb_object_agg(queue, depth_1(queue)), '{}') FROM (
        SELECT DISTINCT value ->> 'queue' AS queue FROM jsonb_array_elements(p_limits)
        WHERE value ->> 'lane' IS NULL AND NOT coalesce((value ->> 'each_lane')::boolean, false)) AS limited
$$;

-- Refuse the group if it does not fit. Limits are looked at in the order given; depths are those before it came. Null for
-- `p_new`: all of them are.
CREATE FUNCTION check_room_1(p_limits jsonb, p_jobs jsonb, p_new boolean[], p_lanes text[], p_depths jsonb) RETURNS void
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
                PERFORM refuse_1(json_build_object(
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
            v_depth := lane_depth_1(l.queue, v_lane.lane);
            IF v_depth + v_lane.more > l."limit" THEN
                PERFORM refuse_1(json_build_object(
                    'type', 'full', 'queue', l.queue, 'lane', v_lane.lane, 'depth', v_depth, 'limit', l."limit"));
            END IF;
        END LOOP;
    END LOOP;
END $$;

-- Whether something beside its due time may hold the job back.
CREATE FUNCTION is_held_1(n new_job) RETURNS boolean LANGUAGE sql IMMUTABLE AS $$
    SELECT n.lane IS NOT NULL OR n.pool IS NOT NULL OR jsonb_array_length(coalesce(n.parents, '[]')) > 0
$$;

-- Write a new job; a record of its id that has lapsed, failed or been cancelled is replaced. `p_arriving`: it gets its
-- place, and its arrival, when the lanes of its group are locked. Answers how the replaced one had ended, if there was one.
CREATE FUNCTION insert_1(n new_job, p_arriving boolean, p_now bigint) RETURNS text LANGUAGE plpgsql AS $$
DECLARE
    j job := record_of_1(n, nextval('arrival'), p_now);
    v_old job;
BEGIN
    IF p_arriving THEN
        j.hold := 8;
        j.state := 'blocked';
    END IF;
    SELECT * INTO v_old FROM job WHERE queue = j.queue AND id = j.id FOR UPDATE;
    IF NOT is_terminal_1(v_old.state) THEN
        RAISE unique_violation;  -- it has come since we looked
    END IF;
    IF EXISTS (SELECT 1 FROM chore WHERE kind = 'end' AND queue = j.queue AND id = j.id) THEN
        -- It ended in a user's transaction, and its lane has not heard of it: that must come first.
        PERFORM late_ends_1(j.queue, ARRAY[j.id], p_now);
        SELECT * INTO v_old FROM job WHERE queue = j.queue AND id = j.id FOR UPDATE;
    END IF;
    IF v_old.id IS NOT NULL AND EXISTS (
        SELECT 1 FROM chore WHERE kind = 'end' AND queue = j.queue AND id = j.id)
    THEN  -- it ended in a user's transaction, and its lane and pool have not heard of it yet
        PERFORM late_ends_1(j.queue, ARRAY[j.id], p_now);
        SELECT * INTO v_old FROM job WHERE queue = j.queue AND id = j.id FOR UPDATE;
    END IF;
    IF v_old.awaited THEN  -- the old life's children hear of its end, not of the new one's
        PERFORM resolve_one_1(j.queue, j.id, NULL, p_now);
        SELECT * INTO v_old FROM job WHERE queue = j.queue AND id = j.id FOR UPDATE;
    END IF;
    IF v_old.id IS NULL THEN
        INSERT INTO job VALUES (j.*);
        PERFORM move_1(j.queue, NULL, j.state);
        IF j.state IN ('queued', 'scheduled') THEN
            PERFORM ring_1('queue:' || j.queue);
        END IF;
    ELSE
        IF v_old.unique_key IS NOT NULL THEN
            DELETE FROM unique_key WHERE queue = j.queue AND task = v_old.task
                AND unique_key = v_old.unique_key AND id = j.id;
        END IF;
        j.generation := v_old.generation + 1;
        j.fence := v_old.fence;
        PERFORM put_1(v_old.state, j);
        IF j.state = 'scheduled' THEN
            PERFORM ring_1('queue:' || j.queue);
        END IF;
    END IF;
    IF j.unique_key IS NOT NULL THEN
        PERFORM lock_key_1(j.queue, j.task, j.unique_key);
        IF key_holder_1(j.queue, j.task, j.unique_key, p_now) <> j.id THEN
            RAISE unique_violation;  -- somebody has taken it since we looked, without a lock: look again
        END IF;
        UPDATE unique_key SET id = j.id WHERE queue = j.queue AND task = j.task AND unique_key = j.unique_key;
    END IF;
    RETURN v_old.state;
END $$;

-- The lanes of a group's new jobs: as they say, or as their pool chooses. All of them are locked, in order.
CREATE FUNCTION place_group_1(p_jobs jsonb, p_new boolean[], p_now bigint) RETURNS text[] LANGUAGE plpgsql AS $$
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
            j := place_1(j, (n.pool ->> 'lanes')::bigint);
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
        PERFORM lock_lane_1(v.queue, v.lane, p_now);
    END LOOP;
    RETURN v_lanes;
END $$;

-- Bring a job that was inserted to its place, and answer for it. Its lane is locked.
CREATE FUNCTION settle_in_1(
    n new_job, p_held boolean, p_lane text, p_was jsonb, p_joined boolean, p_now bigint
) RETURNS jsonb LANGUAGE plpgsql AS $$
DECLARE
    j job;
    v_left int := 0;
    v_failed boolean := false;
    v_position bigint;
BEGIN
    SELECT * INTO j FROM job WHERE queue = n.queue AND id = n.id;
    IF p_held AND p_joined THEN
        PERFORM leave_for_later_1(n, j);
    ELSIF p_held THEN
        j.hold := j.hold & ~8;
        j.arrival := nextval('arrival');
        IF jsonb_array_length(coalesce(n.parents, '[]')) > 0 THEN
            SELECT * INTO v_left, v_failed FROM link_1(j.queue, j.id, j.arrival, n.parents, p_was);
            j.parents_left := v_left;
            IF v_left > 0 OR v_failed THEN
                j.hold := j.hold | 2;
            END IF;
        END IF;
        IF p_lane IS NULL THEN
            j := rest_1(j, false, p_now);
        ELSE
            v_position := lane_depth_1(j.queue, p_lane);
            j := admit_1(j, p_now);
        END IF;
        PERFORM put_1('blocked', j);
        IF j.state = 'scheduled' THEN
            PERFORM ring_1('queue:' || j.queue);
        END IF;
    END IF;
    IF v_failed THEN
        PERFORM finish_1(j.state, j, 'cancelled', 'parent_failed', 'a parent had failed before',
            NULL, NULL, NULL, p_now);
        j.state := 'cancelled';
    END IF;
    RETURN jsonb_build_object('status', 'created', 'id', j.id, 'state', j.state, 'arrival', j.arrival,
        'generation', j.generation, 'position', v_position, 'depth', v_position + 1);
END $$;

-- A job that came in a user's transaction, and that something may hold back: it is admitted after the commit.
CREATE FUNCTION leave_for_later_1(n new_job, j job) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
    v_left int;
BEGIN
    INSERT INTO edge
    SELECT DISTINCT ON (1, 2) value -> 'job' ->> 'queue', value -> 'job' ->> 'id', j.queue, j.id, j.arrival,
        coalesce((value ->> 'any_end')::boolean, false)
    FROM jsonb_array_elements(coalesce(n.parents, '[]')) WITH ORDINALITY ORDER BY 1, 2, ordinality;
    GET DIAGNOSTICS v_left = ROW_COUNT;
    IF v_left > 0 THEN
        UPDATE job SET parents_left = v_left, hold = hold | 2 WHERE queue = j.queue AND id = j.id;
    END IF;
    IF n.pool IS NOT NULL THEN  -- a pool's very first job declares it: later ones find it there, and lock nothing
        PERFORM declare_pool_1(j.queue, (n.pool ->> 'lanes')::bigint);
    END IF;
    INSERT INTO chore (kind, queue, lane, id, arrival) VALUES ('arrive', j.queue, j.lane, j.id, j.arrival);
    PERFORM ring_1('queue:' || j.queue);
END $$;

-- The job that was there first answers for the new one, and will tell its process too.
CREATE FUNCTION answer_existing_1(
    n new_job, p_id text, p_inserted jsonb, p_joined boolean, p_now bigint
) RETURNS jsonb LANGUAGE plpgsql AS $$
DECLARE
    j job;
    v_name text := jsonb_build_array(n.queue, p_id)::text;
    v_completed boolean;
BEGIN
    SELECT * INTO j FROM job WHERE queue = n.queue AND id = p_id;
    IF j.id IS NULL AND p_inserted ? v_name THEN  -- the first of the two ended as it came, and was kept for no time at all
        RETURN (p_inserted -> v_name) || '{"status": "duplicate", "position": null, "depth": null}';
    ELSIF (j.id IS NULL OR j.state IN ('failed', 'cancelled')) AND NOT p_inserted ? v_name THEN
        RAISE unique_violation;  -- it has ended since we looked, and can be replaced: look again
    END IF;
    IF n.reply IS NOT NULL AND NOT p_joined AND NOT is_terminal_1(j.state) AND n.reply <> ALL (j.reply) THEN
        UPDATE job SET reply = reply || n.reply WHERE queue = j.queue AND id = j.id;
        IF j.state = 'queued' THEN
            PERFORM ring_1('queue:' || j.queue);  -- a claim may have passed over it meanwhile
        END IF;
    END IF;
    v_completed := j.state = 'succeeded' AND p_now < j.result_until;
    RETURN jsonb_build_object('status', CASE WHEN v_completed THEN 'completed' ELSE 'duplicate' END, 'id', j.id,
        'state', j.state, 'arrival', j.arrival, 'generation', j.generation, 'codec', j.codec,
        'result', CASE WHEN v_completed THEN base64_1(j.result) END);
END $$;
