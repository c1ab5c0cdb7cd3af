-- Settle: what has ended is written, each only while its token is the current one.

-- Plain successes: their places in the list; the queues of those that stay and of those that are gone, one element each; and
-- the processes that wait for an answer.
CREATE TYPE plain AS (places bigint[], ended text[], gone text[], replies text[]);

-- Plain successes, all in one statement: running jobs that hold nobody back. What is left
-- goes through `settle_1`, one by one. With `p_gone` some may go in the finishing write, since nobody will ask for them.
--
-- Each job is looked for by its token, one by one: LIMIT keeps the planner from turning that round, and `IS TRUE` from
-- looking through all running jobs of the queue, or through what is left of earlier versions under the job's name. Whether
-- it may be settled so is asked in the write itself: if somebody changes the job meanwhile, the write waits for that and then
-- looks at what the job has become. What does not fit is left for `settle_1`.
CREATE FUNCTION settle_plain_1(
    p_queues text[], p_ids text[], p_tokens text[], p_results bytea[], p_result_ttls bigint[], p_retentions bigint[],
    p_gone boolean, p_now bigint
) RETURNS plain LANGUAGE plpgsql AS $$
DECLARE
    v_gone plain := ('{}', '{}', '{}', '{}');
    v_done plain;
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
            state = 'succeeded', token = NULL, lease_expires = NULL, finished = p_now, reason = NULL,
            note = '', result = s.result, last_error = NULL, settled_token = s.token,
            visible_until = later_1(p_now, coalesce(j.given_retention, s.retention, 86400000000)),
            result_until = later_1(p_now, coalesce(j.given_result_ttl, s.result_ttl, 3600000000)),
            key_until = key_until_1(j.key_scope, 'succeeded', p_now,
                later_1(p_now, coalesce(j.given_result_ttl, s.result_ttl, 3600000000)), j.created, j.key_window)
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

-- One settlement of any kind. Lanes are locked.
CREATE FUNCTION settle_1(s settlement, p_now bigint) RETURNS text LANGUAGE plpgsql AS $$
DECLARE
    j job;
    v_reap boolean := s.listed_expiry IS NOT NULL;
    v_note text := coalesce(s.note, '');
BEGIN
    -- Only who holds the current token is locked, or waited for: one that is not will never be again, and its job may be in
    -- the hands of an arrival that replaces it and waits for the lane we hold.
    IF v_reap THEN  -- a reaper waits for nobody: who holds the job is about to settle it
        SELECT * INTO j FROM job WHERE queue = s.queue AND id = s.id AND token = s.token FOR UPDATE SKIP LOCKED;
    ELSE
        SELECT * INTO j FROM job WHERE queue = s.queue AND id = s.id AND token = s.token FOR UPDATE;
    END IF;
    IF NOT FOUND THEN
        SELECT * INTO j FROM job WHERE queue = s.queue AND id = s.id;
        IF NOT FOUND THEN
            RETURN 'gone';
        END IF;
        -- Sent again, it has been applied. Not so in a user's transaction: what else is in there was not.
        RETURN CASE WHEN NOT v_reap AND j.settled_token = s.token AND NOT current_setting('holdfast.joined')::boolean
            THEN 'applied' ELSE 'lost' END;
    END IF;
    IF v_reap THEN
        IF coalesce(s.refund, false) AND j.state = 'running' THEN
            RETURN 'lost';  -- it has begun since it was listed: its attempt counts
        END IF;
        IF j.lease_expires <> s.listed_expiry OR s.listed_expiry > p_now THEN
            RETURN 'lost';  -- it was renewed since it was listed
        END IF;
    ELSIF j.state = 'assigned' AND s.target <> 'queued' THEN
        j := start_1(j, p_now);
    END IF;
    IF j.cancel_asked AND NOT is_terminal_1(s.target) THEN
        PERFORM apply_1(j, s, 'cancelled', 'asked', j.cancel_note, p_now);
        RETURN 'cancelled_instead';
    END IF;
    IF s.target = 'cancelled' AND v_note = '' THEN
        v_note := j.cancel_note;  -- the handler stopped because it was asked to: keep what was said then
    END IF;
    PERFORM apply_1(j, s, s.target, s.reason, v_note, p_now);
    RETURN 'applied';
END $$;

CREATE FUNCTION apply_1(j job, s settlement, p_target text, p_reason text, p_note text, p_now bigint) RETURNS void
LANGUAGE plpgsql AS $$
DECLARE
    v_from text := j.state;
    v_refund int := coalesce(s.refund, false)::int;
    v_reap boolean := s.listed_expiry IS NOT NULL;
BEGIN
    IF j.state = 'running' AND v_refund = 0 AND p_target IN ('retrying', 'failed', 'cancelled') THEN
        j := end_attempt_1(j, CASE
            WHEN s.reason = 'worker_lost' THEN 'worker_lost'
            WHEN s.reason = 'timeout' THEN 'timed_out'
            WHEN p_target = 'cancelled' THEN 'cancelled'
            ELSE 'failed' END, s.error, p_now);
    END IF;
    j.attempt := j.attempt - v_refund;
    IF v_reap THEN
        j.losses := j.losses + 1;
    ELSE
        j.settled_token := s.token;
    END IF;
    j.last_error := CASE WHEN p_target = 'succeeded' THEN NULL ELSE coalesce(s.error, j.last_error) END;
    IF is_terminal_1(p_target) THEN
        PERFORM finish_1(v_from, j, p_target, p_reason, p_note,
            CASE WHEN p_target = 'succeeded' THEN decode(s.result, 'base64') END, s.result_ttl, s.retention, p_now);
        RETURN;
    END IF;
    j.token := NULL;
    j.lease_expires := NULL;
    j.reason := p_reason;
    j.note := p_note;
    IF p_target = 'queued' THEN
        j := rest_1(j, (SELECT paused FROM lane WHERE queue = j.queue AND lane = j.lane), p_now);
    ELSE
        j.state := p_target;
        j.due := CASE WHEN s.due IS NULL THEN p_now + coalesce(s.delay, 0) ELSE greatest(p_now, s.due) END;
    END IF;
    PERFORM put_1(v_from, j);
END $$;

-- An assigned job begins.
CREATE FUNCTION start_1(INOUT j job, p_now bigint) LANGUAGE plpgsql AS $$
DECLARE
    v_from text := j.state;
BEGIN
    j.state := 'running';
    j.started := coalesce(j.started, p_now);
    j.last_started := p_now;
    PERFORM put_1(v_from, j);
END $$;

CREATE FUNCTION scope_paused_1(p_queue text, p_lane text) RETURNS boolean LANGUAGE sql STABLE AS $$
    SELECT coalesce((SELECT paused FROM queue WHERE queue = p_queue), false)
        OR coalesce((SELECT paused FROM lane WHERE queue = p_queue AND lane = p_lane), false)
$$;

-- What was prefetched is about to run.
CREATE FUNCTION start_asked_1(p_queue text, p_id text, p_token text, p_now bigint) RETURNS text LANGUAGE plpgsql AS $$
DECLARE
    j job;
BEGIN
    SELECT * INTO j FROM job WHERE queue = p_queue AND id = p_id AND token = p_token FOR UPDATE;
    IF NOT FOUND THEN
        RETURN 'lost';
    ELSIF j.cancel_asked THEN
        RETURN 'cancel';
    ELSIF j.state = 'running' THEN
        RETURN 'started';
    ELSIF scope_paused_1(p_queue, j.lane) THEN
        RETURN 'hold';
    END IF;
    PERFORM start_1(j, p_now);
    RETURN 'started';
END $$;
