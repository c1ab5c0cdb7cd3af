-- One call being carried out: its time, the state changes it counts, the topics it will notify. All other files use it.
--
-- The rules are those of `engines/ledger`, file by file; the differential machine compares the two, answer by answer.
-- A comment such as `L3:` names the rule of docs/contract.md, section 4, that the function carries out.
--
-- What a call gathers (state changes to count, topics to notify, lanes that ran empty) stands in settings that live
-- as long as the transaction, one JSON value per line: functions have no other common variable.
--
-- A function of one query is PL/pgSQL if it reads a table: in SQL it would be parsed and planned at every call. And
-- what every call does is written as assignments, also where the value is not used: PL/pgSQL evaluates an expression
-- in a tenth of the time of a PERFORM, which is a query.
--
-- A function that clients call is SECURITY DEFINER with a fixed search path. All others are called beneath one of
-- those, with its rights and its search path, and no other role may call them: a search path of its own would cost a
-- helper ten times its time.

-- Forget what an earlier call of the same transaction has gathered.
CREATE FUNCTION begin_call(p_user_transaction boolean DEFAULT false) RETURNS text LANGUAGE plpgsql AS $$
BEGIN
    RETURN set_config('holdfast.moves', '', true) || set_config('holdfast.topics', '', true)
        || set_config('holdfast.emptied', '', true)
        || set_config('holdfast.user_transaction', p_user_transaction::text, true);
END $$;

-- The clock of the server. `p_offset` is 0 in production.
-- PF4: leases are counted with this clock alone, never with a time that a client has seen.
CREATE FUNCTION clock_time(p_offset bigint) RETURNS bigint LANGUAGE sql AS $$
    SELECT (extract(epoch FROM clock_timestamp()) * 1000000)::bigint + p_offset
$$;

-- The time that is answered to a client. `p_not_before_us` is the latest time that an answer has given this client: for
-- a client, time does not go back. But a time that is far ahead of the clock was wrong, and is dropped.
CREATE FUNCTION answer_time(p_clock bigint, p_not_before_us bigint) RETURNS bigint LANGUAGE sql IMMUTABLE AS $$
    SELECT CASE WHEN p_not_before_us - p_clock BETWEEN 1 AND {{longest_lead}} THEN p_not_before_us ELSE p_clock END
$$;

-- The time of a call that touches no lease: read once, after its locks. In SQL it would be parsed and planned at every
-- call: the planner does not inline a function if an argument that it uses twice is volatile.
CREATE FUNCTION call_time(p_offset bigint, p_not_before_us bigint) RETURNS bigint LANGUAGE plpgsql AS $$
DECLARE
    v_clock bigint := clock_time(p_offset);
BEGIN
    RETURN answer_time(v_clock, p_not_before_us);
END $$;

-- An instant plus a duration, at most the instant that never comes.
CREATE FUNCTION later(p_start bigint, p_duration bigint) RETURNS bigint LANGUAGE sql IMMUTABLE AS $$
    SELECT least(p_start + p_duration, {{forever}})
$$;

-- Notify this topic after the commit. The client does it, with the topics that `reply` gives back.
CREATE FUNCTION notify(p_topic text) RETURNS text LANGUAGE plpgsql AS $$
DECLARE
    v_line text := to_json(p_topic)::text || E'\n';
    v_topics text := current_setting('holdfast.topics', true);
BEGIN
    IF strpos(E'\n' || v_topics, E'\n' || v_line) > 0 THEN  -- a whole line: a name may contain quotes
        RETURN v_topics;
    END IF;
    RETURN set_config('holdfast.topics', v_topics || v_line, true);
END $$;

-- Notify other processes with the commit of this call; else its client does it afterwards, in a second call from another
-- thread. Returns the topics that are notified. `p_topics`: elements of a JSON array. `p_sender`: the client's name for
-- itself, so that it ignores what it sent; null: the client does all of it.
-- A commit with NOTIFY holds a lock of the whole server until it is on disk. So only one call at a time does this, and
-- no call waits for it: the others leave it to their clients, whose notifications need not be on disk.
-- N5: the server delivers them after the commit.
CREATE FUNCTION notify_at_commit(p_sender text, p_topics text) RETURNS text LANGUAGE plpgsql AS $$
DECLARE
    c_most CONSTANT int := 7500;  -- bytes; the server takes 7,999, and the sender's name is short
    v_none text;
