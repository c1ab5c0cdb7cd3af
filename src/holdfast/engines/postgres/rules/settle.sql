-- Exchange: settle what has ended, start what was prefetched, claim what is ready, in one call and one commit.
--
-- Locks: lanes first, then jobs. What depends on a lock is read in a later statement than the one that took it.

-- `p_queues` to `p_retentions` are successes for the fast path; where a column has one element, it is that of all
-- jobs. `p_rest` are all other settlements. In the answer `plain` is null if all of the former are applied. A claim
-- names queues, and for each its limit and where among the terms those of its tasks stand.
--
-- With `p_wait` a call that meets a lock waits for it, and fails after a short time. The client then sends it again
-- without `p_wait`, and with all settlements in `p_rest`: what another transaction has locked is left out, and all
-- else is done.
-- G8: without `p_wait`, a settlement or start of a locked job is answered `busy`.
--
-- No plan may depend on statistics, which are missing or old whenever a queue has just been filled or drained. So the
-- planner may neither sort nor read a table whole: only the index that has the order of a statement is left.
-- R2: for a claim that is job_ready.
-- W2: settlements, then children, then starts, then due jobs and the claim.
-- L8: lanes that ran empty are named in the answer.
CREATE FUNCTION exchange(
    p_queues text[], p_ids text[], p_tokens text[], p_results bytea[], p_result_ttls bigint[], p_retentions bigint[],
    p_gone boolean, p_rest json, p_lanes boolean, p_starts json,
    p_claim_id text, p_worker text, p_limit bigint, p_room bigint,
    p_sources text[], p_rooms bigint[], p_cursors bigint[], p_begins int[], p_ends int[],
    p_tasks text[], p_shares bigint[], p_lease_lens bigint[], p_attempts bigint[], p_losses bigint[], p_wait boolean,
    p_offset bigint, p_not_before_us bigint, p_sender text DEFAULT NULL
) RETURNS SETOF exchange_row LANGUAGE plpgsql {{entry}}
SET enable_seqscan = off SET enable_hashjoin = off SET enable_mergejoin = off SET enable_memoize = off SET jit = off
SET enable_sort = off SET enable_bitmapscan = off
SET plan_cache_mode = force_generic_plan SET lock_timeout = {{exchange_lock_wait_ms}} AS $$
DECLARE
    v_none text := begin_call();
    v_clock bigint;
    v_now bigint;
    v_size int;
    v_done settled_fast := ('{}', '{}', '{}', '{}');
    v_plain text := 'null';
    v_settled text := '[]';
    v_started text := '[]';
    v_process text;
    v_queue text;
    v_picked picked;
    v_taken bigint := 0;
    v_got bigint;
    v_running bigint;
    v_still boolean;
    v_deferred boolean;
    v_due bigint;
    v_next_due bigint;
    v_scanned bigint;
    v_topics text;
    v_sent text := '[]';
    v_answer exchange_row;
