-- Exchange: settle what has ended, start what was prefetched, claim what is ready. In one call and one commit.
--
-- The order inside: lock lanes, settle (which promotes what lanes and parents held), admit what came in users' transactions,
-- promote what has fallen due, claim. Whatever depends on a lock is read in a later statement than the one that took it.

CREATE FUNCTION exchange_1(
    p_settlements json, p_plain boolean, p_gone boolean, p_lanes boolean, p_starts json, p_claim jsonb,
    p_offset bigint, p_floor bigint
) RETURNS text LANGUAGE plpgsql SECURITY DEFINER SET search_path = {schema}, pg_temp
SET enable_seqscan = off SET enable_hashjoin = off SET enable_mergejoin = off SET jit = off AS $$
DECLARE
    v_now bigint;
    v_done bigint[] := '{}';
    v_settled json := '[]';
    v_started text := '[]';
    v_leases text := '[]';
    v_next_due bigint;
    v_walked bigint := 0;
BEGIN
    PERFORM begin_1();
    IF p_settlements IS NOT NULL THEN
        IF p_lanes THEN
            PERFORM lock_lanes_1(p_settlements);
        END IF;
        v_now := now_1(p_offset, p_floor);
        IF p_plain THEN
            v_done := settle_plain_1(p_settlements, p_gone, v_now);
        END IF;
        IF cardinality(v_done) = json_array_length(p_settlements) THEN
            v_settled := to_json(array_fill('applied'::text, ARRAY[cardinality(v_done)]));
        ELSE
            SELECT json_agg(settle_rest_1(s.value, s.ordinality = ANY (v_done), v_now) ORDER BY s.ordinality)
            INTO v_settled FROM json_array_elements(p_settlements) WITH ORDINALITY AS s;
        END IF;
        PERFORM resolve_1(v_now);
    ELSE
        v_now := now_1(p_offset, p_floor);
        IF EXISTS (SELECT 1 FROM chore WHERE kind = 'parent') THEN
            PERFORM resolve_1(v_now);
        END IF;
    END IF;
    IF p_starts IS NOT NULL THEN
        SELECT json_agg(start_asked_1(value ->> 'queue', value ->> 'id', value ->> 'token', v_now) ORDER BY ordinality)
        INTO v_started FROM json_array_elements(p_starts) WITH ORDINALITY;
    END IF;
    IF p_claim IS NOT NULL THEN
        v_walked := pg_stat_get_xact_tuples_returned('job_ready'::regclass);
        SELECT c.p_leases, c.p_next_due INTO v_leases, v_next_due FROM claim_1(p_claim, v_now) AS c;
        v_walked := pg_stat_get_xact_tuples_returned('job_ready'::regclass) - v_walked;
    END IF;
    PERFORM close_1();
    RETURN reply_1(v_now, '"settled":' || v_settled || ',"started":' || v_started
        || ',"emptied":' || lines_1('holdfast.emptied') || ',"leases":' || v_leases
        || ',"next_due":' || coalesce(v_next_due::text, 'null'), v_walked);
END $$;

CREATE FUNCTION settle_rest_1(p_settlement json, p_done boolean, p_now bigint) RETURNS text LANGUAGE plpgsql AS $$
BEGIN
    IF p_done THEN
        RETURN 'applied';
    END IF;
    RETURN settle_1(json_populate_record(NULL::settlement, p_settlement), p_now);
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

-- Leases in claim order, and when the next waiting job of these queues falls due.
CREATE FUNCTION claim_1(p_claim jsonb, p_now bigint, OUT p_leases text, OUT p_next_due bigint) LANGUAGE plpgsql AS $$
DECLARE
    v_id text := p_claim ->> 'claim_id';
    v_limit bigint := (p_claim ->> 'limit')::bigint;
    v_room bigint := v_limit + coalesce((p_claim ->> 'prefetch')::bigint, 0);
    v_queue jsonb;
    v_taken int := 0;
    v_pieces text[] := '{}';
    v_piece text;
    v_count int;
    v_held boolean;
