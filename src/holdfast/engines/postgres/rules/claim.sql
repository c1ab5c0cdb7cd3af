-- Claim: take ready jobs under leases. `exchange` calls these functions for each queue of a claim and writes the
-- leases.

-- Pick ready jobs of one queue, and lock them; index job_ready. If a transaction with an old snapshot is open, the
-- index keeps the entries of claimed jobs, and each claim scans all of them. Then the client says where to begin
-- (`p_cursor`): at the first job of its last claim. A job that became ready before that is found by the next scan from
-- the beginning; see `claim_cursor.py`.
--
-- A claim locks what it takes and nothing else: another claim passes over a locked job, and would come back empty. So
-- jobs of one task are locked as they are read. Of several tasks the heads are read and merged first; then the best of
-- them are locked, and if other claims have locked some of those, the next best.
-- R1: of the tasks that the claim names.
-- S2: priority, due, arrival.
-- C2: the limits of queue and task cap running and assigned jobs together.
-- C3, L8: a job past its `expires` is cancelled when it is met; the claim goes on, and leaves the queue after a
-- bounded number of them. One whose lane another call has locked is left for later.
-- S3, C1, C4, C5, U1, T1, T2, T3, A1: in `exchange`, which calls this queue by queue.
CREATE FUNCTION claim(
    p_queue text, p_room bigint, p_cursor bigint[], p_tasks text[], p_shares bigint[], p_now bigint
) RETURNS picked LANGUAGE plpgsql AS $$
DECLARE
    c_rounds CONSTANT int := 50;  -- each of them locks twice as many heads as the one before
    c_beginning CONSTANT bigint[] := '{-32768, 0, 0}';
    v_cursor bigint[] := CASE WHEN p_cursor[1] IS NULL THEN c_beginning ELSE p_cursor END;
    v_heads bigint := p_room;  -- how many of the best heads to lock; more than are taken if others are locked
    v_rows tid[];
    v_of int[];
    v_over boolean[];
    v_seen tid[] := '{}';  -- picked before, or locked by other calls
    v_met tid[];
    v_stop int;
    v_expired text;
    v_lane text;
    v_cancelled int := 0;
    v_rounds int := 0;  -- rounds that have picked jobs
    v_picked picked := ('{}', '{}');
