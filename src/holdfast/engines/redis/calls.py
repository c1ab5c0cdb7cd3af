"""Commands become the arguments of a call; `answers.py` reads the reply.

A command goes out as a msgpack map with the fields of its class, by name, because the rules read names. A field that is
None is left out. Every byte string is an argument of its own, and the map has its number: the msgpack of Redis does not
know byte strings. In the arguments the verb is the first, the options are the second (`Primary` adds them), the command
is the third, so the byte strings begin with the fourth.

A reply is a list: `[wall, lease, born, tip, answer]` as msgpack, then byte strings. A job or a lease in the answer is
the number of its byte string, the record as it is stored (`records.py`).

What occurs for every job is written by hand here: enqueue, exchange, renew, get. Everything else is converted field by
field.
"""

import re
from collections.abc import Callable
from functools import cache
from typing import Any
from zlib import crc32

import msgspec
from msgspec import Struct

from holdfast.engines.redis import records
from holdfast.model.command import Command
from holdfast.model.hashing import key_hash
from holdfast.model.job import NOTHING_GIVEN
from holdfast.model.observe import Get
from holdfast.model.produce import Enqueue, NewJob
from holdfast.model.reads import READS
from holdfast.model.states import JobState
from holdfast.model.work import Claim, Exchange, Expired, Renew, Settlement

encode_map: Callable[[Any], bytes] = msgspec.msgpack.Encoder().encode


@cache
def verb_of(command: type[Command[Any]]) -> str:
    return re.sub("(?<!^)([A-Z])", r"_\1", command.__name__).lower()


READ_VERBS = frozenset(verb_of(command).encode() for command in READS) | {b"open"}
"""Verbs that may be repeated."""


# Commands


def encode(command: Command[Any]) -> list[bytes]:
    """Verb, command and byte strings."""
    hand_written = _ENCODERS.get(type(command))
    if hand_written is not None:
        return hand_written(command)
    argv = [verb_of(type(command)).encode(), b""]
    argv[1] = encode_map(_plain(command, argv))
    return argv


def _plain(value: Any, argv: list[bytes]) -> Any:
    """A value as msgpack of Redis can read it. Byte strings go to `argv`."""
    match value:
        case bytes():
            argv.append(value)
            return len(argv) + 1
        case Struct():
            return _fields(value, argv)
        case tuple() | list():
            return [_plain(one, argv) for one in value]
        case dict():
            return {name: _plain(one, argv) for name, one in value.items()}
        case _:
            return value


def _fields(value: Struct, argv: list[bytes]) -> dict[str, Any]:
    """The fields of a value by name, also of one that is stored by position; without those that are None."""
    found = {}
    for name in value.__struct_fields__:
        one = getattr(value, name)
        if one is not None:
            found[name] = one if type(one) in _SIMPLE else _plain(one, argv)
    return found


_SIMPLE = frozenset({str, int, bool, float})


def _expired(command: Expired) -> list[bytes]:
    """With the number that decides where this reaper begins: the server cannot compute it (T7)."""
    fields = _fields(command, [])
    return [b"expired", encode_map({**fields, "worker_crc": crc32(command.worker.encode())})]


def _enqueue(command: Enqueue) -> list[bytes]:
    argv = [b"enqueue", b""]
    groups = []
    for group in command.groups:
        jobs = [_new_job(job, argv) for job in group.jobs]
        groups.append({"jobs": jobs, "limits": [_fields(limit, argv) for limit in group.limits]})
    argv[1] = encode_map({"groups": groups})
    return argv