BEGIN
    -- Sent again, since its answer was lost: it gets what it holds, and nothing new.
    SELECT string_agg(lease_1(j), ',' ORDER BY substr(j.token, length(v_id) + 2)::bigint) INTO v_piece
    FROM job AS j
    WHERE token >= v_id || '.' AND token < v_id || '/' AND substr(j.token, length(v_id) + 2) ~ '^[0-9]+$';
    v_held := v_piece IS NOT NULL;
    IF v_held THEN
        v_pieces := v_pieces || v_piece;
    END IF;
    FOR v_queue IN SELECT value FROM jsonb_array_elements(p_claim -> 'queues') LOOP
        CONTINUE WHEN (SELECT paused OR clearing > p_now FROM queue WHERE queue = v_queue ->> 'queue');
        PERFORM chores_1(v_queue ->> 'queue', false, p_now);
        PERFORM promote_1(v_queue ->> 'queue', p_now);
        IF NOT v_held THEN
            SELECT t.p_leases, t.p_count INTO v_piece, v_count
            FROM take_1(p_claim, v_queue, v_taken, v_limit, v_room - v_taken, p_now) AS t;
            IF v_count > 0 THEN
                v_pieces := v_pieces || v_piece;
                v_taken := v_taken + v_count;
            END IF;
        END IF;
        p_next_due := least(p_next_due, (
            SELECT due FROM job WHERE queue = v_queue ->> 'queue' AND state IN ('scheduled', 'retrying')
            ORDER BY due LIMIT 1));
    END LOOP;
    p_leases := '[' || array_to_string(v_pieces, ',') || ']';
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

-- Take ready jobs of one queue. The heads of the tasks are merged; a job past its `expires` is cancelled when it is met.
--
-- While somebody holds an old snapshot open, what was claimed stays in the index and each claim walks over all of it. Then
-- the client says from where on to look (`floor`): from the first job of its last claim. What became ready before that is
-- found by the next walk from the beginning; see `floors.py`.
CREATE FUNCTION take_1(
    p_claim jsonb, p_queue jsonb, p_taken int, p_limit bigint, p_room bigint, p_now bigint,
    OUT p_leases text, OUT p_count int
) LANGUAGE plpgsql AS $$
DECLARE
    c_bottom CONSTANT bigint[] := '{-32768, 0, 0}';
    v_queue text := p_queue ->> 'queue';
    v_tasks text[];
    v_shares bigint[];
    v_lease_lens bigint[];
    v_attempts bigint[];
    v_losses bigint[];
    v_rows tid[];
    v_of int[];
    v_expired text;
    v_cancelled int := 0;
    v_pieces text[] := '{}';
    v_piece text;
    v_got int;
    v_floor bigint[] := coalesce(
        (SELECT array_agg(value::bigint ORDER BY ordinality)
         FROM jsonb_array_elements(p_queue -> 'floor') WITH ORDINALITY), c_bottom);
BEGIN
    p_count := 0;
    p_room := least(p_room, (p_queue ->> 'limit')::bigint);
    IF p_room <= 0 THEN
        RETURN;
    END IF;
    SELECT array_agg(task ORDER BY o), array_agg(coalesce("limit", p_room) ORDER BY o), array_agg(lease_len ORDER BY o),
        array_agg(max_attempts ORDER BY o), array_agg(max_losses ORDER BY o)
    INTO v_tasks, v_shares, v_lease_lens, v_attempts, v_losses
    FROM ROWS FROM (jsonb_to_recordset(p_queue -> 'tasks') AS (
        task text, "limit" bigint, lease_len bigint, max_attempts bigint, max_losses bigint)
    ) WITH ORDINALITY AS t (task, "limit", lease_len, max_attempts, max_losses, o);
    LOOP
        -- Materialised: the planner must not look for the heads twice, and so take more than there is room for.
        WITH heads AS MATERIALIZED (
            SELECT h.row, h.id, h.expires, t.o::int AS task, h.priority, h.due, h.arrival
            FROM unnest(v_tasks, v_shares) WITH ORDINALITY AS t (task, share, o)
            CROSS JOIN LATERAL (
                SELECT ctid AS row, id, expires, priority, due, arrival FROM job
                WHERE queue = v_queue AND task = t.task AND state = 'queued'
                    AND ((-priority::int), due, arrival) >= (v_floor[1]::int, v_floor[2], v_floor[3])
                ORDER BY (-priority::int), due, arrival LIMIT least(t.share, p_room) FOR UPDATE SKIP LOCKED
            ) AS h
        ), chosen AS (
            SELECT *, row_number() OVER (ORDER BY priority DESC, due, arrival) AS rank FROM heads
        )
        SELECT array_agg(row ORDER BY rank) FILTER (WHERE rank < coalesce(stop, rank + 1)),
            array_agg(task ORDER BY rank) FILTER (WHERE rank < coalesce(stop, rank + 1)),
            min(id) FILTER (WHERE rank = stop)
        INTO v_rows, v_of, v_expired
        FROM (SELECT *, min(rank) FILTER (WHERE expires <= p_now) OVER () AS stop FROM chosen WHERE rank <= p_room) AS c;
        v_got := coalesce(cardinality(v_rows), 0);
        IF v_got > 0 THEN
            v_piece := grant_1(p_claim, v_queue, v_rows, v_of, v_lease_lens, v_attempts, v_losses, p_taken, p_limit, p_now);
            v_pieces := v_pieces || v_piece;
            p_count := p_count + v_got;
            p_taken := p_taken + v_got;
            p_room := p_room - v_got;
        END IF;
        EXIT WHEN p_room = 0 OR v_expired IS NULL AND v_floor = c_bottom;
        IF v_expired IS NULL THEN
            v_floor := c_bottom;  -- there is room left: look from the beginning after all
            CONTINUE;
        END IF;
        SELECT array_agg(share - coalesce(used, 0) ORDER BY o) INTO v_shares
        FROM unnest(v_shares) WITH ORDINALITY AS s (share, o)
        LEFT JOIN (SELECT task, count(*) AS used FROM unnest(v_of) AS task GROUP BY task) AS u ON u.task = s.o;
        PERFORM expire_1(v_queue, v_expired, p_now);
        PERFORM resolve_1(p_now);
        v_cancelled := v_cancelled + 1;
        EXIT WHEN v_cancelled = 1000;
    END LOOP;
    p_leases := array_to_string(v_pieces, ',');
