-- Pools: a queue with a number of lanes over which jobs are spread. The client takes the hash of a key; everything
-- else is decided here.
--
-- Locks: an advisory lock per pool, before those of its lanes where the pool is known in time.

-- Lock a pool. Calls that bring or end jobs of the present size share the lock. A resize has it alone, and so has a
-- call that ends a job of an older size: while the last of those releases the held jobs, no other call may bring a
-- job that would be held.
CREATE FUNCTION lock_pool(p_queue text, p_epoch bigint) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
    c_most CONSTANT int := 10;  -- rounds; each further one needs another resize in between
    v_lock bigint := hashtextextended('{{namespace}} pool ' || p_queue, 0);
BEGIN
    IF NOT is_older_size(p_queue, p_epoch) AND pg_try_advisory_xact_lock_shared(v_lock) THEN
        IF NOT is_older_size(p_queue, p_epoch) THEN
            RETURN;
        END IF;
    END IF;
    FOR i IN 1 .. c_most LOOP
        BEGIN
            IF is_older_size(p_queue, p_epoch) THEN
                PERFORM pg_advisory_xact_lock(v_lock);
                RETURN;
            END IF;
            PERFORM pg_advisory_xact_lock_shared(v_lock);
            IF NOT is_older_size(p_queue, p_epoch) THEN
                RETURN;
            END IF;
            RAISE SQLSTATE 'HF001';
        EXCEPTION WHEN SQLSTATE 'HF001' THEN
            NULL;  -- a resize came first: the end of the block releases the shared lock, and the loop begins again
        END;
    END LOOP;
    PERFORM give_up_looking('pool ' || p_queue);
END $$;

-- True if the pool has got another size since this epoch.
CREATE FUNCTION is_older_size(p_queue text, p_epoch bigint) RETURNS boolean LANGUAGE sql AS $$
    SELECT coalesce(p_epoch < (SELECT epoch FROM pool WHERE name = p_queue), false)
$$;

-- Give a job of a pool its lane, and the hold it may need. Producers share a lock that a resize waits for, so that
-- the resize counts every job of the old size. `p_lane`: the lane that was chosen for a job without a key, because of a
-- limit or in a user's transaction.
-- O2: the lane is chosen in the write that inserts the job; without a key, the next in turn.
-- O3: a keyed job waits for the jobs of an older size.
CREATE FUNCTION place(INOUT j job, p_lanes bigint, p_lane text DEFAULT NULL) LANGUAGE plpgsql AS $$
DECLARE
    p pool;
BEGIN
    PERFORM pg_advisory_xact_lock_shared(hashtextextended('{{namespace}} pool ' || j.queue, 0));
    p := declare_pool(j.queue, p_lanes);
    j.epoch := p.epoch;
    IF j.pool_hash IS NULL AND p_lane::bigint < p.lanes THEN
        j.lane := p_lane;
    ELSIF j.pool_hash IS NULL THEN
        j.lane := ((nextval(p.turns::regclass) - 1) % p.lanes)::text;
    ELSE
        j.lane := (j.pool_hash % p.lanes)::text;
        IF p.old_live > 0 THEN
            j.hold := j.hold | {{hold.epoch}};
        END IF;
    END IF;
END $$;

-- The lanes that the new jobs of a limited group get, in the order of the group. Locks nothing.
-- E8: a pool that is not stored yet has the lanes of its first job; jobs without a key come last, and leave the others
-- their room.
CREATE FUNCTION choose_lanes(p_jobs jsonb, p_new boolean[], p_limits jsonb) RETURNS text[] LANGUAGE plpgsql AS $$
DECLARE
    q record;
    n new_job;
    p pool;
    v_lanes text[] := '{}';
    v_added text[];   -- of the other jobs of the group in this queue
    v_keyless int[];  -- places in the group
    v_found text[];
    v_place int;
