-- Work that a user's transaction leaves for after its commit. The effects on lanes, pools and children are rows of
-- `deferred`, and the next exchange, enqueue, operator verb or prune of the queue carries them out.
--
-- PF5: a user's transaction locks nothing that others may wait for, except its own ids and keys. And what is deferred
-- waits for no job that such a transaction may have locked.

-- A job that came in a user's transaction, and that a lane, a pool or parents may hold back: it is admitted after the
-- commit. Locks nothing (PF5). `p_was` as in `link`; `p_chosen`: the lane that the limits allow.
-- P2: an ended parent needs no edge.
-- P10: the edge names the job that the parent's id stands for now.
CREATE FUNCTION defer_arrival(n new_job, j job, p_chosen text, p_was jsonb) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
    v record;
    v_arrival bigint;
    v_state text;
    v_left int := 0;
    v_lane text := j.lane;
    p pool;
BEGIN
    FOR v IN SELECT * FROM parents_of(n.parents) LOOP
        SELECT arrival, state INTO v_arrival, v_state FROM job WHERE queue = v.queue AND id = v.id;
        CONTINUE WHEN NOT FOUND;  -- it was there when the group was decided
        IF p_was ? name_of(v.queue, v.id) THEN  -- the job in front of this one that the group replaces
            v_arrival := 0;
            v_state := p_was ->> name_of(v.queue, v.id);
        END IF;
        CONTINUE WHEN v_state = 'succeeded' OR (v.any_end AND is_terminal(v_state));
        IF is_terminal(v_state) THEN
            PERFORM defer_children(v.queue, v.id, v_arrival, v_state);
        END IF;
        INSERT INTO edge (parent_queue, parent_id, parent_arrival, child_queue, child_id, arrival, any_end)
        VALUES (v.queue, v.id, v_arrival, j.queue, j.id, j.arrival, v.any_end);
        v_left := v_left + 1;
    END LOOP;
    IF v_left > 0 THEN
        UPDATE job SET parents_left = v_left, hold = hold | {{hold.parents}} WHERE queue = j.queue AND id = j.id;
    END IF;
    IF n.pool IS NOT NULL THEN  -- a pool that is new is declared when its first job is admitted
        SELECT * INTO p FROM pool WHERE name = j.queue;
        v_lane := CASE
            WHEN j.pool_hash IS NOT NULL THEN (j.pool_hash % coalesce(p.lanes, (n.pool ->> 'lanes')::bigint))::text
            WHEN p.name IS NOT NULL THEN coalesce(p_chosen, ((nextval(p.turns::regclass) - 1) % p.lanes)::text) END;
    END IF;
    INSERT INTO deferred (kind, queue, lane, id, arrival, lanes, pool_hash)
    VALUES ('arrive', j.queue, v_lane, j.id, j.arrival, (n.pool ->> 'lanes')::bigint, j.pool_hash);
    PERFORM notify('queue:' || j.queue);
END $$;

-- A job has ended in a user's transaction: its lane, its pool and its children go on after the commit.
CREATE FUNCTION defer_end(j job) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO deferred (kind, queue, lane, id, arrival, state, epoch, fence)
    VALUES ('end', j.queue, j.lane, j.id, j.arrival, j.state, j.epoch, CASE WHEN j.granted THEN j.fence END);
    PERFORM notify_end(j);
    -- These topics wake workers, whose exchanges run what is deferred.
    PERFORM notify('queue:' || j.queue);
    PERFORM notify('queue:' || child_queue) FROM (
        SELECT DISTINCT child_queue FROM edge
        WHERE parent_queue = j.queue AND parent_id = j.id AND parent_arrival = j.arrival) AS waiting;
END $$;

-- A job has ended: `resolve` releases or cancels its children. A state of null: it is not known how the job ended.
CREATE FUNCTION defer_children(p_queue text, p_id text, p_arrival bigint, p_state text) RETURNS void
LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO deferred (kind, queue, id, arrival, state) VALUES ('parent', p_queue, p_id, p_arrival, p_state);
END $$;

