-- One call being carried out: its time, what it has moved, whom it will tell.
--
-- The rules below mirror those of `engines/ledger`, file by file; the differential machine compares the two, answer by
-- answer. Every function's name ends in its version, and a function that has been released is never altered: a later
-- migration adds the next version beside it, so that workers of two releases can run at once.
--
-- What a call gathers on its way (state changes to count, bells to ring, lanes that ran empty) stands in settings that
-- live as long as the transaction, one JSON value per line: functions here have no other common variable.
--
-- A function of one query is in PL/pgSQL too if it reads a table: in SQL it would be parsed and planned at every call. And
-- what every call does is written as assignments, also where the value is of no interest: PL/pgSQL evaluates an expression
-- in a tenth of the time that a PERFORM takes, which is a query.

CREATE FUNCTION begin_1(p_joined boolean DEFAULT false) RETURNS text LANGUAGE plpgsql AS $$
BEGIN
    RETURN set_config('holdfast.moves', '', true) || set_config('holdfast.rings', '', true)
        || set_config('holdfast.emptied', '', true) || set_config('holdfast.joined', p_joined::text, true);
END $$;

-- The time of the call: read once, after its locks. `p_offset` is 0 in production; `p_floor` is the latest time this
-- caller has been told, so that for nobody time goes back.
CREATE FUNCTION now_1(p_offset bigint, p_floor bigint) RETURNS bigint LANGUAGE sql AS $$
    SELECT greatest((extract(epoch FROM clock_timestamp()) * 1000000)::bigint + p_offset, p_floor)
$$;

-- When an instant and a duration together lie beyond all instants, they are the last one.
CREATE FUNCTION later_1(p_start bigint, p_duration bigint) RETURNS bigint LANGUAGE sql IMMUTABLE AS $$
    SELECT least(p_start + p_duration, 4611686018427387904)
$$;

CREATE FUNCTION ring_1(p_bell text) RETURNS text LANGUAGE plpgsql AS $$
DECLARE
    v_line text := to_json(p_bell)::text || E'\n';
    v_rung text := current_setting('holdfast.rings', true);
BEGIN
    IF strpos(v_rung, v_line) > 0 THEN
        RETURN v_rung;
    END IF;
    RETURN set_config('holdfast.rings', v_rung || v_line, true);
END $$;

CREATE FUNCTION is_terminal_1(p_state text) RETURNS boolean LANGUAGE sql IMMUTABLE AS $$
    SELECT p_state IN ('succeeded', 'failed', 'cancelled')
$$;

-- Book a change of state of so many jobs; null stands for "not there".
CREATE FUNCTION move_1(p_queue text, p_from text, p_to text, p_jobs int DEFAULT 1) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
    v_lines text := '';
BEGIN
    IF p_from IS NOT DISTINCT FROM p_to OR p_jobs = 0 THEN
        RETURN;
    END IF;
    IF p_from IS NOT NULL THEN
        v_lines := json_build_array(p_queue, p_from, -p_jobs, 0)::text || E'\n';
    END IF;
    IF p_to IS NOT NULL THEN
        v_lines := v_lines
            || json_build_array(p_queue, p_to, p_jobs, CASE WHEN is_terminal_1(p_to) THEN p_jobs ELSE 0 END)::text || E'\n';
    END IF;
    v_lines := current_setting('holdfast.moves', true) || v_lines;
    PERFORM set_config('holdfast.moves', v_lines, true);
    IF length(v_lines) > 20000 THEN
        PERFORM close_1();  -- each line would be copied over and over
    END IF;
END $$;

-- Write down what was moved: at most one line per queue and state, however much the call did.
CREATE FUNCTION close_1() RETURNS text LANGUAGE plpgsql AS $$
DECLARE
    v_moves text := current_setting('holdfast.moves', true);
BEGIN
    IF v_moves <> '' THEN
        INSERT INTO tally (queue, state, jobs, ends)
        SELECT line ->> 0, line ->> 1, sum((line ->> 2)::int), sum((line ->> 3)::int)
        FROM (SELECT string_to_table(rtrim(v_moves, E'\n'), E'\n')::json AS line) AS lines
        GROUP BY 1, 2
        HAVING sum((line ->> 2)::int) <> 0 OR sum((line ->> 3)::int) <> 0;
    END IF;
    RETURN set_config('holdfast.moves', '', true);
END $$;

-- A setting's lines as one JSON array.
CREATE FUNCTION lines_1(p_setting text) RETURNS text LANGUAGE sql AS $$
    SELECT '[' || replace(rtrim(current_setting(p_setting, true), E'\n'), E'\n', ',') || ']'
$$;

