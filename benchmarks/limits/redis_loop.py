"""The bare Redis loops: two small scripts, one connection of redis-py with hiredis, batches of 100.

A job is a hash of its own, as queue libraries for Redis store it: task, payload, state, due time and, while it is
claimed, a token. A sorted set has the ready ids by arrival. Hashes of ended jobs are kept, as the rows of the bare
PostgreSQL loop are. There is no handler. Each turn is one call of a script.

One of them is a program, because it takes two processes: `claim` waits for notifications.
"""

import asyncio
import sys
import time
from collections.abc import Awaitable, Callable
from typing import Any

from redis.asyncio import Redis
from redis.commands.core import AsyncScript

BATCH = 100
KEYS = ("bare:ready", "bare:arrival", "bare:job:")

INSERT = """
-- ARGV: the time, then id and payload of each job
local ready = {}
for i = 2, #ARGV, 2 do
    local arrival = redis.call("INCR", KEYS[2])
    redis.call("HSET", KEYS[3] .. ARGV[i], "task", "t", "payload", ARGV[i + 1], "state", 0, "due", ARGV[1])
    ready[#ready + 1] = arrival
    ready[#ready + 1] = ARGV[i]
end
redis.call("ZADD", KEYS[1], unpack(ready))
"""
INSERT_AND_NOTIFY = f"{INSERT}redis.call('PUBLISH', KEYS[1], '')"
EXCHANGE = """
-- Complete and claim. ARGV: the turn, then id and token of each job that has ended
for i = 2, #ARGV, 2 do
    local job = KEYS[3] .. ARGV[i]
    if redis.call("HGET", job, "token") == ARGV[i + 1] then
        redis.call("HSET", job, "state", 2)
        redis.call("HDEL", job, "token")
    end
end
local claimed = redis.call("ZRANGE", KEYS[1], 0, 99)
if #claimed == 0 then
    return {}
end
redis.call("ZREM", KEYS[1], unpack(claimed))
local answer = {}
for i = 1, #claimed do
    local job, token = KEYS[3] .. claimed[i], ARGV[1] .. "-" .. i
    redis.call("HSET", job, "state", 1, "token", token)
    answer[#answer + 1] = claimed[i]
    answer[#answer + 1] = token
    answer[#answer + 1] = redis.call("HGET", job, "payload")
end
return answer
"""


def drain(url: str, jobs: int, payload: bytes) -> float:
    """Jobs per second: each turn marks the last hundred as done and claims the next. Payloads are kept."""
    return asyncio.run(_drain(url, jobs, payload))


def inserts(url: str, calls: int, batch: int, payload: bytes) -> float:
    """Jobs per second in batches of this size, each awaited."""

    async def loop() -> float:
        client: Redis = Redis.from_url(url)
        script = client.register_script(INSERT)
        await _insert(script, 1, batch, payload, "first")
        began = time.perf_counter()
        await _insert(script, calls, batch, payload)
        took = time.perf_counter() - began
        await client.aclose()
        return calls * batch / took

    return asyncio.run(loop())


def claim(url: str) -> None:
    """Claims a job at each notification, and prints how long after the insert, in milliseconds."""

    async def loop() -> None:
        client: Redis = Redis.from_url(url)
        script = client.register_script(EXCHANGE)
        async with client.pubsub() as notifications:
            await notifications.subscribe(KEYS[0])
            print("ready", flush=True)
            turn = 0
            async for _ in notifications.listen():
                turn += 1
                answer = await _call(script, [turn])
                for payload in answer[2::3]:
                    if payload == b"end":
                        return
                    print((time.monotonic_ns() - int(payload)) / 1e6, flush=True)

    asyncio.run(loop())


def starts(url: str, pauses: list[float], answer: Callable[[], str]) -> list[float]:
    """Milliseconds from an insert to its claim in a process that runs `claim`, each after its pause."""

    async def loop() -> list[float]:
        client: Redis = Redis.from_url(url)
        script = client.register_script(INSERT_AND_NOTIFY)
        taken = []
        for pause in pauses:
            await asyncio.sleep(pause)
            sent = time.monotonic_ns()
            await _call(script, [sent, str(sent), str(sent)])
            taken.append(float(answer()))
        await _call(script, [0, "end", b"end"])
        await client.aclose()
        return taken

    return asyncio.run(loop())


async def _drain(url: str, jobs: int, payload: bytes) -> float:
    client: Redis = Redis.from_url(url)
    await _insert(client.register_script(INSERT), jobs // 1_000, 1_000, payload)
    script = client.register_script(EXCHANGE)
    done: list[Any] = []
    turn = 0
    began = time.perf_counter()
    while True:
        turn += 1
        answer = await _call(script, [turn, *done])
        if not answer:
            break
        done = [value for place in range(0, len(answer), 3) for value in answer[place : place + 2]]
    took = time.perf_counter() - began
    await client.aclose()
    return jobs / took


async def _insert(script: AsyncScript, calls: int, batch: int, payload: bytes, prefix: str = "") -> None:
    for call in range(calls):
        # As long as a ULID, and growing with time as ULIDs do.
        values: list[Any] = [time.time_ns() // 1_000]
        for number in range(batch):
            values += (f"{prefix}{call:016d}{number:010d}", payload)
        await _call(script, values)


def _call(script: AsyncScript, values: list[Any]) -> Awaitable[Any]:
    return script(keys=KEYS, args=values)


PROGRAMS: dict[str, Callable[..., None]] = {"claim": claim}

if __name__ == "__main__":
    PROGRAMS[sys.argv[1]](*sys.argv[2:])
