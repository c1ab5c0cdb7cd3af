-- Whether the lane is paused; it stays so until the end of the call. Null where there is no lane.
CREATE FUNCTION lane_paused(p_queue text, p_lane text) RETURNS boolean LANGUAGE plpgsql AS $$
DECLARE
    v_paused boolean;
BEGIN
    SELECT paused INTO v_paused FROM lane WHERE queue = p_queue AND lane = p_lane FOR UPDATE;
    RETURN v_paused;
END $$;

-- Lock lanes that may be new, in order.
CREATE FUNCTION lock_lane(p_queue text, p_lane text, p_now bigint) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    PERFORM 1 FROM lane WHERE queue = p_queue AND lane = p_lane FOR UPDATE;
    WHILE NOT FOUND LOOP
        PERFORM declare_queue(p_queue);
        INSERT INTO lane (queue, lane, emptied) VALUES (p_queue, p_lane, p_now) ON CONFLICT DO NOTHING;
        PERFORM 1 FROM lane WHERE queue = p_queue AND lane = p_lane FOR UPDATE;
    END LOOP;
END $$;

CREATE FUNCTION lock_lane_rows(p_queue text, p_lanes text[]) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    PERFORM 1 FROM (SELECT DISTINCT lane COLLATE "C" AS lane FROM unnest(p_lanes) AS lane ORDER BY 1) AS i
    CROSS JOIN LATERAL (SELECT 1 FROM lane WHERE queue = p_queue AND lane = i.lane FOR UPDATE) AS l;
END $$;

CREATE FUNCTION lane_depth(p_queue text, p_lane text) RETURNS bigint LANGUAGE sql AS $$
    SELECT coalesce((SELECT depth FROM lane WHERE queue = p_queue AND lane = p_lane), 0)
$$;

-- Take a job into its lane, at the tail. The lane is locked.
CREATE FUNCTION admit(INOUT j job, p_now bigint) LANGUAGE plpgsql AS $$
DECLARE
    l lane;
BEGIN
    SELECT * INTO l FROM lane WHERE queue = j.queue AND lane = j.lane;
    IF l.head IS NOT NULL THEN
        j.hold := j.hold | {{hold.lane}};
    END IF;
    UPDATE lane SET depth = depth + 1, head = coalesce(head, j.id) WHERE queue = j.queue AND lane = j.lane;
    j := rest(j, l.paused, p_now);
END $$;

-- Take out of a lane's head what stands in its way, under the lane's lock: who is the head next?
CREATE FUNCTION next_head(p_queue text, p_lane text) RETURNS job LANGUAGE plpgsql AS $$
DECLARE
    j job;
BEGIN
    SELECT * INTO j FROM job
    WHERE queue = p_queue AND lane = p_lane AND hold & {{hold.lane}} = {{hold.lane}}
    ORDER BY priority DESC, arrival LIMIT 1 FOR UPDATE;
    IF j.hold <> {{hold.lane}} THEN  -- something else holds the best one back: the earliest can wait for nobody in this lane
        SELECT * INTO j FROM job
        WHERE queue = p_queue AND lane = p_lane AND hold & {{hold.lane}} = {{hold.lane}}
            AND state NOT IN ({{terminal}})
        ORDER BY arrival LIMIT 1 FOR UPDATE;
    END IF;
    RETURN j;
END $$;

-- A job of a lane has ended: count it, and if it was the head let the next one be it. The caller has locked the lane.
CREATE FUNCTION leave_lane(j job, p_now bigint) RETURNS void LANGUAGE plpgsql AS $$
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
        v_next := next_head(j.queue, j.lane);
        UPDATE lane SET head = v_next.id WHERE queue = j.queue AND lane = j.lane;
        IF v_next.id IS NOT NULL THEN
            v_from := v_next.state;
            v_next.hold := v_next.hold & ~{{hold.lane}};
            v_next := rest(v_next, l.paused, p_now);
            PERFORM put_job(v_from, v_next);
        END IF;
    END IF;
END $$;

-- A lane's head that waits to run moves with the switch. A head that is leased is left alone, and not waited for: while
-- the lane is locked it can become queued for nobody else.
CREATE FUNCTION set_lane_paused(p_queue text, p_lane text, p_paused boolean, p_now bigint) RETURNS boolean
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
    SELECT * INTO j FROM job WHERE queue = p_queue AND id = v_head AND (state = 'queued' OR hold = {{hold.paused}}) FOR UPDATE;
    IF FOUND THEN
        v_from := j.state;
        j := rest(j, p_paused, p_now);
        PERFORM put_job(v_from, j);
    END IF;
    RETURN true;
END $$;
