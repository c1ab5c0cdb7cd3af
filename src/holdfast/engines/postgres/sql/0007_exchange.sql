-- Exchange: settle what has ended, start what was prefetched, claim what is ready. In one call and one commit.
--
-- The order inside: lock lanes, settle (which promotes what lanes and parents held), admit what came in users' transactions,
-- promote what has fallen due, claim. Whatever depends on a lock is read in a later statement than the one that took it.

-- A lease, its fields in the order of `Lease`. The last row of an answer is none: it has all the rest in `reply`.
CREATE TYPE exchanged AS (
    queue text COLLATE "C", id text COLLATE "C", generation bigint, task text COLLATE "C", payload bytea,
    codec text COLLATE "C", metadata text, priority smallint, lane text COLLATE "C", arrival bigint, created bigint,
    due bigint, expires bigint, state text COLLATE "C", attempt bigint, losses bigint, token text COLLATE "C",
    fence bigint, lease_expires bigint, lease_len bigint, max_attempts bigint, max_losses bigint, started bigint, given text,
    reply text
);

-- Where the jobs stand that a claim has locked, in claim order, and of which of its tasks each is.
CREATE TYPE picked AS (rows tid[], tasks int[]);

-- What a worker is told of a job it holds. Not called: the planner puts it where it is used, column by column.
CREATE FUNCTION lease_1(j job) RETURNS exchanged LANGUAGE sql STABLE AS $$
    SELECT (j.queue, j.id, j.generation, j.task, j.payload, j.codec, j.metadata::text, j.priority, j.lane, j.arrival,
        j.created, j.due, j.expires, j.state, j.attempt, j.losses, j.token, j.fence, j.lease_expires, j.lease_len,
        j.max_attempts, j.max_losses, j.started,
        CASE WHEN num_nonnulls(
            j.given_max_attempts, j.given_max_losses, j.given_timeout, j.given_lease_len, j.given_result_ttl,
            j.given_retention) > 0
        THEN json_build_array(
            j.given_max_attempts, j.given_max_losses, j.given_timeout, j.given_lease_len, j.given_result_ttl,
            j.given_retention)::text END, NULL)::exchanged
$$;

-- `p_queues` to `p_retentions` are successes that may be plain; where one queue, result or term stands, it is that of all.
-- `p_rest` are all other settlements. In the answer `plain` is null if all of the first are applied.
--
-- A claim names queues, and of each the room and where among the terms those of its tasks stand.
CREATE FUNCTION exchange_1(
    p_queues text[], p_ids text[], p_tokens text[], p_results bytea[], p_result_ttls bigint[], p_retentions bigint[],
    p_gone boolean, p_rest json, p_lanes boolean, p_starts json,
    p_claim_id text, p_worker text, p_limit bigint, p_room bigint,
    p_sources text[], p_rooms bigint[], p_floors bigint[], p_begins int[], p_ends int[],
    p_tasks text[], p_shares bigint[], p_lease_lens bigint[], p_attempts bigint[], p_losses bigint[],
    p_offset bigint, p_floor bigint
) RETURNS SETOF exchanged LANGUAGE plpgsql SECURITY DEFINER SET search_path = {schema}, pg_temp
SET enable_seqscan = off SET enable_hashjoin = off SET enable_mergejoin = off SET enable_memoize = off SET jit = off
SET plan_cache_mode = force_generic_plan AS $$
DECLARE
    v_none text := begin_1();
    v_now bigint;
    v_size int;
    v_done plain := ('{}', '{}', '{}', '{}');
    v_plain text := 'null';
    v_settled text := '[]';
    v_started text := '[]';
    v_process text;
    v_picked picked;
    v_taken bigint := 0;
    v_got bigint;
    v_running bigint;
    v_still boolean;
    v_chores boolean;
    v_due bigint;
    v_next_due bigint;
    v_walked bigint;
    v_answer exchanged;
