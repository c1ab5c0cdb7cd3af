-- Parents: jobs that wait for other jobs to end. An edge exists from the child's enqueue until its parent has ended.

-- Lock a job, its lane first, which is the order everywhere. Null fields: there is no such job.
CREATE FUNCTION lock_job(p_queue text, p_id text) RETURNS job LANGUAGE plpgsql AS $$
DECLARE
    c_most CONSTANT int := 10;  -- rounds; each further one needs another call that moves the job in between
    v_lane text;
    j job;
BEGIN
    SELECT lane INTO v_lane FROM job WHERE queue = p_queue AND id = p_id;
    FOR i IN 1 .. c_most LOOP
        IF v_lane IS NOT NULL THEN
            PERFORM 1 FROM lane WHERE queue = p_queue AND lane = v_lane FOR UPDATE;
        END IF;
        SELECT * INTO j FROM job WHERE queue = p_queue AND id = p_id FOR UPDATE;
        IF j.lane IS NULL OR j.lane = v_lane THEN
            RETURN j;
        END IF;
        v_lane := j.lane;  -- it came back in another lane meanwhile
    END LOOP;
    PERFORM give_up_looking('job ' || p_id);
END $$;

-- The requested parents, each once.
CREATE FUNCTION parents_of(p_parents jsonb) RETURNS TABLE (queue text, id text, any_end boolean) LANGUAGE sql AS $$
    SELECT DISTINCT ON (1, 2) value -> 'job' ->> 'queue', value -> 'job' ->> 'id',
        coalesce((value ->> 'any_end')::boolean, false)
    FROM jsonb_array_elements(coalesce(p_parents, '[]')) WITH ORDINALITY ORDER BY 1, 2, ordinality
$$;

-- Lock a job, after its lane if one is given, unless another call has locked one of them. What does not exist is
-- free.
CREATE FUNCTION lock_if_free(p_queue text, p_lane text, p_id text) RETURNS boolean LANGUAGE plpgsql AS $$
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

-- Lock an edge, unless another call has locked or deleted it.
CREATE FUNCTION lock_edge_if_free(e edge) RETURNS boolean LANGUAGE plpgsql AS $$
BEGIN
    PERFORM 1 FROM edge WHERE (parent_queue, parent_id, parent_arrival, child_queue, child_id, arrival)
        = (e.parent_queue, e.parent_id, e.parent_arrival, e.child_queue, e.child_id, e.arrival) FOR UPDATE SKIP LOCKED;
    RETURN FOUND;
END $$;

-- Write the edges of a new job to its parents that have not ended. Answers their number, and whether a parent has
-- failed. Locks the parents in order, so that none of them ends meanwhile. `p_was`: how jobs had ended that this
-- group replaces after this job, or that this job replaces itself.
-- P2: an ended parent needs no edge.
-- P3: it failed or was cancelled.
-- P4: the others are counted.
CREATE FUNCTION link(
    p_queue text, p_id text, p_arrival bigint, p_parents jsonb, p_was jsonb, OUT p_left int, OUT p_failed boolean
) LANGUAGE plpgsql AS $$
DECLARE
    v record;
    v_arrival bigint;
    v_state text;
BEGIN
    p_left := 0;
    p_failed := false;
    FOR v IN SELECT * FROM parents_of(p_parents) LOOP
        SELECT arrival, coalesce(p_was ->> name_of(queue, id), state) INTO v_arrival, v_state
        FROM job WHERE queue = v.queue AND id = v.id FOR UPDATE;
        IF FOUND AND NOT is_terminal(v_state) THEN
            INSERT INTO edge (parent_queue, parent_id, parent_arrival, child_queue, child_id, arrival, any_end)
            VALUES (v.queue, v.id, v_arrival, p_queue, p_id, p_arrival, v.any_end);
            UPDATE job SET awaited = true WHERE queue = v.queue AND id = v.id AND NOT awaited;
            p_left := p_left + 1;
        ELSIF NOT v.any_end AND v_state IS DISTINCT FROM 'succeeded' THEN
            p_failed := true;
        END IF;
    END LOOP;
END $$;

-- Resolve the edges of ended parents, and those of the children that this ends. Waits for no lock: a call that has
-- locked a child or its lane may wait for a lane of this call. Edges left that way are resolved by a later call; the
-- notification of their queue wakes a worker.
-- P6: at most a number per call; later calls resolve the rest.
CREATE FUNCTION resolve(p_now bigint, p_budget int DEFAULT {{most_resolved}}) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
    c deferred;
    v_seen bigint[] := '{}';
BEGIN
    FOR i IN 1 .. {{most_resolved}} LOOP
        EXIT WHEN p_budget <= 0;
        SELECT * INTO c FROM deferred WHERE kind = 'parent' AND number <> ALL (v_seen)
        ORDER BY queue, id LIMIT 1 FOR UPDATE SKIP LOCKED;
        EXIT WHEN NOT FOUND;
        p_budget := p_budget - resolve_one(c.queue, c.id, c.arrival, c.state, p_budget, p_now, false);
        v_seen := v_seen || c.number;
    END LOOP;
