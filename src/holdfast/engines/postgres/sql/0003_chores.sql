-- What holds jobs back from outside: lanes that admit them, parents that must end; and what is done after a commit that
-- could not do it itself.

-- Lock a job, its lane first: that is the order everywhere. Null where there is none.
CREATE FUNCTION lock_job_1(p_queue text, p_id text) RETURNS job LANGUAGE plpgsql AS $$
DECLARE
    v_lane text;
    j job;
BEGIN
    SELECT lane INTO v_lane FROM job WHERE queue = p_queue AND id = p_id;
    LOOP
        IF v_lane IS NOT NULL THEN
            PERFORM 1 FROM lane WHERE queue = p_queue AND lane = v_lane FOR UPDATE;
        END IF;
        SELECT * INTO j FROM job WHERE queue = p_queue AND id = p_id FOR UPDATE;
        EXIT WHEN j.lane IS NULL OR j.lane = v_lane;
        v_lane := j.lane;  -- it came back in another lane meanwhile
    END LOOP;
    RETURN j;
END $$;

-- Lock lanes that may be new, in order.
CREATE FUNCTION lock_lane_1(p_queue text, p_lane text, p_now bigint) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    PERFORM 1 FROM lane WHERE queue = p_queue AND lane = p_lane FOR UPDATE;
    WHILE NOT FOUND LOOP
        PERFORM declare_queue_1(p_queue);
        INSERT INTO lane (queue, lane, emptied) VALUES (p_queue, p_lane, p_now) ON CONFLICT DO NOTHING;
        PERFORM 1 FROM lane WHERE queue = p_queue AND lane = p_lane FOR UPDATE;
    END LOOP;
END $$;

-- Take a job into its lane, at the tail. The lane is locked.
CREATE FUNCTION admit_1(INOUT j job, p_now bigint) LANGUAGE plpgsql AS $$
DECLARE
    l lane;
BEGIN
    SELECT * INTO l FROM lane WHERE queue = j.queue AND lane = j.lane;
    IF l.head IS NOT NULL THEN
        j.hold := j.hold | 1;
    END IF;
    UPDATE lane SET depth = depth + 1, head = coalesce(head, j.id) WHERE queue = j.queue AND lane = j.lane;
    j := rest_1(j, l.paused, p_now);
END $$;

-- The pool's lane for a job, and the hold it may need. Shares a lock with other producers that a resize waits for, so that
-- no job of the old size is missed when it counts them.
CREATE FUNCTION place_1(INOUT j job, p_lanes bigint) LANGUAGE plpgsql AS $$
DECLARE
    p pool;
BEGIN
    PERFORM pg_advisory_xact_lock_shared(hashtextextended(current_schema || ' pool ' || j.queue, 0));
    p := declare_pool_1(j.queue, p_lanes);
    j.epoch := p.epoch;
    IF j.pool_hash IS NULL THEN
        j.lane := ((nextval(p.turns::regclass) - 1) % p.lanes)::text;
    ELSE
        j.lane := (j.pool_hash % p.lanes)::text;
        IF p.old_live > 0 THEN
            j.hold := j.hold | 16;
        END IF;
    END IF;
END $$;

CREATE FUNCTION declare_pool_1(p_name text, p_lanes bigint) RETURNS pool LANGUAGE plpgsql AS $$
DECLARE
    p pool;
    v_turns text;
BEGIN
    SELECT * INTO p FROM pool WHERE name = p_name;
    IF p.name IS NOT NULL THEN
        RETURN p;
    END IF;
    -- One at a time: a sequence is made by name, and its name counts the pools.
    PERFORM pg_advisory_xact_lock(hashtextextended(current_schema || ' pools', 0));
    SELECT * INTO p FROM pool WHERE name = p_name;
    IF p.name IS NULL THEN
        v_turns := 'turns_' || (SELECT count(*) + 1 FROM pool);
        EXECUTE format('CREATE SEQUENCE %I', v_turns);
        PERFORM declare_queue_1(p_name);
        INSERT INTO pool (name, lanes, turns) VALUES (p_name, p_lanes, v_turns) RETURNING * INTO p;
    END IF;
    RETURN p;
END $$;

-- Parents

-- Let ended parents go on to their children, and those that this ends to theirs. Nobody is waited for: who has a child or
-- its lane in hand may wait for a lane of ours. What is left so is found again, by whoever hears its queue's bell.
CREATE FUNCTION resolve_1(p_now bigint, p_budget int DEFAULT 1000) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
    c chore;
    v_seen bigint[] := '{}';
