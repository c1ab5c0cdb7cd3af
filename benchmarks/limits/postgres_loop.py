"""The bare PostgreSQL loops: a minimal table, its primary key, one partial index, one connection, batches of 100.

The server is as it comes: `fsync` and `synchronous_commit` are on. There is no handler. Each turn is one transaction.

Two of them are programs, for what takes several processes: `insert` is a producer, `claim` waits for notifications.
"""

import asyncio
import sys
import time
from collections.abc import Callable

import asyncpg

BATCH = 100
WINDOW = 2.0

TABLE = """
CREATE TABLE job (
    queue text COLLATE "C" NOT NULL, id text COLLATE "C" NOT NULL, task text COLLATE "C" NOT NULL,
    payload bytea NOT NULL, state smallint NOT NULL DEFAULT 0, priority integer NOT NULL DEFAULT 0,
    due bigint NOT NULL, arrival bigint GENERATED ALWAYS AS IDENTITY, token text,
    PRIMARY KEY (queue, id)
);
CREATE INDEX ready ON job (queue, task, priority DESC, due, arrival) WHERE state = 0
"""
INSERT = "INSERT INTO job (queue, id, task, payload, due) SELECT 'q', id, 't', $2, $3 FROM unnest($1::text[]) AS id"
READY = """
    ARRAY(
        SELECT ctid FROM job WHERE queue = 'q' AND task = 't' AND state = 0
        ORDER BY priority DESC, due, arrival LIMIT 100 FOR UPDATE SKIP LOCKED
    )
"""
CLAIM = f"UPDATE job SET state = 1, token = $3 || arrival WHERE ctid = ANY ({READY}) RETURNING id, token, payload"
DONE = """
    unnest($1::text[], $2::text[]) AS done (id, token)
    WHERE job.queue = 'q' AND job.id = done.id AND job.token = done.token
"""
KEEP = f"WITH settled AS (UPDATE job SET state = 2, token = NULL FROM {DONE}) {CLAIM}"
FORGET = f"WITH settled AS (DELETE FROM job USING {DONE}) {CLAIM}"


def drain(url: str, jobs: int, payload: bytes) -> float:
    """Jobs per second: each turn marks the last hundred as done and claims the next. The rows are kept."""
    return asyncio.run(_drain(url, jobs, payload, KEEP))


def take_out(url: str, jobs: int, payload: bytes) -> float:
    """Jobs per second: each turn deletes the last hundred and claims the next."""
    return asyncio.run(_drain(url, jobs, payload, FORGET))


def drain_over_time(url: str, jobs: int, payload: bytes, seconds: float) -> list[float]:
    """Jobs per second in each window of two seconds, while another client holds on to an old snapshot."""

    async def loop() -> list[float]:
        connection = await _filled(url, jobs, payload)
        other = await old_snapshot(url)
        rates = await _exchanges(connection, KEEP, time.perf_counter() + seconds)
        await other.close()
        await connection.close()
        return rates

    return asyncio.run(loop())


def inserts(url: str, calls: int, batch: int, payload: bytes) -> float:
    """Rows per second in batches of this size, each committed."""

    async def loop() -> float:
        connection = await _connected(url)
        began = time.perf_counter()
        await _insert(connection, calls, batch, payload)
        took = time.perf_counter() - began
        await connection.close()
        return calls * batch / took

    return asyncio.run(loop())


def prepare(url: str) -> None:
    """The table, for loops that run in other processes."""

    async def make() -> None:
        await (await _connected(url)).close()

    asyncio.run(make())


def insert(url: str, count: str) -> None:
    """One of several producers that start together: a row and a commit at a time."""

    async def loop() -> None:
        connection = await asyncpg.connect(url)
        await _insert(connection, 1, 1, b"x" * 100, f"{id(connection)}")
        print("ready", flush=True)
        sys.stdin.readline()
        await _insert(connection, int(count), 1, b"x" * 100, f"{time.time_ns()}")
        print("done", flush=True)
        await connection.close()

    asyncio.run(loop())