BEGIN
    IF p_lanes AND p_wait THEN
        PERFORM lock_lanes(p_rest);
    END IF;
    v_clock := clock_time(p_offset);
    v_now := answer_time(v_clock, p_not_before_us);
    IF p_ids IS NOT NULL THEN
        v_size := cardinality(p_tokens);
        p_queues := for_all(p_queues, v_size);
        p_results := for_all(p_results, v_size);
        p_result_ttls := for_all(p_result_ttls, v_size);
        p_retentions := for_all(p_retentions, v_size);
        v_done := settle_fast(p_queues, p_ids, p_tokens, p_results, p_result_ttls, p_retentions, p_gone, v_now);
        IF cardinality(v_done.places) < v_size THEN
            SELECT json_agg(CASE WHEN s.place = ANY (v_done.places) THEN 'applied' ELSE settle(
                {{success}}::settlement, v_now, v_clock) END ORDER BY s.place)
            INTO v_plain FROM unnest(p_queues, p_ids, p_tokens, p_results, p_result_ttls, p_retentions)
                WITH ORDINALITY AS s (queue, id, token, result, result_ttl, retention, place);
        END IF;
        FOREACH v_process IN ARRAY v_done.replies LOOP
            v_none := notify('reply:' || v_process);
        END LOOP;
    END IF;
    IF p_rest IS NOT NULL THEN
        v_settled := CASE WHEN p_wait THEN settle_all(p_rest, v_now, v_clock)
            ELSE settle_unlocked(p_rest, v_now, v_clock) END;
    END IF;
    -- T2: a claim sent again answers the leases it still holds, in rank order, and takes nothing new.
    IF p_claim_id IS NOT NULL THEN
        RETURN QUERY SELECT
                {{lease.fields}}, NULL
            FROM job AS j
            WHERE token >= p_claim_id || '.' AND token < p_claim_id || '/'
                AND substr(token, length(p_claim_id) + 2) ~ '^[0-9]+$'
            ORDER BY substr(token, length(p_claim_id) + 2)::bigint;
        IF FOUND THEN
            p_room := 0;
        END IF;
    END IF;
    IF EXISTS (SELECT 1 FROM deferred WHERE kind = 'parent') THEN
        IF p_wait THEN
            PERFORM resolve(v_now);
        ELSE
            PERFORM resolve_unlocked(v_now);
        END IF;
    END IF;
    IF p_starts IS NOT NULL THEN
        SELECT json_agg(CASE WHEN p_wait THEN start(value ->> 'queue', value ->> 'id', value ->> 'token', v_now)
            ELSE start_unlocked(value ->> 'queue', value ->> 'id', value ->> 'token', v_now) END ORDER BY ordinality)
        INTO v_started FROM json_array_elements(p_starts) WITH ORDINALITY;
    END IF;
    v_scanned := pg_stat_get_xact_tuples_returned('job_ready'::regclass);
    FOR i IN 1 .. coalesce(cardinality(p_sources), 0) LOOP  -- S3: in the order given
        SELECT EXISTS (SELECT 1 FROM queue WHERE queue = p_sources[i] AND (paused OR clearing > v_now)),
            EXISTS (SELECT 1 FROM deferred WHERE kind IN ('arrive', 'link', 'end') AND queue = p_sources[i]),
            (SELECT due FROM job WHERE queue = p_sources[i] AND state IN ({{by_due}}) ORDER BY due LIMIT 1)
        INTO v_still, v_deferred, v_due;
        CONTINUE WHEN v_still;  -- C5, U1: no job and no `next_due` of a paused queue
        IF v_deferred THEN
            IF p_wait THEN
                PERFORM run_deferred(p_sources[i], false, v_now);
            ELSE
                PERFORM run_deferred_unlocked(p_sources[i], v_now);
            END IF;
            v_due := next_due(p_sources[i]);
        END IF;
        IF v_due <= v_now THEN
            PERFORM promote_due(p_sources[i], v_now);  -- C1: also where the claim takes nothing
            v_due := next_due(p_sources[i]);
        END IF;
        v_next_due := least(v_next_due, v_due);  -- C4: the earliest of all queues of the claim
        CONTINUE WHEN p_room <= 0;
        IF p_wait THEN
            v_picked := claim(p_sources[i], least(p_room, p_rooms[i]), p_cursors[3 * i - 2 : 3 * i],
                p_tasks[p_begins[i] : p_ends[i]], p_shares[p_begins[i] : p_ends[i]], v_now);
        ELSE
            v_picked := claim_unlocked(p_sources[i], least(p_room, p_rooms[i]), p_cursors[3 * i - 2 : 3 * i],
                p_tasks[p_begins[i] : p_ends[i]], p_shares[p_begins[i] : p_ends[i]], v_now);
        END IF;
        v_got := cardinality(v_picked.rows);
        v_running := least(v_got, greatest(0, p_limit - v_taken));
        IF v_got > 0 THEN
            -- T1, T3, A1: the leases have new tokens, higher fences, and one more attempt each.
            RETURN QUERY UPDATE job AS j SET
                state = CASE WHEN g.rank <= v_running THEN 'running' ELSE 'assigned' END,
                attempt = j.attempt + 1,
                owner = p_worker,
                token = p_claim_id || '.' || (v_taken + g.rank - 1),
                fence = greatest(j.fence + 1, v_now, CASE WHEN j.lane IS NULL THEN 0 ELSE (
                    SELECT fence + 1 FROM lane WHERE lane.queue = j.queue AND lane.lane = j.lane) END),
                lease_len = coalesce(j.given_lease_len, p_lease_lens[p_begins[i] + g.task - 1]),
                lease_expires = v_clock + coalesce(j.given_lease_len, p_lease_lens[p_begins[i] + g.task - 1]),
                max_attempts = coalesce(
                    j.given_max_attempts, p_attempts[p_begins[i] + g.task - 1], {{task_claim.max_attempts}}),
                max_losses = coalesce(
                    j.given_max_losses, p_losses[p_begins[i] + g.task - 1], {{task_claim.max_losses}}),
                -- A job may be younger than the time of this call: it does not start before it was created.
                started = CASE WHEN g.rank <= v_running
                    THEN coalesce(j.started, greatest(v_now, j.created)) ELSE j.started END,
                last_started = CASE WHEN g.rank <= v_running THEN greatest(v_now, j.created) ELSE j.last_started END,
                progress = NULL,
                granted = true
            FROM unnest(v_picked.rows, v_picked.tasks) WITH ORDINALITY AS g (row, task, rank)
            WHERE j.ctid = g.row  -- in the order of their ranks: every join here is a loop over what it begins with
            RETURNING
                {{lease.fields}}, NULL;
        END IF;
        v_none := count_exchange(p_sources[i], v_done, v_running, v_got - v_running);
        v_done := without_queue(p_sources[i], v_done);
        v_taken := v_taken + v_got;
        p_room := p_room - v_got;
    END LOOP;
    v_scanned := pg_stat_get_xact_tuples_returned('job_ready'::regclass) - v_scanned;
    IF v_done.ended <> '{}' OR v_done.gone <> '{}' THEN
        FOR v_queue IN SELECT DISTINCT unnest(v_done.ended || v_done.gone) LOOP
            v_none := count_exchange(v_queue, v_done, 0, 0);
        END LOOP;
    END IF;
    v_none := write_tally();
    v_topics := current_setting('holdfast.topics', true);
    IF p_sender IS NOT NULL AND strpos(v_topics, '"reply:') > 0 THEN
        -- A process waits for a result. Those that wait for room need no notification of every end.
        v_topics := regexp_replace(v_topics, '^"room:.*\n', '', 'gn');
        v_sent := notify_at_commit(p_sender, replace(rtrim(v_topics, E'\n'), E'\n', ','));
    END IF;
    v_answer.answer := reply(v_now, '"plain":' || v_plain || ',"settled":' || v_settled || ',"started":' || v_started
        || ',"emptied":' || lines_of('holdfast.emptied')
        || ',"next_due":' || coalesce(v_next_due::text, 'null'), v_scanned, v_clock, v_sent);
    RETURN NEXT v_answer;
