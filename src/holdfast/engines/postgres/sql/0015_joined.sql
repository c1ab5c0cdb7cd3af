-- In a transaction of a user's: what the engine's own calls do besides (lanes, pools, children) waits for the commit, as a
-- chore. So nobody waits for a lock that a user holds, but for its own job and its own key.

-- Ring when the user commits, and never if it does not. `p_notify` false: the user's commits shall not notify.
CREATE FUNCTION notify_1(p_notify boolean) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    IF p_notify THEN
        PERFORM pg_notify('holdfast_' || current_schema, lines_1('holdfast.rings'))
        WHERE length(lines_1('holdfast.rings')) BETWEEN 3 AND 7900;
    END IF;
END $$;

-- Requests are one text each, so that any driver can carry them.
CREATE FUNCTION enqueue_joined_1(p_request text) RETURNS text LANGUAGE plpgsql SECURITY DEFINER
SET search_path = {schema}, pg_temp SET enable_seqscan = off SET jit = off SET lock_timeout = '2s' AS $$
DECLARE
    v_request jsonb := p_request::jsonb;
    v_reply text := enqueue_1((v_request -> 'groups')::text, true, (v_request ->> 'offset')::bigint,
        (v_request ->> 'floor')::bigint);
BEGIN
    PERFORM notify_1((v_request ->> 'notify')::boolean);
    RETURN v_reply;
END $$;

CREATE FUNCTION settle_joined_1(p_request text) RETURNS text LANGUAGE plpgsql SECURITY DEFINER
SET search_path = {schema}, pg_temp SET enable_seqscan = off SET jit = off SET lock_timeout = '2s' AS $$
DECLARE
    v_request json := p_request::json;
    v_now bigint := now_1((v_request ->> 'offset')::bigint, (v_request ->> 'floor')::bigint);
    v_settled json;
BEGIN
    PERFORM begin_1(true);
    v_settled := settle_all_1(v_request -> 'settlements', v_now);
    PERFORM close_1();
    PERFORM notify_1((v_request ->> 'notify')::boolean);
    RETURN reply_1(v_now, '"settled":' || v_settled);
END $$;