-- Delete a row of deferred work to run it. False: another call does.
CREATE FUNCTION take_deferred(p_number bigint) RETURNS boolean LANGUAGE plpgsql AS $$
BEGIN
    DELETE FROM deferred
    WHERE number = (SELECT number FROM deferred WHERE number = p_number FOR UPDATE SKIP LOCKED);
    RETURN FOUND;
END $$;

-- Run the deferred work of a queue. One call at a time does, so that jobs are admitted in the order in which they
-- came. With `p_wait` a call waits for its turn; else it leaves the work to the call that holds the lock. One call
-- runs a bounded part, but of the lanes (`p_lanes`) and keys of a pool (`p_hashes`) to which it brings a job itself it
-- admits all jobs that came before.
-- L2: so no later job overtakes them.
CREATE FUNCTION run_deferred(
    p_queue text, p_wait boolean, p_now bigint, p_lanes text[] DEFAULT '{}', p_hashes numeric[] DEFAULT '{}'
) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
    c_most CONSTANT int := 1000;  -- rows of each kind; other calls wait for what is locked meanwhile
    v_lock bigint := hashtextextended('{{namespace}} deferred ' || p_queue, 0);
    v_ends int := 0;
    v_lanes text[];
    v_epoch bigint;
    v_is_pool boolean;
    c deferred;
BEGIN
    IF NOT has_deferred(p_queue) THEN
        RETURN;
    END IF;
    IF p_wait THEN
        PERFORM pg_advisory_xact_lock(v_lock);
    ELSIF NOT pg_try_advisory_xact_lock(v_lock) THEN
        RETURN;
    END IF;
    -- First the pool, then all lanes in order, as every call: the work below comes to them in the order of arrival.
    SELECT array_agg(lane), min(nullif(epoch, 0)), bool_or(epoch > 0 OR lanes IS NOT NULL)
    INTO v_lanes, v_epoch, v_is_pool FROM (
        (SELECT * FROM deferred WHERE kind = 'end' AND queue = p_queue ORDER BY number LIMIT c_most)
        UNION ALL
        (SELECT * FROM deferred WHERE kind = 'arrive' AND queue = p_queue ORDER BY arrival LIMIT c_most)) AS work;
    IF v_is_pool THEN
        PERFORM lock_pool(p_queue, v_epoch);
    END IF;
    PERFORM lock_lane_rows(p_queue, p_lanes || v_lanes);
    FOR c IN SELECT * FROM deferred WHERE kind = 'end' AND queue = p_queue ORDER BY number LIMIT c_most LOOP
        v_ends := v_ends + 1;
        IF take_deferred(c.number) THEN
            PERFORM run_deferred_end(c, p_now);
        END IF;
    END LOOP;
    IF v_ends = c_most THEN  -- a job leaves its lane before the next job of its id is admitted
        PERFORM run_deferred_ends(
            p_queue, ARRAY(SELECT id FROM deferred WHERE kind = 'arrive' AND queue = p_queue), p_now);
    END IF;
    IF p_lanes <> '{}' OR p_hashes <> '{}' THEN
        FOR c IN
            SELECT * FROM deferred
            WHERE kind = 'arrive' AND queue = p_queue AND (lane = ANY (p_lanes) OR pool_hash = ANY (p_hashes))
            ORDER BY arrival
        LOOP
            IF take_deferred(c.number) THEN
                PERFORM run_deferred_arrival(c, p_now);
            END IF;
        END LOOP;
    END IF;
    FOR c IN SELECT * FROM deferred WHERE kind = 'arrive' AND queue = p_queue ORDER BY arrival LIMIT c_most LOOP
        IF take_deferred(c.number) THEN
            PERFORM run_deferred_arrival(c, p_now);
        END IF;
    END LOOP;
    FOR c IN SELECT * FROM deferred WHERE kind = 'link' AND queue = p_queue ORDER BY number LIMIT c_most LOOP
        IF take_deferred(c.number) THEN
            PERFORM mark_parents(c.queue, c.id, c.arrival);
        END IF;
    END LOOP;
    IF EXISTS (SELECT 1 FROM deferred WHERE kind = 'parent') THEN
        PERFORM resolve(p_now);
    END IF;