END $$;

-- Settlements one by one, in the order given.
CREATE FUNCTION settle_all(p_settlements json, p_now bigint, p_clock bigint) RETURNS json LANGUAGE plpgsql AS $$
BEGIN
    RETURN (
        SELECT json_agg(settle(json_populate_record(NULL::settlement, s.value), p_now, p_clock) ORDER BY s.ordinality)
        FROM json_array_elements(p_settlements) WITH ORDINALITY AS s);
END $$;

-- Lock the lanes of the jobs that are to be settled, in order, before any job; and before all lanes their pools.
CREATE FUNCTION lock_lanes(p_settlements json) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
    v_queues text[];
    v_lanes text[];
    v_epochs bigint[];
BEGIN
    SELECT array_agg(queue ORDER BY queue, lane), array_agg(lane ORDER BY queue, lane),
        array_agg(epoch ORDER BY queue, lane)
    INTO v_queues, v_lanes, v_epochs FROM (
        SELECT j.queue, j.lane, min(min(nullif(j.epoch, 0))) OVER (PARTITION BY j.queue) AS epoch
        FROM json_to_recordset(p_settlements) AS s (queue text, id text, token text)
        JOIN job AS j ON j.queue = s.queue AND j.id = s.id AND j.token = s.token
        WHERE j.lane IS NOT NULL GROUP BY 1, 2) AS lanes;
    FOR i IN 1 .. coalesce(cardinality(v_lanes), 0) LOOP
        IF v_epochs[i] IS NOT NULL AND v_queues[i] IS DISTINCT FROM v_queues[i - 1] THEN
            PERFORM lock_pool(v_queues[i], v_epochs[i]);
        END IF;
    END LOOP;
    FOR i IN 1 .. coalesce(cardinality(v_lanes), 0) LOOP
        PERFORM 1 FROM lane WHERE queue = v_queues[i] AND lane = v_lanes[i] FOR UPDATE;
    END LOOP;
END $$;