BEGIN
    IF p_lanes THEN
        PERFORM lock_lanes_1(p_rest);
    END IF;
    v_now := now_1(p_offset, p_floor);
    IF p_ids IS NOT NULL THEN
        v_size := cardinality(p_tokens);
        IF cardinality(p_queues) < v_size THEN
            p_queues := array_fill(p_queues[1], ARRAY[v_size]);
        END IF;
        IF cardinality(p_results) < v_size THEN
            p_results := array_fill(p_results[1], ARRAY[v_size]);
        END IF;
        IF cardinality(p_result_ttls) < v_size THEN
            p_result_ttls := array_fill(p_result_ttls[1], ARRAY[v_size]);
        END IF;
        IF cardinality(p_retentions) < v_size THEN
            p_retentions := array_fill(p_retentions[1], ARRAY[v_size]);
        END IF;
        v_done := settle_plain_1(p_queues, p_ids, p_tokens, p_results, p_result_ttls, p_retentions, p_gone, v_now);
        IF cardinality(v_done.places) < v_size THEN
            SELECT json_agg(CASE WHEN s.place = ANY (v_done.places) THEN 'applied' ELSE settle_1(
                (s.queue, s.id, s.token, 'succeeded', NULL, '', 0, NULL, false, encode(s.result, 'base64'), NULL,
                    s.result_ttl, s.retention, NULL)::settlement, v_now) END ORDER BY s.place)
            INTO v_plain FROM unnest(p_queues, p_ids, p_tokens, p_results, p_result_ttls, p_retentions)
                WITH ORDINALITY AS s (queue, id, token, result, result_ttl, retention, place);
        END IF;
        FOREACH v_process IN ARRAY v_done.replies LOOP
            v_none := ring_1('reply:' || v_process);
        END LOOP;
    END IF;
    IF p_rest IS NOT NULL THEN
        v_settled := settle_all_1(p_rest, v_now);
    END IF;
    -- A claim that is sent again, since its answer was lost, gets what it holds, and nothing new.
    IF p_claim_id IS NOT NULL THEN
        RETURN QUERY SELECT (lease_1(j)).* FROM job AS j
            WHERE token >= p_claim_id || '.' AND token < p_claim_id || '/'
                AND substr(token, length(p_claim_id) + 2) ~ '^[0-9]+$'
            ORDER BY substr(token, length(p_claim_id) + 2)::bigint;
        IF FOUND THEN
            p_room := 0;
        END IF;
    END IF;
    IF EXISTS (SELECT 1 FROM chore WHERE kind = 'parent') THEN
        PERFORM resolve_1(v_now);
    END IF;
    IF p_starts IS NOT NULL THEN
        SELECT json_agg(start_asked_1(value ->> 'queue', value ->> 'id', value ->> 'token', v_now) ORDER BY ordinality)
        INTO v_started FROM json_array_elements(p_starts) WITH ORDINALITY;
    END IF;
    v_walked := pg_stat_get_xact_tuples_returned('job_ready'::regclass);
    FOR i IN 1 .. coalesce(cardinality(p_sources), 0) LOOP
        SELECT EXISTS (SELECT 1 FROM queue WHERE queue = p_sources[i] AND (paused OR clearing > v_now)),
            EXISTS (SELECT 1 FROM chore WHERE kind IN ('arrive', 'end') AND queue = p_sources[i]),
            (SELECT due FROM job WHERE queue = p_sources[i] AND state IN ('scheduled', 'retrying') ORDER BY due LIMIT 1)
        INTO v_still, v_chores, v_due;
        CONTINUE WHEN v_still;
        IF v_chores THEN
            PERFORM chores_1(p_sources[i], false, v_now);
            v_due := next_due_1(p_sources[i]);
        END IF;
        IF v_due <= v_now THEN
            PERFORM promote_1(p_sources[i], v_now);
            v_due := next_due_1(p_sources[i]);
        END IF;
        v_next_due := least(v_next_due, v_due);
        CONTINUE WHEN p_room <= 0;
        v_picked := pick_1(p_sources[i], least(p_room, p_rooms[i]), p_floors[3 * i - 2 : 3 * i],
            p_tasks[p_begins[i] : p_ends[i]], p_shares[p_begins[i] : p_ends[i]], v_now);
        v_got := cardinality(v_picked.rows);
        v_running := least(v_got, greatest(0, p_limit - v_taken));
        IF v_got > 0 THEN
            -- The leases: new tokens, higher fences, one more attempt each.
            RETURN QUERY UPDATE job AS j SET
                state = CASE WHEN g.rank <= v_running THEN 'running' ELSE 'assigned' END,
                attempt = j.attempt + 1,
                owner = p_worker,
                token = p_claim_id || '.' || (v_taken + g.rank - 1),
                fence = greatest(j.fence + 1, v_now, CASE WHEN j.lane IS NULL THEN 0 ELSE (
                    SELECT fence + 1 FROM lane WHERE lane.queue = j.queue AND lane.lane = j.lane) END),
                lease_len = coalesce(j.given_lease_len, p_lease_lens[p_begins[i] + g.task - 1]),
                lease_expires = v_now + coalesce(j.given_lease_len, p_lease_lens[p_begins[i] + g.task - 1]),
                max_attempts = coalesce(j.given_max_attempts, p_attempts[p_begins[i] + g.task - 1], 0),
                max_losses = coalesce(j.given_max_losses, p_losses[p_begins[i] + g.task - 1], 5),
                -- It may have come since the time of this call was read: nothing starts before it was created.
                started = CASE WHEN g.rank <= v_running
                    THEN coalesce(j.started, greatest(v_now, j.created)) ELSE j.started END,
                last_started = CASE WHEN g.rank <= v_running THEN greatest(v_now, j.created) ELSE j.last_started END,
                progress = NULL,
                granted = true
            FROM unnest(v_picked.rows, v_picked.tasks) WITH ORDINALITY AS g (row, task, rank)
            WHERE j.ctid = g.row  -- in the order of their ranks: every join here is a loop over what it begins with
            RETURNING (lease_1(j)).*;
        END IF;
        v_none := book_1(p_sources[i], v_done, v_running, v_got - v_running);
        v_done := others_1(p_sources[i], v_done);
        v_taken := v_taken + v_got;
        p_room := p_room - v_got;
    END LOOP;
    v_walked := pg_stat_get_xact_tuples_returned('job_ready'::regclass) - v_walked;
    WHILE v_done.ended <> '{}' OR v_done.gone <> '{}' LOOP
        v_none := book_1(coalesce(v_done.ended[1], v_done.gone[1]), v_done, 0, 0);
        v_done := others_1(coalesce(v_done.ended[1], v_done.gone[1]), v_done);
    END LOOP;
    v_none := close_1();
    v_answer.reply := reply_1(v_now, '"plain":' || v_plain || ',"settled":' || v_settled || ',"started":' || v_started
        || ',"emptied":' || lines_1('holdfast.emptied')
        || ',"next_due":' || coalesce(v_next_due::text, 'null'), v_walked);
    RETURN NEXT v_answer;
