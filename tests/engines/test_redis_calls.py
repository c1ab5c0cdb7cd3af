"""Commands and answers of the Redis engine as bytes: what may be left to the general way, and what may not."""

import typing
from collections.abc import Iterator
from typing import Any

import msgspec
import pytest
from every_verb import ONE_OF_EACH
from msgspec import Struct

from holdfast.engines.redis import answers
from holdfast.engines.redis.calls import READ_VERBS, encode, verb_of
from holdfast.model import observe, operate, produce, work
from holdfast.model.command import Answer, Command
from holdfast.model.hashing import key_hash
from holdfast.model.job import JobRecord
from holdfast.model.produce import Enqueue, Group, NewJob, PoolPlace
from holdfast.model.work import Lease

COMMANDS: list[type[Command[Any]]] = [
    value
    for module in (produce, work, operate, observe)
    for value in vars(module).values()
    if isinstance(value, type) and issubclass(value, Command) and value is not Command and value is not observe.Audit
]


def types_in(of_type: Any, seen: set[Any]) -> Iterator[tuple[Any, bool]]:
    """Every type that a value of this type may contain, and whether it is an optional field without a default."""
    for part in typing.get_args(of_type):
        yield from types_in(part, seen)
    if isinstance(of_type, type) and issubclass(of_type, Struct) and of_type not in seen:
        seen.add(of_type)
        if of_type not in (JobRecord, Lease):
            for field in msgspec.structs.fields(of_type):
                has_none = type(None) in typing.get_args(field.type)
                yield field.type, has_none and field.required
                yield from types_in(field.type, seen)
    yield typing.get_origin(of_type) or of_type, False


def answer_of(command: type[Command[Any]]) -> type[Answer]:
    return typing.get_args(command.__orig_bases__[0])[0]  # type: ignore[attr-defined, no-any-return]


@pytest.mark.parametrize("command", COMMANDS, ids=lambda command: command.__name__)
def test_an_answer_that_is_read_by_its_class_has_nothing_that_lua_cannot_send(command: type[Command[Any]]) -> None:
    """Byte strings and records are sent apart, an empty map looks like a list, and None is left out."""
    found = list(types_in(answer_of(command), set()))
    special = {kind for kind, _ in found} & {bytes, dict, JobRecord, Lease}
    none_without_default = any(missing for _, missing in found)
    assert not (special or none_without_default) or command in answers._DECODERS


@pytest.mark.parametrize("command", ONE_OF_EACH, ids=lambda command: type(command).__name__)
def test_a_command_is_sent_without_byte_strings_inside(command: Command[Any]) -> None:
    verb, packed, *_ = encode(command)
    assert verb == verb_of(type(command)).encode()
    assert not any(isinstance(value, bytes) for value in values_in(msgspec.msgpack.decode(packed)))


def values_in(value: Any) -> Iterator[Any]:
    yield value
    parts = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    for part in parts:
        yield from values_in(part)


def test_byte_strings_are_numbered_as_the_script_counts_them() -> None:
    job = NewJob(queue="q", id="a", payload=b"p" * 9_000, payload_hash=b"hash", metadata={"k": "v"})
    argv = [*encode(Enqueue(groups=(Group((job, job)),)))]
    argv.insert(1, b"options")  # as `Primary` does
    (group,) = msgspec.msgpack.decode(argv[2])["groups"]
    for sent in group["jobs"]:
        assert argv[sent["payload"] - 1] == b"p" * 9_000  # Lua counts from 1
        assert argv[sent["payload_hash"] - 1] == b"hash"
        assert argv[sent["tail"] - 1].endswith(b"\xa1k\xa1v")


def test_the_hash_of_a_pool_key_is_sent_in_two_halves() -> None:
    job = NewJob(queue="q", id="a", pool=PoolPlace(lanes=4, key="customer"))
    (group,) = msgspec.msgpack.decode(encode(Enqueue(groups=(Group((job,)),)))[1])["groups"]
    (sent,) = group["jobs"]
    assert sent["pool_hash_hi"] * 2**32 + sent["pool_hash_lo"] == key_hash("customer")


def test_verbs_that_only_read_may_be_sent_again() -> None:
    assert {b"get", b"stats", b"expired", b"now"} <= READ_VERBS
    assert not {b"enqueue", b"exchange", b"renew", b"heartbeat", b"prune"} & READ_VERBS
