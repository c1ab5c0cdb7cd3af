-- Leases between claim and settlement: renewed, expired, disowned; and the workers that hold them.
--
-- Nothing here waits for a job that another call has locked: it is being settled, or stands in a user's transaction.
-- A worker that waited for one such job would let all its other leases expire.

-- Extend leases by their own length, all in one statement.
-- T9: a locked job stays as it is, and is answered `busy`.
-- T4: accepted while the token is the current one, also after the expiry.
-- T5: extended, also if the answer is `cancel` or `hold`.
-- A13: its owner lives.
CREATE FUNCTION renew(p_request jsonb, p_offset bigint, p_not_before_us bigint) RETURNS text
LANGUAGE plpgsql {{entry}}
SET enable_seqscan = off SET enable_hashjoin = off SET enable_mergejoin = off SET jit = off AS $$
DECLARE
    v_clock bigint := clock_time(p_offset);  -- PF4: not the latest time that the client has seen
    v_extended tid[];
    v_jobs json;
BEGIN
    PERFORM begin_call();
    WITH requested AS MATERIALIZED (  -- one row per lease: of two, the last progress stays
        SELECT queue, id, token,
            (array_agg(progress ORDER BY place DESC) FILTER (WHERE progress IS NOT NULL))[1] AS progress
        FROM ROWS FROM (
            jsonb_to_recordset(p_request -> 'jobs') AS (queue text, id text, token text, progress jsonb)
        ) WITH ORDINALITY AS r (queue, id, token, progress, place)
        GROUP BY queue, id, token
    ), held AS MATERIALIZED (
        SELECT j.queue, j.id, a.progress FROM requested AS a JOIN job AS j ON j.queue = a.queue AND j.id = a.id
        WHERE j.token = a.token FOR UPDATE OF j SKIP LOCKED
    ), extended AS (
        UPDATE job AS j SET
            lease_expires = greatest(j.lease_expires, v_clock + j.lease_len), progress = coalesce(h.progress, j.progress),
            loss_error = NULL
        FROM held AS h WHERE j.queue = h.queue AND j.id = h.id RETURNING j.ctid AS row
    )
    SELECT array_agg(row) INTO v_extended FROM extended;
    -- In a statement of its own: the one above does not see that a lease was lost while it ran.
    SELECT json_agg(json_build_object('status', CASE
            WHEN j.id IS NULL THEN 'lost'
            WHEN (j.ctid = ANY (v_extended)) IS NOT TRUE THEN 'busy'
            WHEN j.cancel_asked THEN 'cancel'
            WHEN j.state = 'assigned' AND scope_paused(j.queue, j.lane) THEN 'hold'
            ELSE 'held' END, 'lease_expires', j.lease_expires) ORDER BY r.place)
    INTO v_jobs
    FROM ROWS FROM (
        jsonb_to_recordset(p_request -> 'jobs') AS (queue text, id text, token text)
    ) WITH ORDINALITY AS r (queue, id, token, place)
    LEFT JOIN job AS j ON j.queue = r.queue AND j.id = r.id AND j.token = r.token;
    RETURN reply(answer_time(v_clock, p_not_before_us), '"jobs":' || coalesce(v_jobs, '[]'), 0, v_clock);
END $$;

-- Leases past their expiry, with what a reaper needs to decide; index job_token. Where very many have expired, the
-- list holds those that are longest overdue: no call sorts all of them.
-- T6: of the tasks named, and of every task after a long time.
-- T7: reapers that list at the same time begin at different places.
CREATE FUNCTION expired(p_request jsonb, p_offset bigint, p_not_before_us bigint) RETURNS text
LANGUAGE plpgsql STABLE {{entry}}
SET enable_seqscan = off SET jit = off AS $$
DECLARE
    v_clock bigint := clock_time(p_offset);  -- PF4: not the latest time that the client has seen
    v_limit bigint := coalesce((p_request ->> 'limit')::bigint, {{expired.limit}});
    v_turn bigint := coalesce((p_request ->> 'turn')::bigint, 0);
    v_tasks text[];
    v_leases json;
