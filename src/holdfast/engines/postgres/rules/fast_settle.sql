-- Fast path: plain successes, all in one statement. `settle` does the same one by one, and takes what is left.

-- Settle running jobs whose end concerns no lane, pool or child. With `p_gone` some may be deleted in the finishing
-- write, because no lifetime keeps them.
--
-- Each job is found by its token, one by one (index job_token): LIMIT keeps the planner from turning that round, and
-- `IS TRUE` from reading all running jobs of the queue, or dead versions under the job's name. Whether a job may be
-- settled this way is decided in the write itself: if another call changes the job meanwhile, the write waits for it
-- and then looks at the new version.
CREATE FUNCTION settle_fast(
    p_queues text[], p_ids text[], p_tokens text[], p_results bytea[], p_result_ttls bigint[], p_retentions bigint[],
    p_gone boolean, p_now bigint
) RETURNS settled_fast LANGUAGE plpgsql AS $$
DECLARE
    v_gone settled_fast := ('{}', '{}', '{}', '{}');
    v_done settled_fast;
BEGIN
    IF p_gone THEN
        WITH gone AS (
            DELETE FROM job AS j USING unnest(p_queues, p_ids, p_tokens, p_result_ttls, p_retentions)
                WITH ORDINALITY AS s (queue, id, token, result_ttl, retention, place)
            CROSS JOIN LATERAL (
                SELECT k.ctid AS row FROM job AS k
                WHERE k.token = s.token AND (k.id = s.id AND k.queue = s.queue) IS TRUE LIMIT 1
            ) AS f
            WHERE j.ctid = f.row AND (j.token = s.token AND j.state = 'running') IS TRUE
                AND j.lane IS NULL AND j.epoch = 0 AND NOT j.awaited AND cardinality(j.reply) < 2
                AND j.unique_key IS NULL AND j.key_scope IN ('result', 'incomplete')
                AND coalesce(j.given_retention, s.retention, 1) = 0
                AND coalesce(j.given_result_ttl, s.result_ttl, 1) = 0
            RETURNING s.place, j.queue, j.reply
        )
        SELECT coalesce(array_agg(place), '{}'), '{}', coalesce(array_agg(queue), '{}'),
            coalesce(array_agg(reply[1]) FILTER (WHERE reply <> '{}'), '{}')
        INTO v_gone FROM gone;
        IF cardinality(v_gone.places) = cardinality(p_ids) THEN
            RETURN v_gone;
        END IF;
    END IF;
    WITH done AS (
        UPDATE job AS j SET
            state = 'succeeded', token = NULL, lease_expires = NULL, loss_error = NULL, finished = p_now, reason = NULL,
            note = '', result = s.result, last_error = NULL, settled_token = s.token,
            visible_until = later(p_now, coalesce(j.given_retention, s.retention, {{retention}})),
            result_until = later(p_now, coalesce(j.given_result_ttl, s.result_ttl, {{result_ttl}})),
            key_until = key_until(j.key_scope, 'succeeded', p_now,
                later(p_now, coalesce(j.given_result_ttl, s.result_ttl, {{result_ttl}})), j.created, j.key_window)
        FROM unnest(p_queues, p_ids, p_tokens, p_results, p_result_ttls, p_retentions)
            WITH ORDINALITY AS s (queue, id, token, result, result_ttl, retention, place)
        CROSS JOIN LATERAL (
            SELECT k.ctid AS row FROM job AS k
            WHERE k.token = s.token AND (k.id = s.id AND k.queue = s.queue) IS TRUE LIMIT 1
        ) AS f
        WHERE j.ctid = f.row AND (j.token = s.token AND j.state = 'running') IS TRUE
            AND j.lane IS NULL AND j.epoch = 0 AND NOT j.awaited AND cardinality(j.reply) < 2
            AND (coalesce(j.given_retention, s.retention, 1) > 0 OR coalesce(j.given_result_ttl, s.result_ttl, 1) > 0)
        RETURNING s.place, j.queue, j.reply
    )
    SELECT v_gone.places || array_agg(place), coalesce(array_agg(queue), '{}'), v_gone.gone,
        v_gone.replies || array_agg(reply[1]) FILTER (WHERE reply <> '{}')
    INTO v_done FROM done;
    RETURN v_done;
END $$;

-- A column of an exchange: where it has one element, that of all jobs.
CREATE FUNCTION for_all(p_values anyarray, p_size int) RETURNS anyarray LANGUAGE sql IMMUTABLE AS $$
    SELECT CASE WHEN cardinality(p_values) < p_size THEN array_fill(p_values[1], ARRAY[p_size]) ELSE p_values END
$$;