END $$;

-- Book what an exchange has done in one queue: plain ends, and leases given.
CREATE FUNCTION book_1(p_queue text, p_done plain, p_running bigint, p_assigned bigint) RETURNS text LANGUAGE plpgsql AS $$
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
    RETURN CASE WHEN v_ends > 0 THEN ring_1('room:' || p_queue) END;
END $$;

-- The same without those of one queue.
CREATE FUNCTION others_1(p_queue text, p_done plain) RETURNS plain LANGUAGE plpgsql AS $$
BEGIN
    p_done.ended := array_remove(p_done.ended, p_queue);
    p_done.gone := array_remove(p_done.gone, p_queue);
    RETURN p_done;
END $$;

-- When the next waiting job of a queue falls due.
CREATE FUNCTION next_due_1(p_queue text) RETURNS bigint LANGUAGE plpgsql AS $$
BEGIN
    RETURN (SELECT due FROM job WHERE queue = p_queue AND state IN ('scheduled', 'retrying') ORDER BY due LIMIT 1);
END $$;

CREATE FUNCTION settle_all_1(p_settlements json, p_now bigint) RETURNS json LANGUAGE plpgsql AS $$
BEGIN
    RETURN (
        SELECT json_agg(settle_1(json_populate_record(NULL::settlement, s.value), p_now) ORDER BY s.ordinality)
        FROM json_array_elements(p_settlements) WITH ORDINALITY AS s);
END $$;

-- Lock the lanes of the jobs that are to be settled, in order, before any job; and before all lanes their pools.
CREATE FUNCTION lock_lanes_1(p_settlements json) RETURNS void LANGUAGE plpgsql AS $$
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
            PERFORM lock_pool_1(v_queues[i], v_epochs[i]);
        END IF;
    END LOOP;
    FOR i IN 1 .. coalesce(cardinality(v_lanes), 0) LOOP
        PERFORM 1 FROM lane WHERE queue = v_queues[i] AND lane = v_lanes[i] FOR UPDATE;
    END LOOP;
