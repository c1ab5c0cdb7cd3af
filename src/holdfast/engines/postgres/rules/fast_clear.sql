-- Fast path: jobs whose end releases no other job are cleared in one statement. `clear_one_by_one` does the same, and
-- takes what is left.

-- Jobs outside lanes, or not at the head of one; and of the present size of their pool, if they are of a pool. The
-- caller has locked them, but they may have ended or come back before that.
CREATE FUNCTION clear_fast(p_queue text, p_ids text[], p_up_to bigint, p_epoch bigint, p_now bigint) RETURNS bigint
LANGUAGE plpgsql AS $$
DECLARE
    v_ended json;
    v_count bigint;
    v record;
BEGIN
    WITH plain AS MATERIALIZED (
        SELECT id, state, reply, CASE WHEN hold & {{hold.arriving}} = 0 THEN lane END AS lane FROM job
        WHERE queue = p_queue AND id = ANY (p_ids) AND arrival <= p_up_to
            AND state IN ({{live}}) AND state <> 'running' AND NOT awaited
            AND (coalesce(given_retention, 1) > 0 OR coalesce(given_result_ttl, 1) > 0)
            -- Lane and pool have not counted a job that is still arriving.
            AND (hold & {{hold.arriving}} <> 0 OR (
                (lane IS NULL OR hold & {{hold.lane}} <> 0) AND epoch IN (0, p_epoch)))
    ), ended AS (
        UPDATE job AS j SET
            state = 'cancelled', hold = 0, parents_left = 0, token = NULL, lease_expires = NULL, loss_error = NULL,
            finished = p_now, reason = 'cleared', note = '', result = NULL, key_until = p_now,
            visible_until = later(p_now, coalesce(j.given_retention, {{retention}})),
            result_until = later(p_now, coalesce(j.given_result_ttl, {{result_ttl}}))
        FROM plain AS p WHERE j.queue = p_queue AND j.id = p.id
    ), shorter AS (
        UPDATE lane AS l SET depth = l.depth - gone.jobs, cancelled = l.cancelled + gone.jobs
        FROM (SELECT lane, count(*) AS jobs FROM plain WHERE lane IS NOT NULL GROUP BY lane) AS gone
        WHERE l.queue = p_queue AND l.lane = gone.lane
    )
    SELECT count(*), json_agg(json_build_object('state', state, 'reply', reply)) INTO v_count, v_ended FROM plain;
    FOR v IN SELECT e ->> 'state' AS state, count(*)::int AS jobs FROM json_array_elements(v_ended) AS e GROUP BY 1 LOOP
        PERFORM count_moves(p_queue, v.state, 'cancelled', v.jobs), notify('room:' || p_queue);
    END LOOP;
    FOR v IN
        SELECT DISTINCT process
        FROM json_array_elements(v_ended) AS e, json_array_elements_text(e -> 'reply') AS process
    LOOP
        PERFORM notify('reply:' || v.process);
    END LOOP;
    RETURN v_count;
END $$;