BEGIN
    FOR n IN SELECT * FROM jsonb_populate_recordset(NULL::new_job, p_jobs) LOOP
        v_lanes := v_lanes || n.lane;
    END LOOP;
    FOR q IN
        SELECT value ->> 'queue' AS name, (array_agg(value -> 'pool' ->> 'lanes' ORDER BY ordinality))[1] AS lanes
        FROM jsonb_array_elements(p_jobs) WITH ORDINALITY WHERE p_new[ordinality] AND value ? 'pool' GROUP BY 1
    LOOP
        SELECT * INTO p FROM pool WHERE name = q.name;
        p.name := q.name;
        p.lanes := coalesce(p.lanes, q.lanes::bigint);
        v_added := '{}';
        v_keyless := '{}';
        v_place := 0;
        FOR n IN SELECT * FROM jsonb_populate_recordset(NULL::new_job, p_jobs) LOOP
            v_place := v_place + 1;
            CONTINUE WHEN n.queue <> q.name OR NOT p_new[v_place];
            IF n.pool ->> 'hash' IS NOT NULL THEN
                v_lanes[v_place] := ((n.pool ->> 'hash')::numeric % p.lanes)::text;
            ELSIF n.pool IS NOT NULL THEN
                v_keyless := v_keyless || v_place;
            END IF;
            v_added := v_added || v_lanes[v_place];
        END LOOP;
        v_found := take_turns(p, cardinality(v_keyless), p_limits, v_added);
        FOR i IN 1 .. cardinality(v_keyless) LOOP
            v_lanes[v_keyless[i]] := v_found[i];
        END LOOP;
    END LOOP;
    RETURN v_lanes;
END $$;

-- The lanes of the next jobs without a key: round-robin, without lanes that are full with what is stored and `p_added`.
-- Round again: only lanes that had room. The turn stays: see `pass_turn`.
-- O2, E8: if none has room, the limit refuses the lane whose turn it is.
CREATE FUNCTION take_turns(p pool, p_count int, p_limits jsonb, p_added text[]) RETURNS text[] LANGUAGE plpgsql AS $$
DECLARE
    v_turn bigint := turns_given(p.turns);
    v_behind bigint := v_turn;
    v_round int := least(p.lanes, greatest(p_count, {{lanes_looked_at}}));
    v_found text[] := '{}';
    v_lane text;
BEGIN
    FOR i IN 0 .. v_round + p_count LOOP
        EXIT WHEN cardinality(v_found) = p_count OR i - v_round >= cardinality(v_found);
        v_lane := CASE WHEN i < v_round THEN ((v_turn + i) % p.lanes)::text ELSE v_found[i - v_round + 1] END;
        IF has_room(p_limits, p.name, v_lane, 1 + cardinality(array_positions(p_added || v_found, v_lane))) THEN
            v_found := v_found || v_lane;
            v_behind := v_lane::bigint + 1;
        END IF;
    END LOOP;
    RETURN v_found || array_fill((v_behind % p.lanes)::text, ARRAY[p_count - cardinality(v_found)]);
END $$;

-- True if the limits on this lane have room for so many jobs more.
CREATE FUNCTION has_room(p_limits jsonb, p_queue text, p_lane text, p_more bigint) RETURNS boolean LANGUAGE plpgsql AS $$
DECLARE
    l jsonb;
BEGIN
    FOR l IN
        SELECT value FROM jsonb_array_elements(p_limits)
        WHERE value ->> 'queue' = p_queue AND ((value ->> 'each_lane')::boolean OR value ->> 'lane' = p_lane)
    LOOP
        IF depth_for_limit(p_queue, p_lane, (l ->> 'limit')::bigint) + p_more > (l ->> 'limit')::bigint THEN
            RETURN false;
        END IF;
    END LOOP;
    RETURN true;
END $$;

-- Move the turn of a pool behind a lane that `take_turns` has chosen, with one number for each lane that is passed.
-- Calls whose limits do not hold each other back, such as those in users' transactions, may choose one lane twice.
CREATE FUNCTION pass_turn(p_queue text, p_lane text) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
    p pool;
BEGIN
    SELECT * INTO p FROM pool WHERE name = p_queue;
    FOR i IN 1 .. least(p.lanes, {{lanes_looked_at}}) LOOP
        EXIT WHEN ((nextval(p.turns::regclass) - 1) % p.lanes)::text = p_lane;
    END LOOP;
END $$;

-- The lane of a stored job that comes back.
-- O5: by the present size.
CREATE FUNCTION lane_again(j job, p_limits jsonb DEFAULT '[]') RETURNS text LANGUAGE plpgsql AS $$
DECLARE
    p pool;
