-- Work that a user's transaction leaves for after its commit. The transaction locks nothing that others may wait for,
-- except its own jobs and keys; the effects on lanes, pools and children are rows of `deferred`, and the next
-- exchange, enqueue, operator verb or prune of the queue carries them out.

-- A job that came in a user's transaction, and that a lane, a pool or parents may hold back: it is admitted after the
-- commit.
CREATE FUNCTION defer_arrival(n new_job, j job) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
    v_left int;
BEGIN
    INSERT INTO edge
    SELECT DISTINCT ON (1, 2) value -> 'job' ->> 'queue', value -> 'job' ->> 'id', j.queue, j.id, j.arrival,
        coalesce((value ->> 'any_end')::boolean, false)
    FROM jsonb_array_elements(coalesce(n.parents, '[]')) WITH ORDINALITY ORDER BY 1, 2, ordinality;
    GET DIAGNOSTICS v_left = ROW_COUNT;
    IF v_left > 0 THEN
        UPDATE job SET parents_left = v_left, hold = hold | {{hold.parents}} WHERE queue = j.queue AND id = j.id;
    END IF;
    IF n.pool IS NOT NULL THEN  -- the first job of a pool declares it; later ones lock nothing
        PERFORM declare_pool(j.queue, (n.pool ->> 'lanes')::bigint);
    END IF;
    INSERT INTO deferred (kind, queue, lane, id, arrival) VALUES ('arrive', j.queue, j.lane, j.id, j.arrival);
    PERFORM notify('queue:' || j.queue);
END $$;

-- Run the deferred work of a queue. One call at a time does, so that jobs are admitted in the order in which they
-- came. With `p_wait` a call waits for its turn; else it leaves the work to the call that holds the lock.
CREATE FUNCTION run_deferred(p_queue text, p_wait boolean, p_now bigint) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
    v_lock bigint := hashtextextended('{{namespace}} deferred ' || p_queue, 0);
    c deferred;
BEGIN
    IF NOT EXISTS (SELECT 1 FROM deferred WHERE kind IN ('arrive', 'end') AND queue = p_queue) THEN
        RETURN;
    END IF;
    IF p_wait THEN
        PERFORM pg_advisory_xact_lock(v_lock);
    ELSIF NOT pg_try_advisory_xact_lock(v_lock) THEN
        RETURN;
    END IF;
    FOR c IN SELECT * FROM deferred WHERE kind = 'end' AND queue = p_queue ORDER BY number LIMIT 1000 LOOP
        DELETE FROM deferred WHERE number = c.number;
        PERFORM run_deferred_end(c, p_now);
    END LOOP;
    FOR c IN SELECT * FROM deferred WHERE kind = 'arrive' AND queue = p_queue ORDER BY arrival LIMIT 1000 LOOP
        DELETE FROM deferred WHERE number = c.number;
        PERFORM run_deferred_arrival(c, p_now);
    END LOOP;
END $$;

-- The same, and no other call runs deferred work of this queue until the end of this one. For verbs that delete
-- or replace ended jobs: their lanes and pools must have counted the end before.
CREATE FUNCTION run_all_deferred(p_queue text, p_now bigint) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    PERFORM pg_advisory_xact_lock(hashtextextended('{{namespace}} deferred ' || p_queue, 0));
    PERFORM run_deferred(p_queue, true, p_now);
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

-- A job ended in a user's transaction: its lane, its pool and its children go on now.
CREATE FUNCTION run_deferred_end(c deferred, p_now bigint) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
    j job := lock_job(c.queue, c.id);
BEGIN
    IF j.arrival = c.arrival AND is_terminal(j.state) THEN
        PERFORM after_end(j, true, p_now);
    END IF;
END $$;

-- A job came in a user's transaction: link it to its parents, place it in its pool, admit it to its lane.
CREATE FUNCTION run_deferred_arrival(c deferred, p_now bigint) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
    j job;
    e edge;
    v_state text;
BEGIN
    IF c.lane IS NOT NULL THEN
        PERFORM lock_lane(c.queue, c.lane, p_now);
    END IF;
    SELECT * INTO j FROM job WHERE queue = c.queue AND id = c.id FOR UPDATE;
    IF j.arrival IS DISTINCT FROM c.arrival OR j.hold & {{hold.arriving}} = 0 THEN  -- ended or replaced
        DELETE FROM edge WHERE child_queue = c.queue AND child_id = c.id AND arrival = c.arrival;
        RETURN;
    END IF;
    FOR e IN
        SELECT * FROM edge WHERE child_queue = j.queue AND child_id = j.id AND arrival = j.arrival
        ORDER BY parent_queue, parent_id
    LOOP
        SELECT state INTO v_state FROM job WHERE queue = e.parent_queue AND id = e.parent_id FOR UPDATE;
        IF FOUND AND NOT is_terminal(v_state) THEN
            UPDATE job SET awaited = true WHERE queue = e.parent_queue AND id = e.parent_id AND NOT awaited;
        ELSE
            INSERT INTO deferred (kind, queue, id, arrival) VALUES ('parent', e.parent_queue, e.parent_id, 0);
        END IF;
    END LOOP;
    j.hold := j.hold & ~{{hold.arriving}};
    IF j.epoch > 0 THEN
        j := place(j, 1);  -- the pool was declared before its job could come
        PERFORM lock_lane(j.queue, j.lane, p_now);
    END IF;
    IF j.lane IS NOT NULL THEN
        j := admit(j, p_now);
    ELSE
        j := as_waiting(j, false, p_now);
    END IF;
    PERFORM put_job('blocked', j);
END $$;

-- Run deferred work that no other call has run, in the queues that have waited longest.
CREATE FUNCTION prune_deferred(p_now bigint) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
    v_queue text;
BEGIN
    FOR v_queue IN
        SELECT queue FROM (
            SELECT number, queue FROM deferred WHERE kind IN ('arrive', 'end') ORDER BY number LIMIT 1000
        ) AS first GROUP BY queue ORDER BY min(number) LIMIT 10
    LOOP
        PERFORM run_deferred(v_queue, false, p_now);
    END LOOP;
END $$;
