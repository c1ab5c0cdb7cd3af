-- Enqueue and settle in a user's transaction. What they do to lanes, pools and children is deferred until after the
-- commit (`deferred.sql`). So no other call waits for a lock that a user holds, except for the same job or key.
--
-- A request is one text, so that any driver can carry it.

-- Notify when the user's transaction commits, and never if it does not. `p_notify` false: do not use pg_notify.
CREATE FUNCTION send_notifications(p_notify boolean) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    IF p_notify AND NOT is_notify_queue_full() THEN
        PERFORM pg_notify('holdfast_{{namespace}}', lines_of('holdfast.topics'))
        WHERE octet_length(lines_of('holdfast.topics')) BETWEEN 3 AND 7900;
    END IF;
END $$;

CREATE FUNCTION enqueue_in_transaction(p_request text) RETURNS text LANGUAGE plpgsql {{entry}}
SET enable_seqscan = off SET jit = off AS $$
DECLARE
    v_request jsonb := p_request::jsonb;
    v_reply text := enqueue((v_request -> 'groups')::text, true,
        (v_request ->> 'fast')::boolean, (v_request ->> 'offset')::bigint,
        (v_request ->> 'not_before_us')::bigint);
BEGIN
    PERFORM send_notifications((v_request ->> 'notify')::boolean);
    RETURN v_reply;
END $$;

CREATE FUNCTION settle_in_transaction(p_request text) RETURNS text LANGUAGE plpgsql {{entry}}
SET enable_seqscan = off SET jit = off AS $$
DECLARE
    v_request json := p_request::json;
    v_now bigint := call_time((v_request ->> 'offset')::bigint, (v_request ->> 'not_before_us')::bigint);
    v_settled json;
BEGIN
    PERFORM begin_call(true);
    v_settled := settle_all(v_request -> 'settlements', v_now, v_now);
    PERFORM write_tally();
    PERFORM send_notifications((v_request ->> 'notify')::boolean);
    RETURN reply(v_now, '"settled":' || v_settled);
END $$;