-- One settlement of any kind. Lanes are locked. `p_clock` is the time of leases.
-- G1: there is no record.
-- G2: only the current token settles; the owner's last one is answered again.
-- G3: the lease was renewed or began to run after the reaper listed it.
-- A3: settling an assigned job implies its start, except for a release and a reap.
-- G4: a job with a cancel request does not run again.
-- G5: cancelling without a note of its own keeps the note of the cancel request.
CREATE FUNCTION settle(s settlement, p_now bigint, p_clock bigint) RETURNS text LANGUAGE plpgsql AS $$
DECLARE
    j job;
    v_reap boolean := s.listed_expiry IS NOT NULL;
    v_note text := coalesce(s.note, '');
BEGIN
    -- Only a job with this token is locked or waited for. A token that is not the current one never will be again, and
    -- its job may be locked by an arrival that replaces it and waits for a lane that this call holds.
    IF v_reap THEN  -- a reaper does not wait: the call that has locked the job is about to settle it
        SELECT * INTO j FROM job WHERE queue = s.queue AND id = s.id AND token = s.token FOR UPDATE SKIP LOCKED;
    ELSE
        SELECT * INTO j FROM job WHERE queue = s.queue AND id = s.id AND token = s.token FOR UPDATE;
    END IF;
    IF NOT FOUND THEN
        SELECT * INTO j FROM job WHERE queue = s.queue AND id = s.id;
        IF NOT FOUND THEN
            RETURN 'gone';
        END IF;
        -- A11: the process of its handler has died, so the loss that the reaper has counted stays.
        IF NOT v_reap AND s.reason = 'worker_lost' AND s.loss IS NOT TRUE AND j.reaped_token = s.token THEN
            PERFORM give_back_loss(s.queue, s.id, s.token);
        END IF;
        -- Sent again, it has been applied. Not so in a user's transaction: its other writes were not.
        RETURN CASE WHEN NOT v_reap AND j.settled_token = s.token
            AND NOT current_setting('holdfast.user_transaction')::boolean THEN 'applied' ELSE 'lost' END;
    END IF;
    IF v_reap THEN
        IF coalesce(s.refund, false) AND j.state = 'running' THEN
            RETURN 'lost';  -- it has begun since it was listed: its attempt counts
        END IF;
        IF j.lease_expires <> s.listed_expiry OR s.listed_expiry > p_clock THEN
            RETURN 'lost';  -- it was renewed since it was listed
        END IF;
    ELSIF j.state = 'assigned' AND s.target <> 'queued' THEN
        j := begin_attempt(j, p_now);
    END IF;
    IF j.cancel_asked AND NOT is_terminal(s.target) THEN
        PERFORM apply_settlement(j, s, 'cancelled', 'asked', j.cancel_note, p_now);
        RETURN 'cancelled_instead';
    END IF;
    IF s.target = 'cancelled' AND v_note = '' THEN
        v_note := j.cancel_note;
    END IF;
    PERFORM apply_settlement(j, s, s.target, s.reason, v_note, p_now);
    RETURN 'applied';
END $$;

-- The owner of a reaped lease reports that it lives. A job that another call has locked keeps the loss: nothing waits.
-- A8: the loss does not count any more; a job that has ended stays as it is.
CREATE FUNCTION give_back_loss(p_queue text, p_id text, p_token text) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    PERFORM 1 FROM job WHERE queue = p_queue AND id = p_id AND reaped_token = p_token AND NOT is_terminal(state)
    FOR UPDATE SKIP LOCKED;
    IF FOUND THEN
        UPDATE job SET losses = losses - 1, reaped_token = NULL WHERE queue = p_queue AND id = p_id;
    END IF;
END $$;

-- H1: a counted run that did not succeed is written into the history.
-- H2: by the reason first, then by the target.
-- A4, A6, A8, A11, G7, W5, W6: attempt, losses, tokens, last error, result and progress.
-- W3: a release keeps its due time.
-- W1: written as retrying or scheduled, also if it is due at once.
-- N1: its queue is notified if it can be claimed now, and if a reaper, which claims nothing, has set when it falls due.
CREATE FUNCTION apply_settlement(
    j job, s settlement, p_target text, p_reason text, p_note text, p_now bigint
) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
    v_from text := j.state;
    v_refund int := coalesce(s.refund, false)::int;
    v_reap boolean := s.listed_expiry IS NOT NULL;