BEGIN
    PERFORM begin_call();
    IF jsonb_typeof(p_request -> 'tasks') = 'array' THEN
        v_tasks := ARRAY(SELECT jsonb_array_elements_text(p_request -> 'tasks'));
    END IF;
    WITH overdue AS (
        SELECT {{expired_lease.columns}}
        FROM job
        WHERE token IS NOT NULL AND lease_expires <= v_clock
            -- Several lease lengths may be more than a bigint holds.
            AND (v_tasks IS NULL OR task = ANY (v_tasks)
                OR v_clock - lease_expires > {{reaped_by_all_after}}::numeric * lease_len)
        ORDER BY lease_expires, queue, id LIMIT greatest(v_limit, 20 * least(v_limit, 10000))
    ), numbered AS (
        SELECT *, row_number() OVER (ORDER BY lease_expires, queue, id) - 1 AS place, count(*) OVER () AS size
        FROM overdue
    ), turned AS (
        SELECT *, (place - v_turn % size + size) % size AS rank FROM numbered
    )
    SELECT json_agg(json_build_object(
        {{expired_lease.pairs}}) ORDER BY rank)
    INTO v_leases FROM turned WHERE rank < v_limit;
    RETURN reply(answer_time(v_clock, p_not_before_us), '"leases":' || coalesce(v_leases, '[]'), 0, v_clock);
END $$;

-- These workers are dead: their leases expire now. A locked job is not among them: a call is about to settle it, or
-- it expires in its own time.
-- T8: all leases of these workers expire now at the latest.
-- A13: an error replaces an earlier one; without one, that stays.
CREATE FUNCTION disown(p_request jsonb, p_offset bigint, p_not_before_us bigint) RETURNS text
LANGUAGE plpgsql {{entry}}
SET enable_seqscan = off SET enable_hashjoin = off SET enable_mergejoin = off SET jit = off AS $$
DECLARE
    v_clock bigint := clock_time(p_offset);  -- PF4: not the latest time that the client has seen
    v_workers text[] := ARRAY(SELECT jsonb_array_elements_text(p_request -> 'workers'));
    v_leases json;
BEGIN
    PERFORM begin_call();
    SELECT json_agg(json_build_object('queue', queue, 'id', id) ORDER BY queue, id) INTO v_leases
    FROM expire_leases(v_workers, v_clock, nullif(p_request -> 'error', 'null'));
    RETURN reply(answer_time(v_clock, p_not_before_us), '"leases":' || coalesce(v_leases, '[]'), 0, v_clock);
END $$;

-- The leases of these workers, which expire now; all but those of locked jobs. `p_error`: how the workers have ended.
CREATE FUNCTION expire_leases(p_workers text[], p_clock bigint, p_error jsonb DEFAULT NULL)
RETURNS TABLE (queue text, id text, owner text) LANGUAGE sql AS $$
    WITH orphan AS MATERIALIZED (
        SELECT queue, id, owner FROM job WHERE token IS NOT NULL AND owner = ANY (p_workers) FOR UPDATE SKIP LOCKED
    ), expired AS (
        UPDATE job AS j SET
            lease_expires = least(j.lease_expires, p_clock), loss_error = coalesce(p_error, j.loss_error)
        FROM orphan AS o
        WHERE j.queue = o.queue AND j.id = o.id AND (j.lease_expires > p_clock OR p_error IS NOT NULL)
    )
    SELECT queue, id, owner FROM orphan
$$;

-- The lock that the session of a worker's keeper holds, shared, as long as the session lasts.
CREATE FUNCTION session_lock(p_worker text) RETURNS bigint LANGUAGE sql IMMUTABLE AS $$
    SELECT hashtextextended('{{namespace}} worker ' || p_worker, 0)
$$;

-- WK3: disown the workers whose session has ended and that have been silent for two heartbeats, and forget them. The
-- server's clock decides; `watched_us` limits how much silence counts, because after an outage all workers look silent.
-- Test and effect are one step: a heartbeat locks the worker's row, so it comes before this call, and the worker is not
-- silent, or after it. The lock that is taken here keeps the worker from getting its session lock back in between.
CREATE FUNCTION disown_silent(p_request jsonb, p_offset bigint, p_not_before_us bigint) RETURNS text
LANGUAGE plpgsql {{entry}}
SET enable_seqscan = off SET enable_hashjoin = off SET enable_mergejoin = off SET jit = off AS $$
DECLARE
    v_clock bigint := clock_time(p_offset);
    v_watched_us bigint := (p_request ->> 'watched_us')::bigint;
    v_worker text;
    v_ended text[] := '{}';
    v_leases json := '{}';
