-- The parts of an exchange that meets a lock and is sent again: what another transaction has locked is left out, and all
-- else is done.
--
-- Each function waits a short time, and then gives up this part alone: the end of its block rolls back what it has
-- written, and releases the locks that it has taken.

-- Settlements one by one, in the order given. One is `busy` if its job, its lane or the next job of the lane is locked.
-- Each block that meets a lock is rolled back, and so releases the locks that it has taken.
CREATE FUNCTION settle_unlocked(p_settlements json, p_now bigint, p_clock bigint) RETURNS json LANGUAGE plpgsql
SET lock_timeout = {{busy_after_ms}} AS $$
DECLARE
    v_settlement json;
    v_answers text[] := '{}';
BEGIN
    FOR v_settlement IN SELECT value FROM json_array_elements(p_settlements) LOOP
        BEGIN
            PERFORM lock_lanes(json_build_array(v_settlement));
            v_answers := v_answers || settle(json_populate_record(NULL::settlement, v_settlement), p_now, p_clock);
        EXCEPTION WHEN lock_not_available THEN
            v_answers := v_answers || 'busy'::text;
        END;
    END LOOP;
    RETURN to_json(v_answers);
END $$;

CREATE FUNCTION start_unlocked(p_queue text, p_id text, p_token text, p_now bigint) RETURNS text LANGUAGE plpgsql
SET lock_timeout = {{busy_after_ms}} AS $$
BEGIN
    RETURN start(p_queue, p_id, p_token, p_now);
EXCEPTION WHEN lock_not_available THEN
    RETURN 'busy';
END $$;

-- Run deferred work, unless another transaction has locked what it needs: then a later call runs it.
CREATE FUNCTION run_deferred_unlocked(p_queue text, p_now bigint) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    PERFORM run_deferred(p_queue, false, p_now);
EXCEPTION WHEN lock_not_available THEN
    NULL;
END $$;

-- Resolve edges. If a child ends, it may meet a locked job of its lane: then a later call resolves all of them.
CREATE FUNCTION resolve_unlocked(p_now bigint) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    PERFORM resolve(p_now);
EXCEPTION WHEN lock_not_available THEN
    NULL;
END $$;

-- Claim. If an expired job meets a locked job of its lane, nothing of this queue is claimed now.
CREATE FUNCTION claim_unlocked(
    p_queue text, p_room bigint, p_cursor bigint[], p_tasks text[], p_shares bigint[], p_now bigint
) RETURNS picked LANGUAGE plpgsql AS $$
BEGIN
    RETURN claim(p_queue, p_room, p_cursor, p_tasks, p_shares, p_now);
EXCEPTION WHEN lock_not_available THEN
    RETURN ('{}', '{}')::picked;
END $$;