END $$;

-- Resolve edges of one ended parent; answers their number. Without `p_wait` it leaves edges whose child is locked by
-- another call. `p_arrival` and `p_state`: which job of that id it is, and how it ended. A user's transaction that
-- replaces the parent may have locked its record: then only the edges are resolved, and a later call does the rest.
-- P7, P10: so its children get its own end, also if its id was used again.
-- P8: the parent is deleted with its last edge if only they kept it.
CREATE FUNCTION resolve_one(
    p_queue text, p_id text, p_arrival bigint, p_state text, p_budget int, p_now bigint, p_wait boolean DEFAULT true
) RETURNS int LANGUAGE plpgsql AS $$
DECLARE
    j job;
    e edge;
    v_state text;
    v_locked boolean := false;
    v_count int := 0;
BEGIN
    IF p_wait THEN
        SELECT * INTO j FROM job WHERE queue = p_queue AND id = p_id AND arrival = p_arrival FOR UPDATE;
    ELSE
        SELECT * INTO j FROM job WHERE queue = p_queue AND id = p_id AND arrival = p_arrival FOR UPDATE SKIP LOCKED;
        v_locked := NOT FOUND AND EXISTS (
            SELECT 1 FROM job WHERE queue = p_queue AND id = p_id AND arrival = p_arrival);
    END IF;
    v_state := coalesce(j.state, p_state, (
        SELECT max(state) FROM deferred
        WHERE kind = 'parent' AND queue = p_queue AND id = p_id AND arrival = p_arrival), 'succeeded');
    FOR e IN
        SELECT * FROM edge WHERE parent_queue = p_queue AND parent_id = p_id AND parent_arrival = p_arrival
        ORDER BY child_queue, child_id LIMIT p_budget
    LOOP
        IF NOT p_wait AND NOT lock_edge_if_free(e) THEN
            CONTINUE;  -- another call resolves it
        ELSIF NOT p_wait AND NOT lock_if_free(e.child_queue, (
            SELECT lane FROM job WHERE queue = e.child_queue AND id = e.child_id), e.child_id)
        THEN
            PERFORM notify('queue:' || e.child_queue);
            CONTINUE;
        END IF;
        v_count := v_count + 1;
        DELETE FROM edge WHERE (parent_queue, parent_id, parent_arrival, child_queue, child_id, arrival)
            = (e.parent_queue, e.parent_id, e.parent_arrival, e.child_queue, e.child_id, e.arrival);
        PERFORM resolve_edge(e, v_state, p_now);
    END LOOP;
    IF NOT v_locked AND NOT EXISTS (
        SELECT 1 FROM edge WHERE parent_queue = p_queue AND parent_id = p_id AND parent_arrival = p_arrival)
    THEN
        DELETE FROM deferred WHERE kind = 'parent' AND queue = p_queue AND id = p_id AND arrival = p_arrival;
        IF is_terminal(j.state) AND kept_until(j) <= p_now THEN
            PERFORM drop_job(p_queue, p_id);
        ELSE
            UPDATE job SET awaited = false WHERE queue = p_queue AND id = p_id AND arrival = p_arrival;
        END IF;
    END IF;
    RETURN v_count;
END $$;

-- A parent has ended: the child goes on, or is cancelled.
-- P9: an edge does not apply to a later job of that id.
-- P5: an end without success cancels the child, unless the edge accepts any end.
-- P4: the hold ends with the last parent.
CREATE FUNCTION resolve_edge(e edge, p_parent_state text, p_now bigint) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
    j job := lock_job(e.child_queue, e.child_id);
    v_from text := j.state;
BEGIN
    IF j.arrival IS DISTINCT FROM e.arrival OR j.hold & {{hold.parents}} = 0 THEN
        RETURN;
    END IF;
    IF p_parent_state <> 'succeeded' AND NOT e.any_end THEN
        PERFORM cancel_waiting(j, 'parent_failed', e.parent_id || ' ' || p_parent_state, p_now);
        RETURN;
    END IF;
    j.parents_left := j.parents_left - 1;
    IF j.parents_left = 0 THEN
        j.hold := j.hold & ~{{hold.parents}};
    END IF;
    j := as_waiting(j, CASE WHEN j.lane IS NULL THEN false ELSE lane_paused(j.queue, j.lane) END, p_now);
    PERFORM put_job(v_from, j);
END $$;

-- Resolve all edges of an ended job before its record is deleted, replaced or requeued. False: only the edges had kept
-- the record, and it is deleted now.
CREATE FUNCTION resolve_children(j job, p_now bigint) RETURNS boolean LANGUAGE plpgsql AS $$
BEGIN
    IF EXISTS (
        SELECT 1 FROM edge WHERE parent_queue = j.queue AND parent_id = j.id AND parent_arrival = j.arrival)
    THEN
        PERFORM resolve_one(j.queue, j.id, j.arrival, j.state, NULL, p_now);
        RETURN EXISTS (SELECT 1 FROM job WHERE queue = j.queue AND id = j.id);
    END IF;
    RETURN true;
END $$;
