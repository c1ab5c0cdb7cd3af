"""The record of a job, from Python to Lua and back, without a difference."""

import string
from pathlib import Path
from typing import Any

import msgspec
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.strategies import SearchStrategy
from redis_server import RedisServer

import holdfast.engines.redis
from holdfast.engines.redis.records import pack_tail, unpack_job, unpack_lease
from holdfast.model.instants import FOREVER
from holdfast.model.job import (
    AttemptOutcome,
    AttemptRecord,
    Given,
    JobRecord,
    KeyScope,
    ProgressRecord,
)
from holdfast.model.produce import NewJob
from holdfast.model.states import Hold, JobState, Reason
from holdfast.model.text import ErrorInfo
from holdfast.model.work import lease_of

LUA = Path(holdfast.engines.redis.__file__).parent / "lua"
SCRIPT = (
    "".join((LUA / name).read_text() for name in ("layout.lua", "runtime.lua", "records.lua"))
    + """
local job = cmsgpack.unpack(ARGV[1])
job.tail, job.payload_hash = ARGV[2], ARGV[3]
if ARGV[4] ~= '-' then job.result = string.sub(ARGV[4], 2) end
if ARGV[5] ~= '-' then job.payload_apart = true end
if job.pool_key then rt.know_key(job.pool_key, job.pool_hash_hi, job.pool_hash_lo) end
local first = records.pack(job)
local read = records.unpack(first, job.queue, job.id)
local second = records.pack(read)
if #first ~= #second then return redis.error_reply('packed again it differs') end
for name, value in pairs(job) do
  if type(value) ~= 'table' and read[name] ~= value then return redis.error_reply(name .. ' differs') end
end
local count = 0
for _ in pairs(records.metadata(read)) do count = count + 1 end
return { records.blob(second, ARGV[5] ~= '-' and string.sub(ARGV[5], 2) or nil, job.queue, job.id), count }
"""
)

NUMBERS = st.integers(0, 300) | st.integers(0, 2**53) | st.just(FOREVER)
INSTANTS = st.integers(1_600_000_000_000_000, 1_900_000_000_000_000) | NUMBERS | st.just(2**53)
NAMES = st.text(string.ascii_letters + "é:{}% ü", min_size=1, max_size=12) | st.just("n" * 300)
TEXTS = st.just("") | NAMES
BYTES = st.binary(max_size=20) | st.just(b"\0" * 300)


def optional(values: SearchStrategy[Any]) -> SearchStrategy[Any]:
    return st.none() | values


ERRORS = st.builds(ErrorInfo, TEXTS, TEXTS, TEXTS)
ATTEMPTS = st.builds(
    AttemptRecord, NUMBERS, NUMBERS, TEXTS, INSTANTS, INSTANTS, st.sampled_from(AttemptOutcome), optional(ERRORS)
)
JOBS = st.builds(
    JobRecord,
    queue=NAMES,
    id=NAMES,
    task=TEXTS,
    payload=BYTES | st.just(b"p" * 9_000),
    codec=st.sampled_from(["json", "msgpack", "other"]),
    metadata=st.dictionaries(NAMES, TEXTS, max_size=3),
    payload_hash=st.binary(max_size=32),
    priority=st.integers(-32_768, 32_767),
    lane=optional(NAMES),
    unique_key=optional(NAMES),
    key_scope=st.sampled_from(KeyScope),
    key_window=NUMBERS,
    expires=optional(INSTANTS | st.integers(-(2**53), 0)),
    reply=st.lists(NAMES, max_size=2).map(tuple),
    given=st.builds(Given, *[optional(NUMBERS)] * 6),
    state=st.sampled_from(JobState),
    hold=st.integers(0, 31).map(Hold),
    generation=NUMBERS,
    arrival=st.integers(0, 2**48 - 1),
    created=INSTANTS,
    due=INSTANTS,
    parents_left=NUMBERS,
    attempt=NUMBERS,
    losses=NUMBERS,
    owner=TEXTS,
    token=optional(NAMES),
    fence=INSTANTS,
    lease_expires=optional(INSTANTS),
    lease_len=NUMBERS,
    max_attempts=NUMBERS,
    max_losses=NUMBERS,
    started=optional(INSTANTS),
    last_started=optional(INSTANTS),
    progress=optional(st.builds(ProgressRecord, st.floats(0, 1), TEXTS)),
    cancel_asked=st.booleans(),
    cancel_note=TEXTS,
    settled_token=optional(NAMES),
    finished=optional(INSTANTS),
    reason=optional(st.sampled_from(Reason)),
    note=TEXTS,
    result=optional(BYTES),
    last_error=optional(ERRORS),
    history=st.lists(ATTEMPTS, max_size=2).map(tuple),
    visible_until=INSTANTS,
    result_until=INSTANTS,
    key_until=INSTANTS,
    epoch=NUMBERS,
    pool_key=optional(NAMES),
    reaped_token=optional(NAMES),
    loss_error=optional(ERRORS),
)
PLAIN = st.builds(
    JobRecord,
    queue=NAMES,
    id=NAMES,
    task=TEXTS,
    payload=BYTES | st.just(b"p" * 9_000),
    metadata=st.dictionaries(NAMES, TEXTS, max_size=2),
    lane=optional(NAMES),
    state=st.sampled_from([JobState.RUNNING, JobState.ASSIGNED]),
    generation=st.integers(0, 300),
    arrival=st.integers(1, 2**48 - 1),
    created=INSTANTS,
    due=INSTANTS,
    attempt=st.integers(1, 70_000),
    owner=NAMES,
    token=NAMES,
    fence=INSTANTS,
    lease_expires=INSTANTS,
    lease_len=NUMBERS,
    max_attempts=NUMBERS,
    max_losses=NUMBERS,
    started=optional(INSTANTS),
    settled_token=optional(NAMES),
)
"""Jobs of the shape that a lease is read from without a `JobRecord`."""


def lua_table(value: Any) -> Any:
    """A value as the rules have it: structs by field name, None left out."""
    if isinstance(value, msgspec.Struct):
        return {
            name: lua_table(getattr(value, name))
            for name in value.__struct_fields__
            if getattr(value, name) is not None and not isinstance(getattr(value, name), bytes)
        }
    if isinstance(value, tuple):
        return [lua_table(part) for part in value]
    return value


def through_lua(redis_server: RedisServer, job: JobRecord) -> tuple[bytes, int]:
    tail, apart = pack_tail(NewJob(queue=job.queue, id=job.id, payload=job.payload, metadata=job.metadata))
    table = lua_table(job)
    del table["metadata"]
    if job.pool_key is not None:
        table |= {"pool_hash_hi": 2**32 - 1, "pool_hash_lo": 7}
    result = b"-" if job.result is None else b"+" + job.result
    payload = b"-" if apart is None else b"+" + apart
    packed = msgspec.msgpack.encode(table)
    blob, count = redis_server.execute("EVAL", SCRIPT, 0, packed, tail, job.payload_hash, result, payload)
    return blob, count


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(job=JOBS)
def test_a_record_keeps_every_field(redis_server: RedisServer, job: JobRecord) -> None:
    blob, count = through_lua(redis_server, job)
    assert unpack_job(blob) == job
    assert count == len(job.metadata)


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(job=PLAIN)
def test_a_lease_is_the_record_of_its_job(redis_server: RedisServer, job: JobRecord) -> None:
    blob, _ = through_lua(redis_server, job)
    assert unpack_lease(blob) == lease_of(job)
