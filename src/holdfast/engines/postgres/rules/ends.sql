-- How jobs end. Every change to a terminal state is made by `finish`, except by the fast paths.

-- When the last of the three lifetimes ends.
CREATE FUNCTION kept_until(j job) RETURNS bigint LANGUAGE sql IMMUTABLE AS $$
    SELECT greatest(j.visible_until, j.result_until, j.key_until)
$$;

-- How long the id or key of an ended job stays taken. A failed or cancelled job frees it at once.
CREATE FUNCTION key_until(
    p_scope text, p_state text, p_finished bigint, p_result_until bigint, p_created bigint, p_window bigint
) RETURNS bigint LANGUAGE sql IMMUTABLE AS $$
    SELECT CASE
        WHEN p_state <> 'succeeded' OR p_scope = 'incomplete' THEN p_finished
        WHEN p_scope = 'result' THEN p_result_until
        WHEN p_scope = 'window' THEN greatest(p_finished, later(p_created, p_window))
        ELSE {{forever}}
    END
$$;

-- Write a counted run that did not succeed into the history.
-- H3: under its generation.
-- H4: the first entry stays, and the last ones.
CREATE FUNCTION end_attempt(INOUT j job, p_outcome text, p_error jsonb, p_now bigint) LANGUAGE plpgsql AS $$
DECLARE
    v_entry jsonb := jsonb_build_array(
        j.attempt, j.generation, j.owner, coalesce(j.last_started, p_now), p_now, p_outcome, p_error);
BEGIN
    j.history := coalesce(j.history, '[]') || jsonb_build_array(v_entry);
    IF jsonb_array_length(j.history) > {{history.length}} THEN
        j.history := j.history - {{history.first}};
    END IF;
END $$;

-- End a job: void its lease, set its lifetimes, free its lane, notify. `j` has the other changes of this end: attempt,
-- losses, history, last error. The caller has locked the job's lane.
-- K1, K2, K3, K4, K5, W4: in `ended_record`.
-- K6, P8, N2, N3: in `after_end`.
CREATE FUNCTION finish(
    p_from text, j job, p_target text, p_reason text, p_note text, p_result bytea, p_result_ttl bigint,
    p_retention bigint, p_now bigint
) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
    v_admitted boolean := j.hold & {{hold.arriving}} = 0;  -- else its lane has not admitted it, and never will
BEGIN
    j := ended_record(j, p_target, p_reason, p_note, p_result, p_result_ttl, p_retention, p_now);
    PERFORM put_job(p_from, j);
    IF current_setting('holdfast.user_transaction', true)::boolean THEN
        PERFORM defer_end(j);
    ELSE
        PERFORM after_end(j, v_admitted, p_now);
    END IF;
END $$;

-- N2: producers that wait for room.
-- N3: callers that wait for the job.
CREATE FUNCTION notify_end(j job) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
    v_reply text;
BEGIN
    PERFORM notify('room:' || j.queue);
    FOREACH v_reply IN ARRAY j.reply LOOP
        PERFORM notify('reply:' || v_reply);
    END LOOP;
END $$;

-- What follows from an end that is written: the job leaves its lane and its pool, if they had admitted it; the edges to
-- its children are resolved later in the call.
-- K6, P8: the record is deleted if no lifetime and no child keeps it.
CREATE FUNCTION after_end(j job, p_admitted boolean, p_now bigint) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    PERFORM notify_end(j);
    IF j.lane IS NOT NULL AND p_admitted THEN
        PERFORM leave_lane(j, p_now);
    END IF;
    IF j.epoch > 0 AND p_admitted THEN
        PERFORM leave_pool(j, p_now);
    END IF;
    IF j.awaited THEN
        PERFORM defer_children(j.queue, j.id, j.arrival, j.state);
    ELSIF kept_until(j) <= p_now THEN
        PERFORM drop_job(j.queue, j.id);
    END IF;
END $$;

-- The record of a job that ends.
-- K4: each lifetime counts from now, except a window.
-- K5: a lifetime given at enqueue wins over the settlement's, and that over the default.
-- W4, A13: no token, no lease expiry, no error of a loss and no hold.
CREATE FUNCTION ended_record(
    INOUT j job, p_target text, p_reason text, p_note text, p_result bytea, p_result_ttl bigint, p_retention bigint,
    p_now bigint
) LANGUAGE plpgsql AS $$
BEGIN
    j.visible_until := later(p_now, coalesce(j.given_retention, p_retention,
        CASE p_target WHEN 'failed' THEN {{failed_retention}} ELSE {{retention}} END));
    j.result_until := later(p_now, coalesce(j.given_result_ttl, p_result_ttl, {{result_ttl}}));
    j.key_until := key_until(j.key_scope, p_target, p_now, j.result_until, j.created, j.key_window);
    j.state := p_target;
    j.hold := 0;
    j.parents_left := 0;
    j.token := NULL;
    j.lease_expires := NULL;
    j.loss_error := NULL;
    j.finished := p_now;
    j.reason := p_reason;
    j.note := p_note;
    j.result := p_result;
END $$;

-- End a job that no worker holds.
CREATE FUNCTION cancel_waiting(j job, p_reason text, p_note text, p_now bigint) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    PERFORM finish(j.state, j, 'cancelled', p_reason, p_note, NULL, NULL, NULL, p_now);
END $$;
