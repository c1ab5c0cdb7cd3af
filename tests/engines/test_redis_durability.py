"""The durability class of a Redis server: found at open, refused if it is too weak, checked again, with replicas."""

import logging
from collections.abc import Iterator
from typing import Any

import pytest
from eventually import eventually
from opened_engine import opened_engine
from proxy import Cut, Proxy, RedisWire
from redis_replicas import has_everything, start_replica
from redis_server import AOF_EVERYSEC, RedisServer, private_server

from holdfast import App, OutcomeUnknown
from holdfast.core.enqueue import write
from holdfast.engine import Engine
from holdfast.engines import open_engine
from holdfast.engines.redis.durability import CHECK_EVERY_US, ReplicasLate
from holdfast.errors import ConfigError
from holdfast.model.job import JobKey
from holdfast.model.produce import EnqueueStatus, Group, GroupAccepted
from holdfast.testing.contract.builders import QUEUE, new_job


@pytest.fixture(scope="module")
def server() -> Iterator[RedisServer]:
    """One that the tests of this file configure as they like."""
    with private_server(AOF_EVERYSEC) as private:
        yield private


@pytest.fixture(autouse=True)
def stock_settings(server: RedisServer) -> None:
    server.configure(
        appendonly="yes",
        appendfsync="everysec",
        no_appendfsync_on_rewrite="no",
        save="",
        maxmemory_policy="noeviction",
    )


def engine_at(server: RedisServer, **options: Any) -> Engine:
    return open_engine(server.url(), **options)


@pytest.mark.parametrize(
    ("settings", "durability", "promise"),
    [
        ({"appendfsync": "always"}, "durable", "durable (append-only file, synced before every reply)"),
        ({"appendfsync": "everysec"}, "fast", "fast (append-only file, synced once a second)"),
        ({"appendfsync": "no"}, "fast", "fast (append-only file, synced when the system does)"),
        (
            {"appendfsync": "always", "no_appendfsync_on_rewrite": "yes"},
            "fast",
            "fast (append-only file, not synced while it is rewritten: no-appendfsync-on-rewrite is yes)",
        ),
    ],
)
async def test_the_class_is_what_the_server_does(
    server: RedisServer, settings: dict[str, str], durability: str, promise: str
) -> None:
    server.configure(**settings)
    async with opened_engine(engine_at(server)) as engine:
        assert engine.found_durability == (durability, promise)


async def test_before_the_store_is_opened_the_class_is_that_of_the_settings_or_unknown(server: RedisServer) -> None:
    server.configure(appendonly="yes", appendfsync="everysec")
    app: App[Any] = App(server.url())
    assert app.durability == "unknown"
    assert app.engine.capabilities.durable  # a server of class none is refused
    assert app.engine.found_durability == ("unknown", "unknown (the store has not been opened)")
    async with app:
        assert app.durability == "fast"
    assert App[Any](server.url(), durability="none").durability == "none"


@pytest.mark.parametrize(
    ("save", "words"), [("", "no persistence"), ("900 1", "snapshots now and then, no append-only file")]
)
async def test_a_server_that_loses_jobs_is_refused_unless_the_user_asks_for_it(
    server: RedisServer, save: str, words: str
) -> None:
    server.configure(appendonly="no", save=save)
    with pytest.raises(ConfigError, match=r"appendonly yes.* wait until .*aof_rewrite_in_progress:0") as caught:
        await engine_at(server).open()
    assert words in str(caught.value)
    assert caught.value.key == "durability"
    async with opened_engine(engine_at(server, durability="none")) as engine:
        assert engine.found_durability == ("none", f"none ({words})")
        assert not engine.capabilities.durable