BEGIN
    IF j.state = 'running' AND v_refund = 0 AND p_target IN ({{ends_a_run}}) THEN
        j := end_attempt(j, CASE
            WHEN s.reason = 'worker_lost' THEN 'worker_lost'
            WHEN s.reason = 'timeout' THEN 'timed_out'
            WHEN p_target = 'cancelled' THEN 'cancelled'
            ELSE 'failed' END, s.error, p_now);
    END IF;
    j.attempt := j.attempt - v_refund;
    IF v_reap OR s.loss THEN
        j.losses := j.losses + 1;
    END IF;
    IF v_reap THEN
        j.reaped_token := s.token;
    ELSE
        j.settled_token := s.token;
    END IF;
    j.last_error := CASE WHEN p_target = 'succeeded' THEN NULL ELSE coalesce(s.error, j.last_error) END;
    j.progress := coalesce(s.progress, j.progress);
    IF is_terminal(p_target) THEN
        PERFORM finish(v_from, j, p_target, p_reason, p_note,
            CASE WHEN p_target = 'succeeded' THEN decode(s.result, 'base64') END, s.result_ttl, s.retention, p_now);
        RETURN;
    END IF;
    j.token := NULL;
    j.lease_expires := NULL;
    j.loss_error := NULL;  -- A13
    j.reason := p_reason;
    j.note := p_note;
    IF p_target = 'queued' THEN
        j := as_waiting(j, (SELECT paused FROM lane WHERE queue = j.queue AND lane = j.lane), p_now);
    ELSE
        j.state := p_target;
        j.due := CASE WHEN s.due IS NULL THEN p_now + coalesce(s.delay, 0) ELSE greatest(p_now, s.due) END;
        IF j.due <= p_now OR v_reap THEN
            PERFORM notify('queue:' || j.queue);
        END IF;
    END IF;
    PERFORM put_job(v_from, j);
END $$;

-- An assigned job begins to run.
-- A1: the attempt was counted at the claim.
CREATE FUNCTION begin_attempt(INOUT j job, p_now bigint) LANGUAGE plpgsql AS $$
DECLARE
    v_from text := j.state;
BEGIN
    j.state := 'running';
    j.started := coalesce(j.started, p_now);
    j.last_started := p_now;
    PERFORM put_job(v_from, j);
END $$;

-- A prefetched job is about to run.
-- A2: the checks in this order.
CREATE FUNCTION start(p_queue text, p_id text, p_token text, p_now bigint) RETURNS text LANGUAGE plpgsql AS $$
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
    ELSIF scope_paused(p_queue, j.lane) THEN
        RETURN 'hold';
    END IF;
    PERFORM begin_attempt(j, p_now);
    RETURN 'started';
END $$;

-- True if the job's queue or lane is paused.
CREATE FUNCTION scope_paused(p_queue text, p_lane text) RETURNS boolean LANGUAGE sql STABLE AS $$
    SELECT coalesce((SELECT paused FROM queue WHERE queue = p_queue), false)
        OR coalesce((SELECT paused FROM lane WHERE queue = p_queue AND lane = p_lane), false)
$$;

-- Count what an exchange has done in one queue: successes of the fast path, and leases. One statement for both.
CREATE FUNCTION count_exchange(p_queue text, p_done settled_fast, p_running bigint, p_assigned bigint) RETURNS text
LANGUAGE plpgsql AS $$
DECLARE
    v_gone bigint := cardinality(array_positions(p_done.gone, p_queue));
    v_ends bigint := cardinality(array_positions(p_done.ended, p_queue)) + v_gone;
BEGIN
    IF v_ends + p_running + p_assigned > 0 THEN
        INSERT INTO tally (queue, state, jobs, ends) SELECT p_queue, m.state, m.jobs, m.ends
        FROM (VALUES ('queued', - p_running - p_assigned, 0), ('running', p_running - v_ends, 0),
            ('assigned', p_assigned, 0), ('succeeded', v_ends - v_gone, v_ends)) AS m (state, jobs, ends)
        WHERE m.jobs <> 0 OR m.ends <> 0;
    END IF;
    RETURN CASE WHEN v_ends > 0 THEN notify('room:' || p_queue) END;
END $$;

-- The same without the jobs of one queue.
CREATE FUNCTION without_queue(p_queue text, p_done settled_fast) RETURNS settled_fast LANGUAGE plpgsql AS $$
BEGIN
    p_done.ended := array_remove(p_done.ended, p_queue);
    p_done.gone := array_remove(p_done.gone, p_queue);
    RETURN p_done;
END $$;
