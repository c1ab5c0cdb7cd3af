-- Jobs whose rows were deleted by hand. Nothing says any more what they were, but their lane still counts them. A lane
-- whose head is missing would stand still for ever. A prune looks for such lanes, and a clear does in its scope; the
-- end of a head notices that no job is left behind it.

-- Lanes whose head is no job of them. A subquery per lane, so that the planner looks each head up by its id.
CREATE VIEW headless_lane AS
    SELECT queue, lane, head FROM lane AS l WHERE head IS NOT NULL AND (
        SELECT bool_or(m.lane = l.lane) FROM member AS m WHERE m.queue = l.queue AND m.id = l.head
    ) IS NOT TRUE;

-- Count the jobs of a lane again; those that are missing have failed. `p_heads`: 1 for a head whose row comes later. The
-- caller has locked the lane.
CREATE FUNCTION recount_lane(p_queue text, p_lane text, p_heads int, p_now bigint) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
    v_missing int;
BEGIN
    SELECT greatest(0, depth - p_heads - (SELECT count(*) FROM member WHERE queue = p_queue AND lane = p_lane))
    INTO v_missing FROM lane WHERE queue = p_queue AND lane = p_lane;
    IF v_missing + p_heads = 0 THEN
        RETURN;
    END IF;
    UPDATE lane SET depth = depth - v_missing, failed = failed + v_missing,
        emptied = CASE depth WHEN v_missing THEN p_now ELSE emptied END
    WHERE queue = p_queue AND lane = p_lane;
    -- The rows of the queue are counted as of one statement, by one call at a time, and with what this one has changed.
    PERFORM write_tally(), pg_advisory_xact_lock(hashtextextended('{{namespace}} fold', 0));
    INSERT INTO tally (queue, state, jobs, ends)
    SELECT p_queue, state, coalesce(n.jobs, 0) - coalesce(c.jobs, 0), 0
    FROM (SELECT state, jobs FROM counts WHERE queue = p_queue) AS c
    FULL JOIN (SELECT state, count(*) AS jobs FROM job WHERE queue = p_queue GROUP BY state) AS n USING (state)
    WHERE coalesce(n.jobs, 0) <> coalesce(c.jobs, 0)
    UNION ALL
    SELECT p_queue, 'failed', 0, v_missing WHERE v_missing > 0;
    IF v_missing > 0 THEN
        RAISE WARNING 'Lane % of queue %: % waiting jobs are missing from the store.', p_lane, p_queue, v_missing
        USING ERRCODE = 'HF002';
    END IF;
END $$;

-- Let a lane go on whose head is missing, unless another call has locked it. The head gets a row that ends as
-- failed(undecodable); if its id belongs to another job, it is only counted.
CREATE FUNCTION repair_lane(p_queue text, p_lane text, p_now bigint) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
    c_note CONSTANT text := 'its stored record is missing';
    v_head text;
    j job;
BEGIN
    PERFORM lock_pool(p_queue, CASE old_live WHEN 0 THEN epoch ELSE 0 END) FROM pool WHERE name = p_queue;
    PERFORM 1 FROM lane WHERE queue = p_queue AND lane = p_lane FOR UPDATE SKIP LOCKED;
    IF NOT FOUND THEN
        RETURN;
    END IF;
    SELECT head INTO v_head FROM headless_lane WHERE queue = p_queue AND lane = p_lane;
    IF NOT FOUND THEN
        RETURN;
    END IF;
    PERFORM recount_lane(p_queue, p_lane, 1, p_now);
    INSERT INTO job (
        queue, id, task, state, lane, arrival, created, due, key_window, priority, codec, payload, payload_hash,
        key_scope, reply)
    VALUES (
        p_queue, v_head, '', 'running', p_lane, nextval('arrival'), p_now, p_now, 0, 0, 'json', '', '', 'incomplete',
        '{}')
    ON CONFLICT DO NOTHING RETURNING * INTO j;
    -- The pool counts its jobs of an older size again, and the missing head as one of them.
    UPDATE pool AS p SET old_live = 1 + (
        SELECT count(*) FROM member WHERE queue = p_queue AND epoch BETWEEN 1 AND p.epoch - 1)
    WHERE name = p_queue AND old_live > 0 RETURNING epoch - 1 INTO j.epoch;
    j.epoch := coalesce(j.epoch, 0);
    IF j.id IS NOT NULL THEN
        PERFORM count_moves(p_queue, NULL, 'running');
        PERFORM finish('running', j, 'failed', 'undecodable', c_note, NULL, NULL, NULL, p_now);
    ELSE
        j.queue := p_queue;
        j.id := v_head;
        j.lane := p_lane;
        j.state := 'failed';
        PERFORM leave_lane(j, p_now), leave_pool(j, p_now);
        INSERT INTO tally (queue, state, jobs, ends) VALUES (p_queue, 'failed', 0, 1);
    END IF;
    PERFORM defer_children(p_queue, v_head, parent_arrival, 'failed') FROM (
        SELECT DISTINCT parent_arrival FROM edge AS e WHERE parent_queue = p_queue AND parent_id = v_head
            AND NOT EXISTS (SELECT 1 FROM job WHERE queue = p_queue AND id = v_head AND arrival = e.parent_arrival)
    ) AS gone;
    RAISE WARNING 'Job % of queue %, the head of lane %: %.', v_head, p_queue, p_lane, c_note
    USING ERRCODE = 'HF002';
END $$;