END $$;

-- True if `run_deferred` has something to do in this queue.
CREATE FUNCTION has_deferred(p_queue text) RETURNS boolean LANGUAGE plpgsql AS $$
BEGIN
    RETURN EXISTS (SELECT 1 FROM deferred WHERE kind IN ('arrive', 'link', 'end') AND queue = p_queue);
END $$;

-- Run the deferred work of the queues to whose lanes and pools these groups bring jobs.
CREATE FUNCTION run_deferred_of_lanes(p_groups jsonb, p_now bigint) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
    v record;
BEGIN
    IF NOT EXISTS (SELECT 1 FROM deferred WHERE kind IN ('arrive', 'link', 'end')) THEN
        RETURN;
    END IF;
    FOR v IN
        SELECT n.queue, array_agg(DISTINCT coalesce(n.lane, (h.hash % p.lanes)::text)) AS lanes,
            array_agg(DISTINCT h.hash) AS hashes
        FROM jsonb_array_elements(p_groups) AS g
        CROSS JOIN LATERAL jsonb_populate_recordset(NULL::new_job, g.value -> 'jobs') AS n
        CROSS JOIN LATERAL (SELECT (n.pool ->> 'hash')::numeric AS hash) AS h
        LEFT JOIN pool AS p ON p.name = n.queue AND n.pool IS NOT NULL
        WHERE n.lane IS NOT NULL OR n.pool IS NOT NULL GROUP BY n.queue ORDER BY n.queue
    LOOP
        PERFORM run_deferred(v.queue, true, p_now, v.lanes, v.hashes);
    END LOOP;
END $$;

-- The same, and no other call runs deferred work of this queue until the end of this one. For verbs that delete
-- or replace ended jobs: their lanes and pools must have counted the end before. These jobs may come back to the lanes
-- they were in.
CREATE FUNCTION run_all_deferred(p_queue text, p_ids text[], p_now bigint) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    PERFORM pg_advisory_xact_lock(hashtextextended('{{namespace}} deferred ' || p_queue, 0));
    IF has_deferred(p_queue) THEN
        PERFORM run_deferred(p_queue, true, p_now,
            ARRAY(SELECT lane_again(j) FROM job AS j WHERE queue = p_queue AND id = ANY (p_ids) AND lane IS NOT NULL),
            ARRAY(SELECT pool_hash FROM job WHERE queue = p_queue AND id = ANY (p_ids) AND pool_hash IS NOT NULL));
    END IF;
END $$;

-- After `run_all_deferred`, once these jobs are locked: the ends that were deferred since.
CREATE FUNCTION run_deferred_ends(p_queue text, p_ids text[], p_now bigint) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
    c deferred;
BEGIN
    FOR c IN
        DELETE FROM deferred WHERE kind = 'end' AND queue = p_queue AND id = ANY (p_ids) RETURNING *
    LOOP
        PERFORM run_deferred_end(c, p_now);
    END LOOP;
END $$;

-- A job ended in a user's transaction: its lane, its pool and its children go on now. Another transaction may be
-- replacing the job, or has replaced it. So its record is neither waited for nor needed.
CREATE FUNCTION run_deferred_end(c deferred, p_now bigint) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
    j job;
BEGIN
    j.queue := c.queue;
    j.id := c.id;
    j.lane := c.lane;
    j.epoch := c.epoch;
    j.state := c.state;
    j.granted := c.fence IS NOT NULL;
    j.fence := c.fence;
    IF c.lane IS NOT NULL THEN
        PERFORM lane_paused(c.queue, c.lane);  -- locks it
        PERFORM leave_lane(j, p_now);
    END IF;
    IF c.epoch > 0 THEN
        PERFORM leave_pool(j, p_now);
    END IF;
    IF EXISTS (
        SELECT 1 FROM edge WHERE parent_queue = c.queue AND parent_id = c.id AND parent_arrival = c.arrival)
    THEN
        PERFORM defer_children(c.queue, c.id, c.arrival, c.state);
        RETURN;
    END IF;
    PERFORM 1 FROM job
    WHERE queue = c.queue AND id = c.id AND arrival = c.arrival AND is_terminal(state) IS TRUE
        AND greatest(visible_until, result_until, key_until) <= p_now FOR UPDATE SKIP LOCKED;
    IF FOUND THEN
        PERFORM drop_job(c.queue, c.id);
    END IF;