def _new_job(job: NewJob, argv: list[bytes]) -> dict[str, Any]:
    tail, payload = records.pack_tail(job)
    argv.append(tail)
    fields: dict[str, Any] = {
        "queue": job.queue,
        "id": job.id,
        "task": job.task,
        "codec": job.codec,
        "tail": len(argv) + 1,
        "priority": job.priority,
        "delay": job.delay,
        "fresh_id": job.fresh_id,
    }
    if payload is not None:
        argv.append(payload)
        fields["payload"] = len(argv) + 1
    if job.payload_hash:
        argv.append(job.payload_hash)
        fields["payload_hash"] = len(argv) + 1
    if job.due is not None:
        fields["due"] = job.due
    if job.expires is not None:
        fields["expires"] = job.expires
    if job.lane is not None:
        fields["lane"] = job.lane
    if job.pool is not None:
        _add_pool(job, fields)
    if job.unique_key is not None:
        fields["unique_key"] = job.unique_key
    if job.key_scope is not None:
        fields["key_scope"] = job.key_scope
    if job.key_window:
        fields["key_window"] = job.key_window
    if job.parents:
        fields["parents"] = [_fields(parent, argv) for parent in job.parents]
    if job.reply is not None:
        fields["reply"] = job.reply
    if job.given is not NOTHING_GIVEN and job.given != NOTHING_GIVEN:
        fields["given"] = _fields(job.given, argv)
    return fields


def _add_pool(job: NewJob, fields: dict[str, Any]) -> None:
    """With the hash of the pool's key, in two halves: Lua has no such hash function, and no 64-bit numbers."""
    assert job.pool is not None
    if job.pool.key is None:
        fields["pool"] = {"lanes": job.pool.lanes}
        return
    fields["pool"] = {"lanes": job.pool.lanes, "key": job.pool.key}
    fields["pool_hash_hi"], fields["pool_hash_lo"] = divmod(key_hash(job.pool.key), 1 << 32)


def _exchange(command: Exchange) -> list[bytes]:
    argv = [b"exchange", b""]
    fields: dict[str, Any] = {
        "settlements": [_settlement(settlement, argv) for settlement in command.settlements],
        "starts": [{"queue": start.queue, "id": start.id, "token": start.token} for start in command.starts],
    }
    if command.claim is not None:
        fields["claim"] = _claim(command.claim)
    argv[1] = encode_map(fields)
    return argv


def _settlement(settlement: Settlement, argv: list[bytes]) -> dict[str, Any]:
    if settlement.target is not JobState.SUCCEEDED:
        return _fields(settlement, argv)
    fields: dict[str, Any] = {
        "queue": settlement.queue,
        "id": settlement.id,
        "token": settlement.token,
        "target": "succeeded",
        "note": settlement.note,
        "delay": 0,
        "refund": settlement.refund,
    }
    if settlement.result is not None:
        argv.append(settlement.result)
        fields["result"] = len(argv) + 1
    if settlement.result_ttl is not None:
        fields["result_ttl"] = settlement.result_ttl
    if settlement.retention is not None:
        fields["retention"] = settlement.retention
    if settlement.progress is not None:
        fields["progress"] = _fields(settlement.progress, argv)
    if settlement.lane is not None:
        fields["lane"] = settlement.lane
    if settlement.reason is not None:
        fields["reason"] = settlement.reason
    if settlement.listed_expiry is not None:
        fields["listed_expiry"] = settlement.listed_expiry
    return fields


def _claim(claim: Claim) -> dict[str, Any]:
    return _fields(claim, [])


def _renew(command: Renew) -> list[bytes]:
    jobs: list[dict[str, Any]] = []
    for renewal in command.jobs:
        fields: dict[str, Any] = {"queue": renewal.queue, "id": renewal.id, "token": renewal.token}
        if renewal.progress is not None:
            fields["progress"] = _fields(renewal.progress, [])
        jobs.append(fields)
    return [b"renew", encode_map({"jobs": jobs})]


def _get(command: Get) -> list[bytes]:
    return [b"get", encode_map({"jobs": [{"queue": job.queue, "id": job.id} for job in command.jobs]})]


_ENCODERS: dict[type[Command[Any]], Callable[[Any], list[bytes]]] = {
    Enqueue: _enqueue,
    Exchange: _exchange,
    Renew: _renew,
    Get: _get,
    Expired: _expired,
}
