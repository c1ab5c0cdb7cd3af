-- Claim: take ready jobs under leases. `exchange` calls these functions for each queue of a claim and writes the
-- leases.

-- What a worker gets of a job it holds. The planner puts it where it is used, column by column.
CREATE FUNCTION lease_of(j job) RETURNS exchange_row LANGUAGE sql STABLE AS $$
    SELECT ROW(
        {{lease.fields}}, NULL)::exchange_row
$$;

-- Pick ready jobs of one queue, and lock them; index job_ready. The heads of the tasks are merged. If a transaction
-- with an old snapshot is open, the index keeps the entries of claimed jobs, and each claim scans all of them. Then
-- the client says where to begin (`p_cursor`): at the first job of its last claim. A job that became ready before
-- that is found by the next scan from the beginning; see `claim_cursor.py`.
-- R1: of the tasks that the claim names.
-- S2: priority, due, arrival.
-- C2: the limits of queue and task cap running and assigned jobs together.
-- C3, L8: a job past its `expires` is cancelled when it is met; the claim goes on, and leaves the queue after a
-- bounded number of them.
-- S3, C1, C4, C5, U1, T1, T2, T3, A1: in `exchange`, which calls this queue by queue.
CREATE FUNCTION claim(
    p_queue text, p_room bigint, p_cursor bigint[], p_tasks text[], p_shares bigint[], p_now bigint
) RETURNS picked LANGUAGE plpgsql AS $$
DECLARE
    c_beginning CONSTANT bigint[] := '{-32768, 0, 0}';
    v_cursor bigint[] := CASE WHEN p_cursor[1] IS NULL THEN c_beginning ELSE p_cursor END;
    v_rows tid[];
    v_of int[];
    v_over boolean[];
    v_stop int;
    v_expired text;
    v_cancelled int := 0;
    v_picked picked := ('{}', '{}');
BEGIN
    FOR i IN 1 .. {{most_expired}} + 1 LOOP  -- each further round has cancelled a job, or begins at the beginning
        -- Materialised: the planner must not look for the heads twice, and so take more than the limit.
        WITH heads AS MATERIALIZED (
            SELECT h.row, t.o::int AS task, h.expires <= p_now AS over, h.priority, h.due, h.arrival
            FROM unnest(p_tasks, p_shares) WITH ORDINALITY AS t (task, share, o)
            CROSS JOIN LATERAL (
                SELECT ctid AS row, expires, priority, due, arrival FROM job
                WHERE queue = p_queue AND task = t.task AND state = 'queued' AND ctid <> ALL (v_picked.rows)
                    AND ((-priority::int), due, arrival) >= (v_cursor[1]::int, v_cursor[2], v_cursor[3])
                ORDER BY (-priority::int), due, arrival LIMIT least(t.share, p_room) FOR UPDATE SKIP LOCKED
            ) AS h
        )
        SELECT array_agg(row), array_agg(task), array_agg(over) INTO v_rows, v_of, v_over
        FROM (SELECT row, task, over FROM heads ORDER BY priority DESC, due, arrival LIMIT p_room) AS chosen;
        v_stop := array_position(v_over, true);
        IF v_stop IS NOT NULL THEN
            v_expired := (SELECT id FROM job WHERE ctid = v_rows[v_stop]);
            v_rows := v_rows[: v_stop - 1];
            v_of := v_of[: v_stop - 1];
        END IF;
        IF v_rows <> '{}' THEN
            v_picked := (v_picked.rows || v_rows, v_picked.tasks || v_of);
            p_room := p_room - cardinality(v_rows);
        END IF;
        EXIT WHEN p_room = 0 OR v_stop IS NULL AND v_cursor = c_beginning;
        IF v_stop IS NULL THEN
            v_cursor := c_beginning;  -- fewer jobs than the limit: scan from the beginning after all
            CONTINUE;
        END IF;
        SELECT array_agg(share - coalesce(used, 0) ORDER BY o) INTO p_shares
        FROM unnest(p_shares) WITH ORDINALITY AS s (share, o)
        LEFT JOIN (SELECT task, count(*) AS used FROM unnest(v_of) AS task GROUP BY task) AS u ON u.task = s.o;
        PERFORM expire(p_queue, v_expired, p_now);
        PERFORM resolve(p_now);
        v_cancelled := v_cancelled + 1;
        EXIT WHEN v_cancelled = {{most_expired}};
    END LOOP;
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