END $$;

-- A job came in a user's transaction: link it to its parents, place it in its pool, admit it to its lane.
CREATE FUNCTION run_deferred_arrival(c deferred, p_now bigint) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
    j job;
BEGIN
    IF c.lane IS NOT NULL AND c.lanes IS NULL THEN
        PERFORM lock_lane(c.queue, c.lane, p_now);
    END IF;
    SELECT * INTO j FROM job WHERE queue = c.queue AND id = c.id FOR UPDATE;
    IF j.arrival IS DISTINCT FROM c.arrival OR j.hold & {{hold.arriving}} = 0 THEN  -- ended or replaced
        DELETE FROM edge WHERE child_queue = c.queue AND child_id = c.id AND arrival = c.arrival;
        RETURN;
    END IF;
    IF j.hold & {{hold.parents}} <> 0 THEN
        PERFORM mark_parents(j.queue, j.id, j.arrival);
    END IF;
    j.hold := j.hold & ~{{hold.arriving}};
    IF c.lanes IS NOT NULL THEN
        j := place(j, c.lanes, c.lane);
        PERFORM lock_lane(j.queue, j.lane, p_now);
    END IF;
    IF j.lane IS NOT NULL THEN
        j := admit(j, p_now);
    ELSE
        j := as_waiting(j, false, p_now);
    END IF;
    PERFORM put_job('blocked', j);
END $$;

-- Mark the parents of an admitted job, so that their ends release or cancel it; it is held meanwhile. A parent that
-- another transaction has locked is not waited for: a later call looks again.
-- P10: a parent that has been replaced or deleted since counts as ended.
CREATE FUNCTION mark_parents(p_queue text, p_id text, p_arrival bigint) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
    e edge;
    v_state text;
    v_locked boolean := false;
BEGIN
    FOR e IN
        SELECT * FROM edge WHERE child_queue = p_queue AND child_id = p_id AND arrival = p_arrival
        ORDER BY parent_queue, parent_id
    LOOP
        SELECT state INTO v_state FROM job
        WHERE queue = e.parent_queue AND id = e.parent_id AND arrival = e.parent_arrival FOR UPDATE SKIP LOCKED;
        IF FOUND AND NOT is_terminal(v_state) THEN
            UPDATE job SET awaited = true WHERE queue = e.parent_queue AND id = e.parent_id AND NOT awaited;
        ELSIF NOT FOUND AND EXISTS (
            SELECT 1 FROM job WHERE queue = e.parent_queue AND id = e.parent_id AND arrival = e.parent_arrival)
        THEN
            v_locked := true;
        ELSE
            PERFORM defer_children(e.parent_queue, e.parent_id, e.parent_arrival, v_state);
        END IF;
    END LOOP;
    IF v_locked THEN
        INSERT INTO deferred (kind, queue, id, arrival) VALUES ('link', p_queue, p_id, p_arrival);
    END IF;
END $$;

-- Run deferred work that no other call has run, in the queues that have waited longest.
CREATE FUNCTION prune_deferred(p_now bigint) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
    v_queue text;
BEGIN
    FOR v_queue IN
        SELECT queue FROM (
            SELECT number, queue FROM deferred WHERE kind IN ('arrive', 'link', 'end') ORDER BY number LIMIT 1000
        ) AS first GROUP BY queue ORDER BY min(number) LIMIT 10
    LOOP
        PERFORM run_deferred(v_queue, false, p_now);
    END LOOP;
END $$;