def claim(url: str) -> None:
    """Claims a row at each notification, and prints how long after the insert, in milliseconds."""

    async def loop() -> None:
        connection, listener = await asyncpg.connect(url), await asyncpg.connect(url)
        statement = await connection.prepare(CLAIM.replace("$3", "$1"))
        notified = asyncio.Event()
        await listener.add_listener("rows", lambda *_: notified.set())
        print("ready", flush=True)
        while True:
            await notified.wait()
            notified.clear()
            for row in await statement.fetch("t-"):
                if row[2] == b"end":
                    return
                print((time.monotonic_ns() - int(row[2])) / 1e6, flush=True)

    asyncio.run(loop())


def starts(url: str, pauses: list[float], answer: Callable[[], str]) -> list[float]:
    """Milliseconds from an insert to its claim in a process that runs `claim`, each after its pause."""

    async def loop() -> list[float]:
        connection = await asyncpg.connect(url)
        statement = await connection.prepare(INSERT)
        taken = []
        for pause in pauses:
            await asyncio.sleep(pause)
            sent = time.monotonic_ns()
            await statement.fetch([str(sent)], str(sent).encode(), sent)
            await connection.execute("NOTIFY rows")
            taken.append(float(answer()))
        await statement.fetch(["end"], b"end", 0)
        await connection.execute("NOTIFY rows")
        await connection.close()
        return taken

    return asyncio.run(loop())


async def old_snapshot(url: str) -> asyncpg.Connection:
    """A client that keeps a transaction open: vacuum may not remove rows newer than its snapshot."""
    connection = await asyncpg.connect(url)
    await connection.execute("BEGIN ISOLATION LEVEL REPEATABLE READ")
    await connection.fetch("SELECT 1")
    return connection


async def tidy_up(url: str) -> None:
    """Vacuum, analyse and checkpoint before anything is measured, as autovacuum would do later."""
    connection = await asyncpg.connect(url)
    await connection.execute("VACUUM ANALYZE")
    await connection.execute("CHECKPOINT")
    await connection.close()


async def _drain(url: str, jobs: int, payload: bytes, exchange: str) -> float:
    connection = await _filled(url, jobs, payload)
    began = time.perf_counter()
    await _exchanges(connection, exchange)
    took = time.perf_counter() - began
    await connection.close()
    return jobs / took


async def _exchanges(connection: asyncpg.Connection, exchange: str, until: float | None = None) -> list[float]:
    """Exchange until no job is left or until this time; the rates in each window."""
    statement = await connection.prepare(exchange)
    rates: list[float] = []
    ids: list[str] = []
    tokens: list[str] = []
    turn = done = 0
    mark = time.perf_counter()
    while True:
        turn += 1
        rows = await statement.fetch(ids, tokens, f"{turn:08x}-")
        done += len(ids)
        ids, tokens = [row[0] for row in rows], [row[1] for row in rows]
        now = time.perf_counter()
        if now - mark >= WINDOW:
            rates.append(done / (now - mark))
            mark, done = now, 0
        if not rows or (until is not None and now >= until):
            return rates


async def _connected(url: str) -> asyncpg.Connection:
    connection = await asyncpg.connect(url)
    await connection.execute(TABLE)
    return connection


async def _filled(url: str, jobs: int, payload: bytes) -> asyncpg.Connection:
    connection = await _connected(url)
    await _insert(connection, jobs // 1_000, 1_000, payload)
    await tidy_up(url)
    return connection


async def _insert(connection: asyncpg.Connection, calls: int, batch: int, payload: bytes, prefix: str = "") -> None:
    statement = await connection.prepare(INSERT)
    for call in range(calls):
        # As long as a ULID, and growing with time as ULIDs do.
        ids = [f"{prefix}{call:016d}{number:010d}" for number in range(batch)]
        await statement.fetch(ids, payload, time.time_ns() // 1_000)


PROGRAMS: dict[str, Callable[..., None]] = {"insert": insert, "claim": claim}

if __name__ == "__main__":
    PROGRAMS[sys.argv[1]](*sys.argv[2:])