BEGIN
    IF j.epoch > 0 THEN
        SELECT * INTO p FROM pool WHERE name = j.queue;
    END IF;
    IF p.name IS NULL THEN
        RETURN j.lane;
    ELSIF j.pool_hash IS NULL THEN
        RETURN (take_turns(p, 1, p_limits, '{}'))[1];
    END IF;
    RETURN (j.pool_hash % p.lanes)::text;
END $$;

-- How many numbers a pool's sequence has given.
CREATE FUNCTION turns_given(p_turns text) RETURNS bigint LANGUAGE plpgsql AS $$
DECLARE
    v_turn bigint;
BEGIN
    IF p_turns IS NULL THEN
        RETURN 0;
    END IF;
    EXECUTE format('SELECT CASE WHEN is_called THEN last_value ELSE 0 END FROM %I', p_turns) INTO v_turn;
    RETURN v_turn;
END $$;

-- The record of a pool, made if the pool is new.
-- O1: where the pool exists, the stored number of lanes wins.
CREATE FUNCTION declare_pool(p_name text, p_lanes bigint) RETURNS pool LANGUAGE plpgsql AS $$
DECLARE
    p pool;
    v_turns text;
BEGIN
    SELECT * INTO p FROM pool WHERE name = p_name;
    IF p.name IS NOT NULL THEN
        RETURN p;
    END IF;
    -- One at a time: a sequence is made by name. It gets the first name that no pool has; the sequence of a removed
    -- pool is used again, so that a removal waits for no transaction that has used it.
    PERFORM pg_advisory_xact_lock(hashtextextended('{{namespace}} pools', 0));
    SELECT * INTO p FROM pool WHERE name = p_name;
    IF p.name IS NULL THEN
        SELECT 'turns_' || number INTO v_turns FROM generate_series(1, (SELECT count(*) + 1 FROM pool)) AS number
        WHERE NOT EXISTS (SELECT 1 FROM pool WHERE turns = 'turns_' || number) ORDER BY number LIMIT 1;
        IF to_regclass(v_turns) IS NULL THEN
            EXECUTE format('CREATE SEQUENCE {{namespace}}.%I', v_turns);
        ELSE
            PERFORM setval(v_turns::regclass, 1, false);
        END IF;
        PERFORM keep_queue(p_name);
        INSERT INTO pool (name, lanes, turns) VALUES (p_name, p_lanes, v_turns) RETURNING * INTO p;
    END IF;
    RETURN p;
END $$;

-- True if this call is the one that declares the pool. A second caller waits for the first, so only one gets true.
CREATE FUNCTION is_new_pool(p_name text) RETURNS boolean LANGUAGE plpgsql AS $$
BEGIN
    IF EXISTS (SELECT 1 FROM pool WHERE name = p_name) THEN
        RETURN false;
    END IF;
    PERFORM pg_advisory_xact_lock(hashtextextended('{{namespace}} pools', 0));
    RETURN NOT EXISTS (SELECT 1 FROM pool WHERE name = p_name);
END $$;

-- A job of a pool has ended.
-- O3: `old_live` counts down; the last job of an older size releases the held ones.
CREATE FUNCTION leave_pool(j job, p_now bigint) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
    p pool;
    v_held job;
    v_from text;
BEGIN
    PERFORM lock_pool(j.queue, j.epoch);
    UPDATE pool SET old_live = old_live - 1
    WHERE name = j.queue AND epoch > j.epoch AND old_live > 0 RETURNING * INTO p;
    IF p.old_live = 0 THEN
        FOR v_held IN
            SELECT * FROM job
            WHERE queue = j.queue AND state = 'blocked' AND hold & {{hold.epoch}} = {{hold.epoch}}
            ORDER BY arrival FOR UPDATE
        LOOP
            v_from := v_held.state;
            v_held.hold := v_held.hold & ~{{hold.epoch}};
            v_held := as_waiting(v_held, lane_paused(v_held.queue, v_held.lane), p_now);
            PERFORM put_job(v_from, v_held);
        END LOOP;
    END IF;
END $$;

-- True if the lane is one of the pool's present size: then prune keeps it.
CREATE FUNCTION is_pool_lane(p_queue text, p_lane text) RETURNS boolean LANGUAGE sql STABLE AS $$
    SELECT coalesce((
        SELECT CASE WHEN p_lane ~ '^[0-9]+$' THEN p_lane::numeric < lanes ELSE false END FROM pool WHERE name = p_queue
    ), false)
