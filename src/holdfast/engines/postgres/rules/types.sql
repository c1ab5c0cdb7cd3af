-- The composite types that functions pass to each other. Their attributes are the fields of the model.

-- A job as a producer sends it.
CREATE TYPE new_job AS (
    {{new_job.attributes}}
);

-- What to write because an attempt ended.
CREATE TYPE settlement AS (
    {{settlement.attributes}}
);

-- A row of an exchange's answer: a lease. The last row is none; it has everything else in `answer`.
CREATE TYPE exchange_row AS (
    {{lease.attributes}},
    answer text
);

-- The jobs that a claim has locked, in claim order: the place of each row (ctid), and the number of its task.
CREATE TYPE picked AS (rows tid[], tasks int[]);

-- Successes that the fast path has settled: their places in the request; the queues of those that stay and of those
-- that are deleted, one element per job; and the processes that wait for a reply.
CREATE TYPE settled_fast AS (places bigint[], ended text[], gone text[], replies text[]);