BEGIN
    WHILE p_budget > 0 LOOP
        SELECT * INTO c FROM chore WHERE kind = 'parent' AND number <> ALL (v_seen)
        ORDER BY queue, id LIMIT 1 FOR UPDATE SKIP LOCKED;
        EXIT WHEN NOT FOUND;
        p_budget := p_budget - resolve_one_1(c.queue, c.id, p_budget, p_now, false);
        v_seen := v_seen || c.number;
    END LOOP;
END $$;

-- Resolve edges of one ended parent; the parent goes, if only they kept it. Answers how many. Without `p_wait` those are
-- left whose children somebody else has in hand.
CREATE FUNCTION resolve_one_1(p_queue text, p_id text, p_budget int, p_now bigint, p_wait boolean DEFAULT true) RETURNS int
LANGUAGE plpgsql AS $$
DECLARE
    j job;
    e edge;
    v_count int := 0;
BEGIN
    IF NOT p_wait AND NOT is_free_1(p_queue, NULL, p_id) THEN
        PERFORM ring_1('queue:' || p_queue);
        RETURN 0;
    END IF;
    SELECT * INTO j FROM job WHERE queue = p_queue AND id = p_id FOR UPDATE;
    FOR e IN
        SELECT * FROM edge WHERE parent_queue = p_queue AND parent_id = p_id
        ORDER BY child_queue, child_id LIMIT p_budget
    LOOP
        IF NOT p_wait AND NOT is_free_1(e.child_queue, (
            SELECT lane FROM job WHERE queue = e.child_queue AND id = e.child_id), e.child_id)
        THEN
            PERFORM ring_1('queue:' || e.child_queue);
            CONTINUE;
        END IF;
        v_count := v_count + 1;
        DELETE FROM edge WHERE (parent_queue, parent_id, child_queue, child_id, arrival)
            = (e.parent_queue, e.parent_id, e.child_queue, e.child_id, e.arrival);
        PERFORM tell_child_1(e, coalesce(j.state, 'cancelled'), p_now);
    END LOOP;
    IF NOT EXISTS (SELECT 1 FROM edge WHERE parent_queue = p_queue AND parent_id = p_id) THEN
        DELETE FROM chore WHERE kind = 'parent' AND queue = p_queue AND id = p_id;
        IF is_terminal_1(j.state) AND kept_until_1(j) <= p_now THEN
            PERFORM drop_1(p_queue, p_id);
        ELSE
            UPDATE job SET awaited = false WHERE queue = p_queue AND id = p_id;
        END IF;
    END IF;
    RETURN v_count;
END $$;

-- Lock a job, behind its lane if that is given, unless somebody else has one of them. What does not exist is free.
CREATE FUNCTION is_free_1(p_queue text, p_lane text, p_id text) RETURNS boolean LANGUAGE plpgsql AS $$
BEGIN
    IF p_lane IS NOT NULL THEN
        PERFORM 1 FROM lane WHERE queue = p_queue AND lane = p_lane FOR UPDATE SKIP LOCKED;
        IF NOT FOUND AND EXISTS (SELECT 1 FROM lane WHERE queue = p_queue AND lane = p_lane) THEN
            RETURN false;
        END IF;
    END IF;
    PERFORM 1 FROM job WHERE queue = p_queue AND id = p_id FOR UPDATE SKIP LOCKED;
    RETURN FOUND OR NOT EXISTS (SELECT 1 FROM job WHERE queue = p_queue AND id = p_id);
END $$;

CREATE FUNCTION tell_child_1(e edge, p_parent_state text, p_now bigint) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
    j job := lock_job_1(e.child_queue, e.child_id);
    v_from text := j.state;
BEGIN
    IF j.arrival IS DISTINCT FROM e.arrival OR j.hold & 2 = 0 THEN
        RETURN;
    END IF;
    IF p_parent_state <> 'succeeded' AND NOT e.any_end THEN
        PERFORM finish_1(v_from, j, 'cancelled', 'parent_failed', e.parent_id || ' ' || p_parent_state,
            NULL, NULL, NULL, p_now);
        RETURN;
    END IF;
    j.parents_left := j.parents_left - 1;
    IF j.parents_left = 0 THEN
        j.hold := j.hold & ~2;
    END IF;
    j := rest_1(j, CASE WHEN j.lane IS NULL THEN false ELSE lane_paused_1(j.queue, j.lane) END, p_now);
    PERFORM put_1(v_from, j);
END $$;

-- Draw the edges of a new job to parents that have not ended, and answer their number and whether one has failed already.
-- The parents are locked in order, so that none of them ends meanwhile. `p_was`: how those had ended whose names were taken
-- over by jobs of this group that come after it, or by the job itself.
CREATE FUNCTION link_1(
    p_queue text, p_id text, p_arrival bigint, p_parents jsonb, p_was jsonb, OUT p_left int, OUT p_failed boolean
) LANGUAGE plpgsql AS $$
DECLARE
    v record;
    v_state text;