async def test_a_class_that_the_server_does_not_reach_is_refused(server: RedisServer) -> None:
    with pytest.raises(ConfigError, match="appendfsync always` and `no-appendfsync-on-rewrite no"):
        await engine_at(server, durability="durable").open()
    server.configure(appendfsync="always", no_appendfsync_on_rewrite="yes")
    with pytest.raises(ConfigError, match="no-appendfsync-on-rewrite is yes"):
        await engine_at(server, durability="durable").open()
    server.configure(appendonly="no")
    with pytest.raises(ConfigError, match=r"`appendonly yes`"):
        await engine_at(server, durability="fast").open()
    with pytest.raises(ConfigError, match="must be one of durable, fast, none"):
        engine_at(server, durability="strong")


async def test_a_weaker_class_than_the_server_has_is_accepted_and_the_real_one_is_shown(server: RedisServer) -> None:
    server.configure(appendfsync="always")
    async with opened_engine(engine_at(server, durability="fast")) as engine:
        assert engine.found_durability is not None
        assert engine.found_durability[0] == "durable"


# Services that forbid CONFIG


@pytest.fixture
def without_config(server: RedisServer) -> Iterator[str]:
    """The address with a user that may not use CONFIG."""
    server.execute("ACL", "SETUSER", "managed", "reset", "on", ">secret", "~*", "&*", "+@all", "-config")
    yield server.url(user="managed", password="secret")
    server.execute("ACL", "DELUSER", "managed")


async def test_where_config_is_forbidden_the_class_may_be_stated(without_config: str) -> None:
    async with opened_engine(open_engine(without_config, durability="durable")) as engine:
        assert engine.found_durability == ("durable", "durable (stated, not checked)")


async def test_where_config_is_forbidden_the_append_only_file_is_still_seen(
    server: RedisServer, without_config: str
) -> None:
    async with opened_engine(open_engine(without_config)) as engine:
        assert engine.found_durability is not None
        assert engine.found_durability[0] == "fast"
    server.configure(appendonly="no")
    with pytest.raises(ConfigError, match="no append-only file"):
        await open_engine(without_config).open()


async def test_where_nothing_can_be_read_the_class_must_be_stated(server: RedisServer, without_config: str) -> None:
    server.execute("ACL", "SETUSER", "managed", "-info")
    with pytest.raises(ConfigError, match="Set `durability` to what the service promises"):
        await open_engine(without_config).open()
    async with opened_engine(open_engine(without_config, durability="fast")) as engine:
        assert engine.found_durability == ("fast", "fast (stated, not checked)")


# Eviction


@pytest.mark.parametrize("policy", ["allkeys-lru", "volatile-ttl"])
async def test_a_server_that_evicts_keys_is_refused_unless_it_is_allowed(server: RedisServer, policy: str) -> None:
    server.configure(maxmemory_policy=policy)
    with pytest.raises(ConfigError, match=f"maxmemory-policy is {policy}") as caught:
        await engine_at(server).open()
    assert caught.value.key == "redis.allow_eviction"
    async with opened_engine(engine_at(server, allow_eviction=True)):
        pass


async def test_the_policy_is_seen_where_config_is_forbidden(server: RedisServer, without_config: str) -> None:
    server.configure(maxmemory_policy="allkeys-lfu")
    with pytest.raises(ConfigError, match="allkeys-lfu"):
        await open_engine(without_config, durability="fast").open()


async def test_a_change_of_the_server_is_logged_while_the_engine_runs(
    server: RedisServer, caplog: pytest.LogCaptureFixture
) -> None:
    async with opened_engine(engine_at(server)) as engine:
        await engine.prune()
        server.configure(maxmemory_policy="allkeys-lru", appendfsync="always")
        with caplog.at_level(logging.WARNING, logger="holdfast.redis"):
            await engine.prune()
            assert caplog.messages == []  # the last check is not old enough
            engine.clock_offset += CHECK_EVERY_US
            await engine.prune()
            assert "may delete jobs from now on: its maxmemory-policy was changed to allkeys-lru" in caplog.text
            assert "has changed from fast to durable" in caplog.text
            caplog.clear()
            server.configure(maxmemory_policy="noeviction", appendonly="no")
            engine.clock_offset += CHECK_EVERY_US
            await engine.prune()
        assert "has maxmemory-policy noeviction again" in caplog.text
        assert "has changed from durable to none" in caplog.text
        assert engine.found_durability == ("none", "none (no persistence)")