END $$;

-- A waiting job is past its `expires`.
CREATE FUNCTION expire_1(p_queue text, p_id text, p_now bigint) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
    j job := lock_job_1(p_queue, p_id);
BEGIN
    PERFORM finish_1(j.state, j, 'cancelled', 'expired', '', NULL, NULL, NULL, p_now);
END $$;

-- Give the leases: new tokens, higher fences, one more attempt each. The jobs are queued, and locked by this transaction, so
-- that they can be named by where they stand.
CREATE FUNCTION grant_1(
    p_claim jsonb, p_queue text, p_rows tid[], p_tasks int[], p_lease_lens bigint[], p_attempts bigint[],
    p_losses bigint[], p_taken int, p_limit bigint, p_now bigint
) RETURNS text LANGUAGE plpgsql AS $$
DECLARE
    v_leases text;
    v_worker text := p_claim ->> 'worker';
    v_prefix text := (p_claim ->> 'claim_id') || '.';
    v_running int := greatest(0, least(cardinality(p_rows), p_limit - p_taken));
BEGIN
    WITH granted AS (
        UPDATE job AS j SET
            state = CASE WHEN p_taken + g.rank <= p_limit THEN 'running' ELSE 'assigned' END,
            attempt = j.attempt + 1,
            owner = v_worker,
            token = v_prefix || (p_taken + g.rank - 1),
            fence = greatest(j.fence + 1, p_now, CASE WHEN j.lane IS NULL THEN 0 ELSE (
                SELECT fence + 1 FROM lane WHERE lane.queue = j.queue AND lane.lane = j.lane) END),
            lease_len = coalesce(j.given_lease_len, p_lease_lens[g.task]),
            lease_expires = p_now + coalesce(j.given_lease_len, p_lease_lens[g.task]),
            max_attempts = coalesce(j.given_max_attempts, p_attempts[g.task], 0),
            max_losses = coalesce(j.given_max_losses, p_losses[g.task], 5),
            -- It may have come since the time of this call was read: nothing starts before it was created.
            started = CASE WHEN p_taken + g.rank <= p_limit
                THEN coalesce(j.started, greatest(p_now, j.created)) ELSE j.started END,
            last_started = CASE WHEN p_taken + g.rank <= p_limit
                THEN greatest(p_now, j.created) ELSE j.last_started END,
            progress = NULL,
            granted = true
        FROM unnest(p_rows, p_tasks) WITH ORDINALITY AS g (row, task, rank)
        WHERE j.ctid = g.row
        RETURNING lease_1(j) AS lease, g.rank
    )
    SELECT string_agg(lease, ',' ORDER BY rank) INTO v_leases FROM granted;
    PERFORM move_1(p_queue, 'queued', 'running', v_running),
            move_1(p_queue, 'queued', 'assigned', cardinality(p_rows) - v_running);
    RETURN v_leases;
END $$;

-- What a worker is told of a job it holds.
CREATE FUNCTION lease_1(j job) RETURNS text LANGUAGE sql STABLE AS $$
    SELECT json_build_array(
        j.queue, j.id, j.generation, j.task, base64_1(j.payload), j.codec, coalesce(j.metadata::json, '{}'), j.priority, j.lane,
        j.arrival, j.created, j.due, j.expires, j.state, j.attempt, j.losses, j.token, j.fence, j.lease_expires,
        j.lease_len, j.max_attempts, j.max_losses, j.started,
        CASE WHEN num_nonnulls(j.given_max_attempts, j.given_max_losses, j.given_timeout, j.given_lease_len,
            j.given_result_ttl, j.given_retention) = 0 THEN '[]'::json
        ELSE json_build_array(j.given_max_attempts, j.given_max_losses, j.given_timeout, j.given_lease_len,
            j.given_result_ttl, j.given_retention) END)::text
$$;