BEGIN
    IF p_sender IS NULL OR p_topics = '' OR octet_length(p_topics) > c_most OR is_notify_queue_full()
        OR NOT pg_try_advisory_xact_lock(hashtextextended('{{notify_lock}}', 0))
    THEN
        RETURN '[]';
    END IF;
    v_none := pg_notify('holdfast_{{namespace}}', '[' || to_json(p_sender) || ',' || p_topics || ']');
    RETURN '[' || p_topics || ']';
END $$;

-- True long before the server refuses commits with NOTIFY: a session listens and does not end its transaction. A commit
-- that does its work must not fail for a notification; processes poll, too.
CREATE FUNCTION is_notify_queue_full() RETURNS boolean LANGUAGE sql AS $$ SELECT pg_notification_queue_usage() > 0.5 $$;

-- A call has looked several times, and found something changed each time. Outside of users' transactions the client
-- calls again. A transaction that is not READ COMMITTED reads the same each time: its user has to begin it again.
CREATE FUNCTION give_up_looking(p_what text) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    RAISE EXCEPTION 'other transactions have changed % meanwhile', p_what USING ERRCODE = '40001',
        DETAIL = 'The isolation level of this transaction is ' || current_setting('transaction_isolation') || '.',
        HINT = 'Roll back and try again.';
END $$;

CREATE FUNCTION is_terminal(p_state text) RETURNS boolean LANGUAGE sql IMMUTABLE AS $$
    SELECT p_state IN ({{terminal}})
$$;

-- Count a change of state of `p_jobs` jobs. Null: they were not there before, or are not there after.
CREATE FUNCTION count_moves(p_queue text, p_from text, p_to text, p_jobs int DEFAULT 1) RETURNS void
LANGUAGE plpgsql AS $$
DECLARE
    c_most CONSTANT int := 20000;  -- characters; each further line copies all that stand before it
    v_lines text := '';
BEGIN
    IF p_from IS NOT DISTINCT FROM p_to OR p_jobs = 0 THEN
        RETURN;
    END IF;
    IF p_from IS NOT NULL THEN
        v_lines := json_build_array(p_queue, p_from, -p_jobs, 0)::text || E'\n';
    END IF;
    IF p_to IS NOT NULL THEN
        v_lines := v_lines || json_build_array(
            p_queue, p_to, p_jobs, CASE WHEN is_terminal(p_to) THEN p_jobs ELSE 0 END)::text || E'\n';
    END IF;
    v_lines := current_setting('holdfast.moves', true) || v_lines;
    PERFORM set_config('holdfast.moves', v_lines, true);
    IF length(v_lines) > c_most THEN
        PERFORM write_tally();
    END IF;
END $$;

-- Write what `count_moves` has gathered: at most one row of `tally` per queue and state, however much the call did.
CREATE FUNCTION write_tally() RETURNS text LANGUAGE plpgsql AS $$
DECLARE
    v_moves text := current_setting('holdfast.moves', true);
BEGIN
    IF v_moves <> '' THEN
        INSERT INTO tally (queue, state, jobs, ends)
        SELECT line ->> 0, line ->> 1, sum((line ->> 2)::int), sum((line ->> 3)::int)
        FROM (SELECT string_to_table(rtrim(v_moves, E'\n'), E'\n')::json AS line) AS lines
        GROUP BY 1, 2
        HAVING sum((line ->> 2)::int) <> 0 OR sum((line ->> 3)::int) <> 0;
    END IF;
    RETURN set_config('holdfast.moves', '', true);
END $$;

-- The lines of a setting as one JSON array.
CREATE FUNCTION lines_of(p_setting text) RETURNS text LANGUAGE sql AS $$
    SELECT '[' || replace(rtrim(current_setting(p_setting, true), E'\n'), E'\n', ',') || ']'
$$;

-- Live jobs of a queue.
CREATE FUNCTION depth(p_queue text) RETURNS bigint LANGUAGE plpgsql STABLE AS $$
BEGIN
    RETURN (
        SELECT coalesce(sum(jobs), 0)::bigint FROM (
            SELECT jobs FROM counter WHERE queue = p_queue AND NOT is_terminal(state)
            UNION ALL
            SELECT jobs FROM tally WHERE queue = p_queue AND NOT is_terminal(state)
        ) AS both_of);
