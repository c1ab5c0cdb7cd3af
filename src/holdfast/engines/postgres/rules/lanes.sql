-- Lanes: ordered streams inside a queue, one job at a time. The first live job is the head; the others are blocked
-- with the hold `lane`. So a claim knows nothing of lanes.
--
-- Locks: a lane's row is locked before any of its jobs, and lanes in the order of (queue, lane). A pool is locked
-- before its lanes.

-- Lock the lane and say whether it is paused: so it stays as it is until the end of the call. Null: there is no such
-- lane.
CREATE FUNCTION lane_paused(p_queue text, p_lane text) RETURNS boolean LANGUAGE plpgsql AS $$
DECLARE
    v_paused boolean;
BEGIN
    SELECT paused INTO v_paused FROM lane WHERE queue = p_queue AND lane = p_lane FOR UPDATE;
    RETURN v_paused;
END $$;

-- Lock a lane, and make its record if it is new.
CREATE FUNCTION lock_lane(p_queue text, p_lane text, p_now bigint) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
    c_most CONSTANT int := 10;  -- rounds; each further one needs a prune that deletes the lane in between
BEGIN
    FOR i IN 1 .. c_most LOOP
        PERFORM 1 FROM lane WHERE queue = p_queue AND lane = p_lane FOR UPDATE;
        IF FOUND THEN
            RETURN;
        END IF;
        PERFORM declare_queue(p_queue);
        INSERT INTO lane (queue, lane, emptied) VALUES (p_queue, p_lane, p_now) ON CONFLICT DO NOTHING;
    END LOOP;
    PERFORM give_up_looking('lane ' || p_lane);
END $$;

-- Lock lanes of a queue that exist, in order.
CREATE FUNCTION lock_lane_rows(p_queue text, p_lanes text[]) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    PERFORM 1 FROM (SELECT DISTINCT lane COLLATE "C" AS lane FROM unnest(p_lanes) AS lane ORDER BY 1) AS i
    CROSS JOIN LATERAL (SELECT 1 FROM lane WHERE queue = p_queue AND lane = i.lane FOR UPDATE) AS l;
END $$;

-- Live jobs of a lane.
CREATE FUNCTION lane_depth(p_queue text, p_lane text) RETURNS bigint LANGUAGE sql AS $$
    SELECT coalesce((SELECT depth FROM lane WHERE queue = p_queue AND lane = p_lane), 0)
$$;

-- Take a job into its lane, at the tail. The caller has locked the lane.
-- L1: the first live job is the head.
-- L2, L3: the others wait, whatever their priority is.
-- L6: requeued and replaced jobs too.
CREATE FUNCTION admit(INOUT j job, p_now bigint) LANGUAGE plpgsql AS $$
DECLARE
    l lane;
BEGIN
    SELECT * INTO l FROM lane WHERE queue = j.queue AND lane = j.lane;
    IF l.head IS NOT NULL THEN
        j.hold := j.hold | {{hold.lane}};
    END IF;
    UPDATE lane SET depth = depth + 1, head = coalesce(head, j.id) WHERE queue = j.queue AND lane = j.lane;
    j := as_waiting(j, l.paused, p_now);
END $$;

-- The job that becomes the head when the head has ended; index job_lane_next. The caller has locked the lane.
-- L4: the best by priority, then arrival.
-- L5: if something else holds the best one too, the earliest arrival (index job_lane_live). It can only wait for jobs
-- that came before it, and those are not in the lane any more.
CREATE FUNCTION next_head(p_queue text, p_lane text) RETURNS job LANGUAGE plpgsql AS $$
DECLARE
    j job;
BEGIN
    SELECT * INTO j FROM job
    WHERE queue = p_queue AND lane = p_lane AND hold & {{hold.lane}} = {{hold.lane}}
    ORDER BY priority DESC, arrival LIMIT 1 FOR UPDATE;
    IF j.hold <> {{hold.lane}} THEN
        SELECT * INTO j FROM job
        WHERE queue = p_queue AND lane = p_lane AND hold & {{hold.lane}} = {{hold.lane}}
            AND state NOT IN ({{terminal}})
        ORDER BY arrival LIMIT 1 FOR UPDATE;
    END IF;
    RETURN j;
END $$;

-- A job of a lane has ended. The caller has locked the lane.
-- L7: the depth shrinks at once.
-- L9: the totals count ends.
-- L8: a lane that ran empty is named in the answer.
-- L3, L4: the next one becomes the head in the same write.
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
            v_next := as_waiting(v_next, l.paused, p_now);
            PERFORM put_job(v_from, v_next);
        ELSE  -- the others have ended in users' transactions, or were deleted by hand
            PERFORM recount_lane(j.queue, j.lane, 0, p_now);
        END IF;
    END IF;
END $$;

-- Set or end the pause of a lane. False: it was so already. A leased head is left alone, and not waited for: while
-- the lane is locked, no other call can make it queued.
-- U2: a queued head is held at once, and a head that only the pause holds goes on.
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
    SELECT * INTO j FROM job  -- not in the lane: a later job of that id, and the end of the head is deferred
    WHERE queue = p_queue AND id = v_head AND lane = p_lane AND (state = 'queued' OR hold = {{hold.paused}}) FOR UPDATE;
    IF FOUND THEN
        v_from := j.state;
        j := as_waiting(j, p_paused, p_now);
        PERFORM put_job(v_from, j);
    END IF;
    RETURN true;
END $$;