BEGIN
    PERFORM begin_call();
    FOR v_worker IN
        SELECT worker FROM worker
        WHERE has_session
            AND least(v_clock - seen, v_watched_us) > {{ended_after_intervals}} * (record ->> 'interval')::bigint
        FOR UPDATE SKIP LOCKED
    LOOP
        IF pg_try_advisory_xact_lock(session_lock(v_worker)) THEN
            v_ended := v_ended || v_worker;
        END IF;
    END LOOP;
    IF v_ended <> '{}' THEN
        WITH lease AS (SELECT owner FROM expire_leases(v_ended, v_clock))
        SELECT json_object_agg(e.worker, (SELECT count(*) FROM lease AS l WHERE l.owner = e.worker)) INTO v_leases
        FROM unnest(v_ended) AS e (worker);
        DELETE FROM worker WHERE worker = ANY (v_ended);
    END IF;
    RETURN reply(answer_time(v_clock, p_not_before_us), '"leases":' || v_leases, 0, v_clock);
END $$;

-- Write the record of a worker, and the version of the rules that it calls.
-- WK1: as sent, except `seen` and `stop_asked`, which are the engine's.
-- WK3: a heartbeat over a session of the worker's own names the session's process, and takes a lock that the session
-- keeps. Behind a proxy the process is another one than in the handshake: then the session may be shared, and its
-- end says nothing about the worker. The session counts its locks; the first one has the effect. A heartbeat over
-- another connection leaves it open whether the worker has a session: the two may come in any order.
CREATE FUNCTION heartbeat(p_request jsonb, p_offset bigint, p_not_before_us bigint) RETURNS text
LANGUAGE plpgsql {{entry}} SET enable_seqscan = off SET jit = off AS $$
DECLARE
    v_now bigint := call_time(p_offset, p_not_before_us);
    v_record jsonb := p_request -> 'worker';
    v_has_session boolean := coalesce((p_request ->> 'session_pid')::int = pg_backend_pid(), false);
    v_stop boolean;
BEGIN
    PERFORM begin_call();
    IF v_has_session THEN
        PERFORM pg_advisory_lock_shared(session_lock(v_record ->> 'worker'));
    END IF;
    INSERT INTO worker AS w (worker, record, seen, rules_version, has_session)
    VALUES (v_record ->> 'worker', v_record, v_now, {{rules_version}}, v_has_session)
    ON CONFLICT (worker) DO UPDATE SET
        record = excluded.record, seen = excluded.seen, rules_version = excluded.rules_version,
        has_session = CASE WHEN p_request ? 'session_pid' THEN excluded.has_session ELSE w.has_session END
    RETURNING w.stop_asked INTO v_stop;
    RETURN reply(v_now, '"stop":' || v_stop);
END $$;

CREATE FUNCTION workers(p_request jsonb, p_offset bigint, p_not_before_us bigint) RETURNS text
LANGUAGE plpgsql STABLE {{entry}} SET jit = off AS $$
DECLARE
    v_workers json;
BEGIN
    PERFORM begin_call();
    SELECT json_agg(record || jsonb_build_object('seen', seen, 'stop_asked', stop_asked) ORDER BY worker)
    INTO v_workers FROM worker;
    RETURN reply(call_time(p_offset, p_not_before_us), '"workers":' || coalesce(v_workers, '[]'));
END $$;

-- WK2: the next heartbeat answers `stop`.
-- N4: the worker is notified.
CREATE FUNCTION stop_worker(p_request jsonb, p_offset bigint, p_not_before_us bigint) RETURNS text
LANGUAGE plpgsql {{entry}} SET enable_seqscan = off SET jit = off AS $$
DECLARE
    v_found boolean;
BEGIN
    PERFORM begin_call();
    UPDATE worker SET stop_asked = true WHERE worker = p_request ->> 'worker';
    v_found := FOUND;
    IF v_found THEN
        PERFORM notify('worker:' || (p_request ->> 'worker'));
    END IF;
    RETURN reply(call_time(p_offset, p_not_before_us), '"found":' || v_found);
END $$;

-- WK1: a worker that ends removes its record.
CREATE FUNCTION forget_worker(p_request jsonb, p_offset bigint, p_not_before_us bigint) RETURNS text
LANGUAGE plpgsql {{entry}} SET enable_seqscan = off SET jit = off AS $$
DECLARE
    v_found boolean;
BEGIN
    PERFORM begin_call();
    DELETE FROM worker WHERE worker = p_request ->> 'worker';
    v_found := FOUND;
    RETURN reply(call_time(p_offset, p_not_before_us), '"found":' || v_found);
END $$;