END $$;

CREATE FUNCTION declare_queue(p_queue text) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO queue (queue) VALUES (p_queue) ON CONFLICT DO NOTHING;
END $$;

-- The same, and no other call removes the queue until the end of this one. For records that would be left alone.
CREATE FUNCTION keep_queue(p_queue text) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    PERFORM declare_queue(p_queue);
    PERFORM 1 FROM queue WHERE queue = p_queue FOR KEY SHARE;
    IF NOT FOUND THEN  -- another call has removed it meanwhile
        PERFORM declare_queue(p_queue);
    END IF;
END $$;

-- Bytes as JSON carries them.
CREATE FUNCTION base64(p_data bytea) RETURNS text LANGUAGE sql IMMUTABLE AS $$
    SELECT replace(encode(p_data, 'base64'), E'\n', '')
$$;

-- An answer as text: the topics to notify after the commit, the time, and the fields of the verb's answer.
-- `p_scanned`: entries of the index job_ready that a claim has read. `p_clock`: the time of leases, if it has any.
-- `p_sent`: topics that `notify_at_commit` has taken.
CREATE FUNCTION reply(
    p_now bigint, p_fields text, p_scanned bigint DEFAULT 0, p_clock bigint DEFAULT NULL, p_sent text DEFAULT '[]'
) RETURNS text LANGUAGE plpgsql AS $$
BEGIN
    RETURN '{"topics":' || lines_of('holdfast.topics') || ',"sent":' || p_sent || ',"scanned":' || p_scanned
        || ',"answer":{"at":{"wall":' || p_now || ',"lease":' || coalesce(p_clock, p_now) || '}'
        || CASE p_fields WHEN '' THEN '' ELSE ',' || p_fields END || '}}';
END $$;

-- The job with the state and hold in which it waits from now on. The caller reads `p_lane_paused` under the lane's
-- lock.
-- E4: blocked if something holds it, else scheduled until it is due, else queued.
-- U2: the head of a paused lane is held from the time it would be queued; its due time runs on.
CREATE FUNCTION as_waiting(INOUT j job, p_lane_paused boolean, p_now bigint) LANGUAGE plpgsql AS $$
BEGIN
    j.hold := j.hold & ~{{hold.paused}};
    IF j.hold <> 0 THEN
        j.state := 'blocked';
    ELSIF j.due > p_now THEN
        j.state := 'scheduled';
    ELSIF j.lane IS NOT NULL AND p_lane_paused THEN
        j.hold := {{hold.paused}};
        j.state := 'blocked';
    ELSE
        j.state := 'queued';
    END IF;
END $$;

-- Write a stored job whole. Two hot updates write single columns instead: in `exchange` and in `settle_fast`.
-- N1: a job that became queued notifies its queue.
CREATE FUNCTION put_job(p_from text, j job) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    UPDATE job SET
        {{put.assignments}}
    WHERE queue = j.queue AND id = j.id;
    PERFORM count_moves(j.queue, p_from, j.state);
    IF j.state = 'queued' AND p_from <> 'queued' THEN
        PERFORM notify('queue:' || j.queue);
    END IF;
END $$;

-- Delete a record, and the row of its key if no other job has taken the key since.
CREATE FUNCTION drop_job(p_queue text, p_id text) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
    j job;
BEGIN
    DELETE FROM job WHERE queue = p_queue AND id = p_id RETURNING * INTO j;
    IF j.unique_key IS NOT NULL THEN
        -- Not if another call has locked the row: a row without its job has no effect, and there is no need to wait.
        DELETE FROM unique_key AS k USING (
            SELECT queue, task, unique_key FROM unique_key
            WHERE queue = j.queue AND task = j.task AND unique_key = j.unique_key AND id = j.id
            FOR UPDATE SKIP LOCKED
        ) AS mine WHERE (k.queue, k.task, k.unique_key) = (mine.queue, mine.task, mine.unique_key);
    END IF;
    PERFORM count_moves(p_queue, j.state, NULL);
END $$;