# Replicas


def engine_with_replica(server: RedisServer, namespace: str, replica_timeout_s: float) -> Engine:
    return open_engine(f"{server.url()}?replicas=1&replica_timeout={replica_timeout_s:g}", namespace=namespace)


async def test_a_write_waits_for_replicas_and_is_unknown_if_they_are_late(server: RedisServer) -> None:
    patient, hasty = (engine_with_replica(server, "replicas", limit_s) for limit_s in (60, 0.2))
    with start_replica(server) as replica:
        await eventually(lambda: has_everything(replica, server), "the replica")
        async with opened_engine(patient), opened_engine(hasty):
            assert patient.found_durability is not None
            assert "every write waits for 1 replica" in patient.found_durability[1]
            await patient.enqueue(Group((new_job("in time"),)))
            replica.freeze()
            try:
                with pytest.raises(ReplicasLate) as caught:
                    await hasty.enqueue(Group((new_job("late"),)))
                records = await hasty.get(JobKey(QUEUE, "late"))  # reading waits for no replica
            finally:
                replica.thaw()
            assert records.jobs[0] is not None
            assert "0 of 1 replicas confirmed it within 0.2 s" in str(caught.value)
            assert (caught.value.verb, caught.value.job_ids) == ("enqueue", ("late",))
            await patient.enqueue(Group((new_job("after"),)))


async def test_a_repeated_call_waits_for_replicas_on_a_new_connection_too(server: RedisServer) -> None:
    patient, hasty = (engine_with_replica(server, "repeated", limit_s) for limit_s in (60, 0.2))
    with start_replica(server) as replica:
        await eventually(lambda: has_everything(replica, server), "the replica")
        async with opened_engine(patient), opened_engine(hasty):
            replica.freeze()
            try:
                for _ in range(2):
                    with pytest.raises(ReplicasLate):
                        await hasty.enqueue(Group((new_job("late"),)))
                    server.kill_clients("normal")
            finally:
                replica.thaw()
            repeated = (await patient.enqueue(Group((new_job("late"),)))).groups[0]
            assert isinstance(repeated, GroupAccepted)
            assert repeated.jobs[0].status is EnqueueStatus.DUPLICATE


async def test_a_lost_reply_is_not_looked_up_if_replicas_must_confirm_the_write(server: RedisServer) -> None:
    with Proxy(server.port, RedisWire) as proxy, start_replica(server) as replica:
        await eventually(lambda: has_everything(replica, server), "the replica")
        url = f"{server.url(port=proxy.port)}?replicas=1"
        async with opened_engine(open_engine(url, namespace="lost")) as engine:
            await write(engine, Group((new_job("first"),)))
            proxy.cut_at(Cut.BEFORE_REPLY)
            with pytest.raises(OutcomeUnknown, match="Repeat the call") as caught:
                await write(engine, Group((new_job("second"),)))
            assert caught.value.job_ids == ("second",)


def test_the_caller_of_a_task_hears_that_replicas_are_late(server: RedisServer) -> None:
    url = f"{server.url()}?replicas=1&replica_timeout=0.05"
    with App[Any](url, namespace="late") as jobs:

        @jobs.task
        def work() -> None: ...

        with pytest.raises(OutcomeUnknown, match="0 of 1 replicas"):
            work.enqueue()


async def test_replicas_make_a_server_without_a_file_fast(server: RedisServer) -> None:
    server.configure(appendonly="no")
    async with opened_engine(engine_at(server, replicas=1)) as engine:
        assert engine.found_durability == ("fast", "fast (no persistence; every write waits for 1 replica)")