BEGIN
    -- Each further round has cancelled a job, has met jobs that others have locked, or begins at the beginning.
    FOR i IN 1 .. {{most_expired}} + c_rounds LOOP
        v_met := '{}';
        IF cardinality(p_tasks) = 1 THEN
            SELECT array_agg(row), array_agg(1), array_agg(over) INTO v_rows, v_of, v_over FROM (
                SELECT ctid AS row, expires <= p_now AS over FROM job
                WHERE queue = p_queue AND task = p_tasks[1] AND state = 'queued'
                    AND ctid <> ALL (v_seen)
                    AND ((-priority::int), due, arrival) >= (v_cursor[1]::int, v_cursor[2], v_cursor[3])
                ORDER BY (-priority::int), due, arrival LIMIT least(p_shares[1], p_room) FOR UPDATE SKIP LOCKED
            ) AS chosen;
        ELSE
            -- Materialised, so that each part is carried out once, in the order of the claim.
            WITH heads AS MATERIALIZED (
                SELECT h.row, t.o::int AS task, h.priority, h.due, h.arrival
                FROM unnest(p_tasks, p_shares) WITH ORDINALITY AS t (task, share, o)
                CROSS JOIN LATERAL (
                    SELECT ctid AS row, priority, due, arrival FROM job
                    WHERE queue = p_queue AND task = t.task AND state = 'queued'
                        AND ctid <> ALL (v_seen)
                        AND ((-priority::int), due, arrival) >= (v_cursor[1]::int, v_cursor[2], v_cursor[3])
                    ORDER BY (-priority::int), due, arrival LIMIT least(t.share, v_heads)
                ) AS h
            ), best AS MATERIALIZED (
                SELECT row, task FROM heads ORDER BY priority DESC, due, arrival LIMIT v_heads
            ), taken AS MATERIALIZED (
                SELECT l.row, b.task, l.over FROM best AS b CROSS JOIN LATERAL (
                    SELECT ctid AS row, expires <= p_now AS over FROM job
                    WHERE ctid = b.row AND state = 'queued' FOR UPDATE SKIP LOCKED
                ) AS l LIMIT p_room
            )
            SELECT array_agg(row), array_agg(task), array_agg(over), (SELECT array_agg(row) FROM best)
            INTO v_rows, v_of, v_over, v_met FROM taken;
        END IF;
        v_stop := array_position(v_over, true);
        IF v_stop IS NOT NULL THEN
            SELECT id, lane INTO v_expired, v_lane FROM job WHERE ctid = v_rows[v_stop];
            IF NOT lock_if_free(p_queue, v_lane, v_expired) THEN
                v_seen := v_seen || v_rows[v_stop];
                v_expired := NULL;
            END IF;
            v_rows := v_rows[: v_stop - 1];
            v_of := v_of[: v_stop - 1];
        ELSIF cardinality(v_met) > coalesce(cardinality(v_rows), 0) THEN
            v_seen := v_seen || ARRAY(SELECT unnest(v_met) EXCEPT SELECT unnest(v_rows));
            v_heads := 2 * v_heads;
        ELSE
            v_met := '{}';
        END IF;
        IF v_rows <> '{}' THEN
            v_rounds := v_rounds + 1;
            v_picked := (v_picked.rows || v_rows, v_picked.tasks || v_of);
            v_seen := v_seen || v_rows;
            p_room := p_room - cardinality(v_rows);
        END IF;
        EXIT WHEN p_room = 0 OR v_stop IS NULL AND v_met = '{}' AND v_cursor = c_beginning;
        IF v_stop IS NULL AND v_met = '{}' THEN
            v_cursor := c_beginning;  -- fewer jobs than the limit: scan from the beginning after all
        END IF;
        IF v_rows <> '{}' THEN
            SELECT array_agg(share - coalesce(used, 0) ORDER BY o) INTO p_shares
            FROM unnest(p_shares) WITH ORDINALITY AS s (share, o)
            LEFT JOIN (SELECT task, count(*) AS used FROM unnest(v_of) AS task GROUP BY task) AS u ON u.task = s.o;
        END IF;
        IF v_stop IS NOT NULL AND v_expired IS NOT NULL THEN
            PERFORM expire(p_queue, v_expired, p_now);
            PERFORM resolve(p_now);
            v_cancelled := v_cancelled + 1;
            EXIT WHEN v_cancelled = {{most_expired}};
        END IF;
    END LOOP;
    -- Jobs of a later round may come before those of an earlier one: they became ready, or were unlocked, in between.
    IF v_rounds > 1 THEN
        SELECT array_agg(p.row ORDER BY j.priority DESC, j.due, j.arrival),
            array_agg(p.task ORDER BY j.priority DESC, j.due, j.arrival)
        INTO v_rows, v_of
        FROM unnest(v_picked.rows, v_picked.tasks) AS p (row, task)
        CROSS JOIN LATERAL (SELECT priority, due, arrival FROM job WHERE ctid = p.row) AS j;
        v_picked := (v_rows, v_of);
    END IF;
    RETURN v_picked;
END $$;

-- A waiting job is past its `expires`.
CREATE FUNCTION expire(p_queue text, p_id text, p_now bigint) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
    j job := lock_job(p_queue, p_id);
BEGIN
    PERFORM cancel_waiting(j, 'expired', '', p_now);
END $$;

-- Move jobs that are due to ready; index job_due. A job that another call has locked is left for later.
-- C1: in (due, arrival) order, a bounded number.
CREATE FUNCTION promote_due(p_queue text, p_now bigint) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
    v record;
    j job;
    v_from text;
BEGIN
    FOR v IN
        SELECT id, lane FROM job WHERE queue = p_queue AND state IN ({{by_due}}) AND due <= p_now
        ORDER BY due, arrival LIMIT {{most_promoted}}
    LOOP
        IF v.lane IS NOT NULL THEN
            PERFORM 1 FROM lane WHERE queue = p_queue AND lane = v.lane FOR UPDATE SKIP LOCKED;
            CONTINUE WHEN NOT FOUND;
        END IF;
        SELECT * INTO j FROM job WHERE queue = p_queue AND id = v.id AND state IN ({{by_due}})
            AND due <= p_now FOR UPDATE SKIP LOCKED;
        CONTINUE WHEN NOT FOUND;
        v_from := j.state;
        j := as_waiting(j, (SELECT paused FROM lane WHERE queue = p_queue AND lane = v.lane), p_now);
        PERFORM put_job(v_from, j);
    END LOOP;
END $$;

-- When the next waiting job of a queue falls due. `exchange` has the same query inside a statement of three, which
-- saves a statement per call.
CREATE FUNCTION next_due(p_queue text) RETURNS bigint LANGUAGE plpgsql AS $$
BEGIN
    RETURN (SELECT due FROM job WHERE queue = p_queue AND state IN ({{by_due}}) ORDER BY due LIMIT 1);
END $$;
