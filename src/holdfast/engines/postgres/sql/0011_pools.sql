-- Pools as operators see them: declared, given another size, listed. How jobs find their lane is in `place_1`.

-- A pool as it is told of.
CREATE FUNCTION pool_record_1(p pool) RETURNS json LANGUAGE plpgsql AS $$
BEGIN
    RETURN json_build_object(
        'name', p.name, 'lanes', p.lanes, 'epoch', p.epoch, 'turn', turn_1(p.turns), 'old_live', p.old_live);
END $$;

CREATE FUNCTION pool_reply_1(p_now bigint, p pool, p_changed boolean) RETURNS text LANGUAGE sql AS $$
    SELECT reply_1(p_now, '"pool":' || pool_record_1(p) || ',"changed":' || p_changed)
$$;

-- Whether this call is the one to declare the pool. Who is second waits for the first, so that only one hears so.
CREATE FUNCTION is_new_pool_1(p_name text) RETURNS boolean LANGUAGE plpgsql AS $$
BEGIN
    IF EXISTS (SELECT 1 FROM pool WHERE name = p_name) THEN
        RETURN false;
    END IF;
    PERFORM pg_advisory_xact_lock(hashtextextended(current_schema || ' pools', 0));
    RETURN NOT EXISTS (SELECT 1 FROM pool WHERE name = p_name);
END $$;

CREATE FUNCTION put_pool_1(p_request jsonb, p_offset bigint, p_floor bigint) RETURNS text
LANGUAGE plpgsql SECURITY DEFINER SET search_path = {schema}, pg_temp SET enable_seqscan = off SET jit = off AS $$
DECLARE
    v_new boolean := is_new_pool_1(p_request ->> 'name');
    p pool := declare_pool_1(p_request ->> 'name', (p_request ->> 'lanes')::bigint);
BEGIN
    PERFORM begin_1();
    RETURN pool_reply_1(now_1(p_offset, p_floor), p, v_new);
END $$;

-- Another number of lanes. The lock is one that producers and ends of the pool's jobs share: whoever placed or ended a
-- job under the old size has committed, whoever comes later sees the new one. So the count below misses nobody.
--
-- Jobs that came in users' transactions and have not been placed yet will be placed under the new size; those that
-- ended in one are live here until their pool has heard of it. No chore is done under the lock: it would wait for lanes
-- whose holders may wait for the lock.
CREATE FUNCTION resize_1(p_request jsonb, p_offset bigint, p_floor bigint) RETURNS text
LANGUAGE plpgsql SECURITY DEFINER SET search_path = {schema}, pg_temp SET enable_seqscan = off SET jit = off AS $$
DECLARE
    v_name text := p_request ->> 'name';
    v_lanes bigint := (p_request ->> 'lanes')::bigint;
    v_now bigint;
    p pool;
    v_changed boolean;
BEGIN
    PERFORM begin_1();
    PERFORM pg_advisory_xact_lock(hashtextextended(current_schema || ' pool ' || v_name, 0));
    v_now := now_1(p_offset, p_floor);
    v_changed := is_new_pool_1(v_name);
    p := declare_pool_1(v_name, v_lanes);
    IF p.lanes <> v_lanes AND p.old_live = 0 THEN
        UPDATE pool SET lanes = v_lanes, epoch = epoch + 1, old_live = (
            SELECT count(*) FROM job
            WHERE queue = v_name AND epoch > 0 AND hold & 8 = 0
                AND state IN ('scheduled', 'blocked', 'queued', 'retrying')
        ) + (
            -- Leased ones by their token: a plain condition on the queue would tempt the planner to read all of it.
            SELECT count(*) FROM job WHERE token IS NOT NULL AND queue || '' = v_name AND epoch > 0
        ) + (
            SELECT count(*) FROM chore AS c JOIN job AS j ON j.queue = c.queue AND j.id = c.id AND j.arrival = c.arrival
            WHERE c.kind = 'end' AND c.queue = v_name AND j.epoch > 0
        ) WHERE name = v_name RETURNING * INTO p;
        v_changed := true;
    END IF;
    RETURN pool_reply_1(v_now, p, v_changed);
END $$;

CREATE FUNCTION pools_1(p_request jsonb, p_offset bigint, p_floor bigint) RETURNS text
LANGUAGE plpgsql STABLE SECURITY DEFINER SET search_path = {schema}, pg_temp SET jit = off AS $$
DECLARE
    v_pools json;
BEGIN
    PERFORM begin_1();
    SELECT coalesce(json_agg(pool_record_1(pool) ORDER BY name), '[]') INTO v_pools FROM pool;
    RETURN reply_1(now_1(p_offset, p_floor), '"pools":' || v_pools);
END $$;