END $$;

-- Move up what has fallen due, in (due, arrival) order, a bounded number. What somebody else touches just now is left.
CREATE FUNCTION promote_1(p_queue text, p_now bigint) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
    v record;
    j job;
    v_from text;
BEGIN
    FOR v IN
        SELECT id, lane FROM job WHERE queue = p_queue AND state IN ('scheduled', 'retrying') AND due <= p_now
        ORDER BY due, arrival LIMIT 1000
    LOOP
        IF v.lane IS NOT NULL THEN
            PERFORM 1 FROM lane WHERE queue = p_queue AND lane = v.lane FOR UPDATE SKIP LOCKED;
            CONTINUE WHEN NOT FOUND;
        END IF;
        SELECT * INTO j FROM job WHERE queue = p_queue AND id = v.id AND state IN ('scheduled', 'retrying')
            AND due <= p_now FOR UPDATE SKIP LOCKED;
        CONTINUE WHEN NOT FOUND;
        v_from := j.state;
        j := rest_1(j, (SELECT paused FROM lane WHERE queue = p_queue AND lane = v.lane), p_now);
        PERFORM put_1(v_from, j);
    END LOOP;
END $$;

-- Pick ready jobs of one queue, and lock them. The heads of the tasks are merged; a job past its `expires` is cancelled when
-- it is met.
--
-- While somebody holds an old snapshot open, what was claimed stays in the index and each claim walks over all of it. Then
-- the client says from where on to look (`floor`): from the first job of its last claim. What became ready before that is
-- found by the next walk from the beginning; see `floors.py`.
CREATE FUNCTION pick_1(
    p_queue text, p_room bigint, p_floor bigint[], p_tasks text[], p_shares bigint[], p_now bigint
) RETURNS picked LANGUAGE plpgsql AS $$
DECLARE
    c_bottom CONSTANT bigint[] := '{-32768, 0, 0}';
    v_floor bigint[] := CASE WHEN p_floor[1] IS NULL THEN c_bottom ELSE p_floor END;
    v_rows tid[];
    v_of int[];
    v_over boolean[];
    v_stop int;
    v_expired text;
    v_cancelled int := 0;
    v_picked picked := ('{}', '{}');
BEGIN
    LOOP
        -- Materialised: the planner must not look for the heads twice, and so take more than there is room for.
        WITH heads AS MATERIALIZED (
            SELECT h.row, t.o::int AS task, h.expires <= p_now AS over, h.priority, h.due, h.arrival
            FROM unnest(p_tasks, p_shares) WITH ORDINALITY AS t (task, share, o)
            CROSS JOIN LATERAL (
                SELECT ctid AS row, expires, priority, due, arrival FROM job
                WHERE queue = p_queue AND task = t.task AND state = 'queued' AND ctid <> ALL (v_picked.rows)
                    AND ((-priority::int), due, arrival) >= (v_floor[1]::int, v_floor[2], v_floor[3])
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
        EXIT WHEN p_room = 0 OR v_stop IS NULL AND v_floor = c_bottom;
        IF v_stop IS NULL THEN
            v_floor := c_bottom;  -- there is room left: look from the beginning after all
            CONTINUE;
        END IF;
        SELECT array_agg(share - coalesce(used, 0) ORDER BY o) INTO p_shares
        FROM unnest(p_shares) WITH ORDINALITY AS s (share, o)
        LEFT JOIN (SELECT task, count(*) AS used FROM unnest(v_of) AS task GROUP BY task) AS u ON u.task = s.o;
        PERFORM expire_1(p_queue, v_expired, p_now);
        PERFORM resolve_1(p_now);
        v_cancelled := v_cancelled + 1;
        EXIT WHEN v_cancelled = 1000;
    END LOOP;
    RETURN v_picked;
END $$;

-- A waiting job is past its `expires`.
CREATE FUNCTION expire_1(p_queue text, p_id text, p_now bigint) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
    j job := lock_job_1(p_queue, p_id);
BEGIN
    PERFORM finish_1(j.state, j, 'cancelled', 'expired', '', NULL, NULL, NULL, p_now);
END $$;