-- The live jobs of a queue.
CREATE FUNCTION depth_1(p_queue text) RETURNS bigint LANGUAGE plpgsql STABLE AS $$
BEGIN
    RETURN (
        SELECT coalesce(sum(jobs), 0)::bigint FROM (
            SELECT jobs FROM counter WHERE queue = p_queue AND NOT is_terminal_1(state)
            UNION ALL
            SELECT jobs FROM tally WHERE queue = p_queue AND NOT is_terminal_1(state)
        ) AS both_of);
END $$;

CREATE FUNCTION declare_queue_1(p_queue text) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO queue (queue) VALUES (p_queue) ON CONFLICT DO NOTHING;
END $$;

-- Bytes as JSON carries them.
CREATE FUNCTION base64_1(p_data bytea) RETURNS text LANGUAGE sql IMMUTABLE AS $$
    SELECT replace(encode(p_data, 'base64'), E'\n', '')
$$;

-- A job as it waits from now on: blocked if something holds it, else by its due time. The head of a paused lane is held by
-- the pause only from when it would be queued: its due time runs on. (`p_lane_paused` is read under the lane's lock.)
CREATE FUNCTION rest_1(INOUT j job, p_lane_paused boolean, p_now bigint) LANGUAGE plpgsql AS $$
BEGIN
    j.hold := j.hold & ~4;
    IF j.hold <> 0 THEN
        j.state := 'blocked';
    ELSIF j.due > p_now THEN
        j.state := 'scheduled';
    ELSIF j.lane IS NOT NULL AND p_lane_paused THEN
        j.hold := 4;
        j.state := 'blocked';
    ELSE
        j.state := 'queued';
    END IF;
END $$;

-- Write a job that is there already. The only UPDATE of whole jobs; the two hot ones are in `exchange`.
CREATE FUNCTION put_1(p_from text, j job) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    UPDATE job SET
        task = j.task, payload = j.payload, codec = j.codec, metadata = j.metadata, payload_hash = j.payload_hash,
        priority = j.priority, lane = j.lane, unique_key = j.unique_key, key_scope = j.key_scope,
        key_window = j.key_window, expires = j.expires, reply = j.reply,
        given_max_attempts = j.given_max_attempts, given_max_losses = j.given_max_losses,
        given_timeout = j.given_timeout, given_lease_len = j.given_lease_len,
        given_result_ttl = j.given_result_ttl, given_retention = j.given_retention,
        state = j.state, hold = j.hold, generation = j.generation, arrival = j.arrival, created = j.created,
        due = j.due, parents_left = j.parents_left, attempt = j.attempt, losses = j.losses, owner = j.owner,
        token = j.token, fence = j.fence, lease_expires = j.lease_expires, lease_len = j.lease_len,
        max_attempts = j.max_attempts, max_losses = j.max_losses, started = j.started,
        last_started = j.last_started, progress = j.progress, cancel_asked = j.cancel_asked,
        cancel_note = j.cancel_note, settled_token = j.settled_token, finished = j.finished, reason = j.reason,
        note = j.note, result = j.result, last_error = j.last_error, history = j.history,
        visible_until = j.visible_until, result_until = j.result_until, key_until = j.key_until,
        epoch = j.epoch, pool_key = j.pool_key, pool_hash = j.pool_hash, granted = j.granted, awaited = j.awaited
    WHERE queue = j.queue AND id = j.id;
    PERFORM move_1(j.queue, p_from, j.state);
    IF j.state = 'queued' AND p_from <> 'queued' THEN
        PERFORM ring_1('queue:' || j.queue);
    END IF;
END $$;

-- Delete a record, and its key if it still is the last to have taken it.
CREATE FUNCTION drop_1(p_queue text, p_id text) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
    j job;
BEGIN
    DELETE FROM job WHERE queue = p_queue AND id = p_id RETURNING * INTO j;
    IF j.unique_key IS NOT NULL THEN
        -- Not where somebody else holds it: a row without its job says nothing, and nobody shall wait for a stranger.
        DELETE FROM unique_key AS k USING (
            SELECT queue, task, unique_key FROM unique_key
            WHERE queue = j.queue AND task = j.task AND unique_key = j.unique_key AND id = j.id
            FOR UPDATE SKIP LOCKED
        ) AS mine WHERE (k.queue, k.task, k.unique_key) = (mine.queue, mine.task, mine.unique_key);
    END IF;
    PERFORM move_1(p_queue, j.state, NULL);
END $$;

CREATE FUNCTION kept_until_1(j job) RETURNS bigint LANGUAGE sql IMMUTABLE AS $$
    SELECT greatest(j.visible_until, j.result_until, j.key_until)
$$;

-- How long the id or key of an ended job stays taken. A failed or cancelled one frees it at once.
CREATE FUNCTION key_until_1(
    p_scope text, p_state text, p_finished bigint, p_result_until bigint, p_created bigint, p_window bigint
) RETURNS bigint LANGUAGE sql IMMUTABLE AS $$
    SELECT CASE
        WHEN p_state <> 'succeeded' OR p_scope = 'incomplete' THEN p_finished
        WHEN p_scope = 'result' THEN p_result_until
        WHEN p_scope = 'window' THEN greatest(p_finished, later_1(p_created, p_window))
        ELSE 4611686018427387904
    END
$$;

-- Write a counted run that did not succeed into the history: the first stays, and the last nineteen.
CREATE FUNCTION end_attempt_1(INOUT j job, p_outcome text, p_error jsonb, p_now bigint) LANGUAGE plpgsql AS $$
DECLARE
    v_entry jsonb := jsonb_build_array(
        j.attempt, j.generation, j.owner, coalesce(j.last_started, p_now), p_now, p_outcome, p_error);
BEGIN
    j.history := coalesce(j.history, '[]') || jsonb_build_array(v_entry);
    IF jsonb_array_length(j.history) > 20 THEN
        j.history := j.history - 1;
    END IF;
END $$;

-- Take out of a lane's head what stands in its way, under the lane's lock: who is the head next?
CREATE FUNCTION following_1(p_queue text, p_lane text) RETURNS job LANGUAGE plpgsql AS $$
DECLARE
    j job;
BEGIN
    SELECT * INTO j FROM job
    WHERE queue = p_queue AND lane = p_lane AND hold & 1 = 1
    ORDER BY priority DESC, arrival LIMIT 1 FOR UPDATE;
    IF j.hold <> 1 THEN  -- something else holds the best one back: the earliest can wait for nobody in this lane
        SELECT * INTO j FROM job
        WHERE queue = p_queue AND lane = p_lane AND hold & 1 = 1
            AND state NOT IN ('succeeded', 'failed', 'cancelled')
        ORDER BY arrival LIMIT 1 FOR UPDATE;
    END IF;
    RETURN j;
END $$;

-- A job of a lane has ended: count it, and if it was the head let the next one be it. The caller has locked the lane.
CREATE FUNCTION leave_lane_1(j job, p_now bigint) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
    l lane;
    v_next job;
    v_from text;
BEGIN
    UPDATE lane SET
        depth = depth - 1,
        succeeded = succeeded + (j.state = 'succeeded')::int,
        failed = failed + (j.state = 'failed')::int,
        cancelled = cancelled + (j.state = 'cancelled')::int,
        fence = CASE WHEN j.granted THEN greatest(fence, j.fence) ELSE fence END
    WHERE queue = j.queue AND lane = j.lane RETURNING * INTO l;
    IF l.depth = 0 THEN
        UPDATE lane SET head = NULL, emptied = p_now WHERE queue = j.queue AND lane = j.lane;
        PERFORM set_config('holdfast.emptied', current_setting('holdfast.emptied', true)
            || json_build_object('queue', j.queue, 'lane', j.lane)::text || E'\n', true);
    ELSIF l.head = j.id THEN
        v_next := following_1(j.queue, j.lane);
        UPDATE lane SET head = v_next.id WHERE queue = j.queue AND lane = j.lane;
        IF v_next.id IS NOT NULL THEN
            v_from := v_next.state;
            v_next.hold := v_next.hold & ~1;
            v_next := rest_1(v_next, l.paused, p_now);
            PERFORM put_1(v_from, v_next);
        END IF;
    END IF;
END $$;

-- Whether the lane is paused; it stays so until the end of the call. Null where there is no lane.
CREATE FUNCTION lane_paused_1(p_queue text, p_lane text) RETURNS boolean LANGUAGE plpgsql AS $$
DECLARE
    v_paused boolean;
BEGIN
    SELECT paused INTO v_paused FROM lane WHERE queue = p_queue AND lane = p_lane FOR UPDATE;
    RETURN v_paused;
END $$;

-- The lock of a pool, before those of its lanes where that can be known. Whoever brings or ends jobs of the size it has
-- shares it. A resize has it alone, and so has who ends a job of an older size: while the last of those lets the held ones
-- go, nobody may bring another one to be held.
CREATE FUNCTION lock_pool_1(p_queue text, p_epoch bigint) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
    v_lock bigint := hashtextextended(current_schema || ' pool ' || p_queue, 0);
BEGIN
    IF NOT is_older_1(p_queue, p_epoch) AND pg_try_advisory_xact_lock_shared(v_lock) THEN
        IF NOT is_older_1(p_queue, p_epoch) THEN
            RETURN;
        END IF;
    END IF;
    LOOP
        BEGIN
            IF is_older_1(p_queue, p_epoch) THEN
                PERFORM pg_advisory_xact_lock(v_lock);
                RETURN;
            END IF;
            PERFORM pg_advisory_xact_lock_shared(v_lock);
            IF NOT is_older_1(p_queue, p_epoch) THEN
                RETURN;
            END IF;
            RAISE SQLSTATE 'HF001';
        EXCEPTION WHEN SQLSTATE 'HF001' THEN
            NULL;  -- a resize came first; what others share nobody could have alone, so the block gives it back
        END;
    END LOOP;
END $$;

CREATE FUNCTION is_older_1(p_queue text, p_epoch bigint) RETURNS boolean LANGUAGE sql AS $$
    SELECT coalesce(p_epoch < (SELECT epoch FROM pool WHERE name = p_queue), false)
$$;

-- A job of a pool has ended: the last one of an older size lets the held ones go.
CREATE FUNCTION leave_pool_1(j job, p_now bigint) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
    p pool;
    v_held job;
    v_from text;
BEGIN
    PERFORM lock_pool_1(j.queue, j.epoch);
    UPDATE pool SET old_live = old_live - 1
    WHERE name = j.queue AND epoch > j.epoch AND old_live > 0 RETURNING * INTO p;
    IF p.old_live = 0 THEN
        FOR v_held IN
            SELECT * FROM job WHERE queue = j.queue AND state = 'blocked' AND hold & 16 = 16 ORDER BY arrival FOR UPDATE
        LOOP
            v_from := v_held.state;
            v_held.hold := v_held.hold & ~16;
            v_held := rest_1(v_held, lane_paused_1(v_held.queue, v_held.lane), p_now);
            PERFORM put_1(v_from, v_held);
        END LOOP;
    END IF;
END $$;

-- End a job: void its lease, set its three clocks, free its lane, tell who waits. Every road to a terminal state leads
-- through here, but for the plain success in `exchange`. `j` carries what the end changes beside that; its lane is locked.
CREATE FUNCTION finish_1(
    p_from text, j job, p_target text, p_reason text, p_note text, p_result bytea, p_result_ttl bigint,
    p_retention bigint, p_now bigint
) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
    v_admitted boolean := j.hold & 8 = 0;  -- else its lane has not admitted it, and never will
BEGIN
    j := ended_1(j, p_target, p_reason, p_note, p_result, p_result_ttl, p_retention, p_now);
    PERFORM put_1(p_from, j);
    IF current_setting('holdfast.joined', true)::boolean THEN
        INSERT INTO chore (kind, queue, lane, id, arrival) VALUES ('end', j.queue, j.lane, j.id, j.arrival);
        PERFORM ring_1('room:' || j.queue), ring_1('queue:' || j.queue);  -- the second for somebody to do it
    ELSE
        PERFORM leave_1(j, v_admitted, p_now);
    END IF;
END $$;

-- A job has ended, and is written so: whoever waits for its place or for its answer hears of it, and so do its lane and its
-- pool, if they had taken it in.
CREATE FUNCTION leave_1(j job, p_admitted boolean, p_now bigint) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
    v_reply text;
BEGIN
    PERFORM ring_1('room:' || j.queue);
    FOREACH v_reply IN ARRAY j.reply LOOP
        PERFORM ring_1('reply:' || v_reply);
    END LOOP;
    IF j.lane IS NOT NULL AND p_admitted THEN
        PERFORM leave_lane_1(j, p_now);
    END IF;
    IF j.epoch > 0 AND p_admitted THEN
        PERFORM leave_pool_1(j, p_now);
    END IF;
    IF j.awaited THEN
        INSERT INTO chore (kind, queue, id, arrival) VALUES ('parent', j.queue, j.id, j.arrival);
    ELSIF kept_until_1(j) <= p_now THEN
        PERFORM drop_1(j.queue, j.id);
    END IF;
END $$;

-- The record of a job that ends so.
CREATE FUNCTION ended_1(
    INOUT j job, p_target text, p_reason text, p_note text, p_result bytea, p_result_ttl bigint, p_retention bigint,
    p_now bigint
) LANGUAGE plpgsql AS $$
BEGIN
    j.visible_until := later_1(p_now, coalesce(j.given_retention, p_retention,
        CASE p_target WHEN 'failed' THEN 2592000000000 ELSE 86400000000 END));
    j.result_until := later_1(p_now, coalesce(j.given_result_ttl, p_result_ttl, 3600000000));
    j.key_until := key_until_1(j.key_scope, p_target, p_now, j.result_until, j.created, j.key_window);
    j.state := p_target;
    j.hold := 0;
    j.parents_left := 0;
    j.token := NULL;
    j.lease_expires := NULL;
    j.finished := p_now;
    j.reason := p_reason;
    j.note := p_note;
    j.result := p_result;
END $$;