BEGIN
    p_left := 0;
    p_failed := false;
    FOR v IN
        SELECT DISTINCT ON (queue, id) value -> 'job' ->> 'queue' AS queue, value -> 'job' ->> 'id' AS id,
            coalesce((value ->> 'any_end')::boolean, false) AS any_end
        FROM jsonb_array_elements(p_parents) WITH ORDINALITY ORDER BY queue, id, ordinality
    LOOP
        SELECT coalesce(p_was ->> name_1(queue, id), state) INTO v_state
        FROM job WHERE queue = v.queue AND id = v.id FOR UPDATE;
        IF FOUND AND NOT is_terminal_1(v_state) THEN
            INSERT INTO edge VALUES (v.queue, v.id, p_queue, p_id, p_arrival, v.any_end);
            UPDATE job SET awaited = true WHERE queue = v.queue AND id = v.id AND NOT awaited;
            p_left := p_left + 1;
        ELSIF NOT v.any_end AND v_state IS DISTINCT FROM 'succeeded' THEN
            p_failed := true;
        END IF;
    END LOOP;
END $$;

-- Chores

-- Do what commits of users' transactions have left behind in this queue. Only one call at a time does, so that jobs are
-- admitted in the order they came; with `p_wait` a call that needs it done waits for its turn.
CREATE FUNCTION chores_1(p_queue text, p_wait boolean, p_now bigint) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
    v_lock bigint := hashtextextended(current_schema || ' chores ' || p_queue, 0);
    c chore;
BEGIN
    IF NOT EXISTS (SELECT 1 FROM chore WHERE kind IN ('arrive', 'end') AND queue = p_queue) THEN
        RETURN;
    END IF;
    IF p_wait THEN
        PERFORM pg_advisory_xact_lock(v_lock);
    ELSIF NOT pg_try_advisory_xact_lock(v_lock) THEN
        RETURN;
    END IF;
    FOR c IN SELECT * FROM chore WHERE kind = 'end' AND queue = p_queue ORDER BY number LIMIT 1000 LOOP
        DELETE FROM chore WHERE number = c.number;
        PERFORM after_end_1(c, p_now);
    END LOOP;
    FOR c IN SELECT * FROM chore WHERE kind = 'arrive' AND queue = p_queue ORDER BY arrival LIMIT 1000 LOOP
        DELETE FROM chore WHERE number = c.number;
        PERFORM after_arrival_1(c, p_now);
    END LOOP;
END $$;

-- A job that was ended in a transaction of a user's: its lane, its pool and its children hear of it now.
CREATE FUNCTION after_end_1(c chore, p_now bigint) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
    j job := lock_job_1(c.queue, c.id);
BEGIN
    IF j.arrival = c.arrival AND is_terminal_1(j.state) THEN
        PERFORM leave_1(j, true, p_now);
    END IF;
END $$;

-- A job that came in a transaction of a user's: link it to its parents, place it in its pool, admit it to its lane.
CREATE FUNCTION after_arrival_1(c chore, p_now bigint) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
    j job;
    e edge;
    v_state text;
BEGIN
    IF c.lane IS NOT NULL THEN
        PERFORM lock_lane_1(c.queue, c.lane, p_now);
    END IF;
    SELECT * INTO j FROM job WHERE queue = c.queue AND id = c.id FOR UPDATE;
    IF j.arrival IS DISTINCT FROM c.arrival OR j.hold & 8 = 0 THEN  -- it has ended, or lives again
        DELETE FROM edge WHERE child_queue = c.queue AND child_id = c.id AND arrival = c.arrival;
        RETURN;
    END IF;
    FOR e IN
        SELECT * FROM edge WHERE child_queue = j.queue AND child_id = j.id AND arrival = j.arrival
        ORDER BY parent_queue, parent_id
    LOOP
        SELECT state INTO v_state FROM job WHERE queue = e.parent_queue AND id = e.parent_id FOR UPDATE;
        IF FOUND AND NOT is_terminal_1(v_state) THEN
            UPDATE job SET awaited = true WHERE queue = e.parent_queue AND id = e.parent_id AND NOT awaited;
        ELSE
            INSERT INTO chore (kind, queue, id, arrival) VALUES ('parent', e.parent_queue, e.parent_id, 0);
        END IF;
    END LOOP;
    j.hold := j.hold & ~8;
    IF j.epoch > 0 THEN
        j := place_1(j, 1);  -- the pool was declared before its job could come
        PERFORM lock_lane_1(j.queue, j.lane, p_now);
    END IF;
    IF j.lane IS NOT NULL THEN
        j := admit_1(j, p_now);
    ELSE
        j := rest_1(j, false, p_now);
    END IF;
    PERFORM put_1('blocked', j);
END $$;