$$;

-- The record of a pool as the model has it.
CREATE FUNCTION pool_record(p pool) RETURNS json LANGUAGE plpgsql AS $$
BEGIN
    RETURN json_build_object(
        'name', p.name, 'lanes', p.lanes, 'epoch', p.epoch, 'turn', turns_given(p.turns), 'old_live', p.old_live);
END $$;

CREATE FUNCTION pool_reply(p_now bigint, p pool, p_changed boolean) RETURNS text LANGUAGE sql AS $$
    SELECT reply(p_now, '"pool":' || pool_record(p) || ',"changed":' || p_changed)
$$;

CREATE FUNCTION put_pool(p_request jsonb, p_offset bigint, p_not_before_us bigint) RETURNS text
LANGUAGE plpgsql {{entry}} SET enable_seqscan = off SET jit = off AS $$
DECLARE
    v_name text := p_request ->> 'name';
    v_now bigint := call_time(p_offset, p_not_before_us);
    v_new boolean;
    p pool;
BEGIN
    PERFORM begin_call();
    IF NOT EXISTS (SELECT 1 FROM pool WHERE name = v_name) THEN
        PERFORM run_deferred(v_name, true, v_now);  -- its first job may have come in a user's transaction
        PERFORM write_tally();
    END IF;
    v_new := is_new_pool(v_name);
    p := declare_pool(v_name, (p_request ->> 'lanes')::bigint);
    RETURN pool_reply(call_time(p_offset, v_now), p, v_new);
END $$;

-- Give a pool another number of lanes. Calls that bring or end jobs of the pool share its lock: those that hold it
-- under the old size have committed when this call gets it, and later ones see the new size. So the count below
-- misses no job.
-- O4: not for the same number, and not while an earlier resize goes on. An unknown pool is declared.
-- O3: the next epoch.
--
-- A job that came in a user's transaction and is not placed yet gets its place under the new size. One that ended in
-- a user's transaction is live here until its deferred end has run. Deferred work is not run under the lock: it would
-- wait for lanes whose holders may wait for the lock.
CREATE FUNCTION resize(p_request jsonb, p_offset bigint, p_not_before_us bigint) RETURNS text
LANGUAGE plpgsql {{entry}} SET enable_seqscan = off SET jit = off AS $$
DECLARE
    v_name text := p_request ->> 'name';
    v_lanes bigint := (p_request ->> 'lanes')::bigint;
    v_now bigint;
    p pool;
    v_changed boolean;
BEGIN
    PERFORM begin_call();
    PERFORM pg_advisory_xact_lock(hashtextextended('{{namespace}} pool ' || v_name, 0));
    v_now := call_time(p_offset, p_not_before_us);
    v_changed := is_new_pool(v_name);
    p := declare_pool(v_name, v_lanes);
    IF p.lanes <> v_lanes AND p.old_live = 0 THEN
        UPDATE pool SET lanes = v_lanes, epoch = epoch + 1, old_live = (
            SELECT count(*) FROM job
            WHERE queue = v_name AND epoch > 0 AND hold & {{hold.arriving}} = 0
                AND state IN ({{waiting}})
        ) + (
            -- Leased ones by their token: a plain condition on the queue would lead the planner to read all of it.
            SELECT count(*) FROM job WHERE token IS NOT NULL AND queue || '' = v_name AND epoch > 0
        ) + (
            SELECT count(*) FROM deferred WHERE kind = 'end' AND queue = v_name AND epoch > 0
        ) WHERE name = v_name RETURNING * INTO p;
        v_changed := true;
    END IF;
    RETURN pool_reply(v_now, p, v_changed);
END $$;

-- RD5: the pool with this name, or all pools.
CREATE FUNCTION pools(p_request jsonb, p_offset bigint, p_not_before_us bigint) RETURNS text
LANGUAGE plpgsql STABLE {{entry}} SET jit = off AS $$
DECLARE
    v_pools json;
BEGIN
    PERFORM begin_call();
    SELECT coalesce(json_agg(pool_record(pool) ORDER BY name), '[]') INTO v_pools FROM pool
    WHERE p_request ->> 'name' IS NULL OR name = p_request ->> 'name';
    RETURN reply(call_time(p_offset, p_not_before_us), '"pools":' || v_pools);
END $$;
