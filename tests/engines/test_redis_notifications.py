"""Notifications by publish and subscribe, and the feed, when connections end or the server does not answer."""

import asyncio
import errno
import logging
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from eventually import eventually
from redis_server import AOF_ALWAYS, RedisServer, private_server

from holdfast.engine import Subscription
from holdfast.engines.feed_channels import MAX_PENDING_MESSAGES
from holdfast.engines.redis import subscriber
from holdfast.engines.redis.connect import RedisConnector, parse
from holdfast.engines.redis.feed import PubSubFeed
from holdfast.engines.redis.notifier import ChannelNotifier
from holdfast.engines.redis.routes import OnePrimary
from holdfast.engines.topics import Topics
from holdfast.errors import EngineUnavailable
from holdfast.runtime import SystemRuntime

PREFIX = "n:0:"
RUNTIME = SystemRuntime()


class Process:
    """What one process has: a notifier and its local subscriptions."""

    def __init__(self, url: str) -> None:
        connector = RedisConnector(parse(url)[0], timeout_s=30, connect_timeout_s=5)
        self.topics = Topics()
        self.notifier = ChannelNotifier(OnePrimary(connector, PREFIX), self.topics, RUNTIME)
        self.notifier.wait_ready()

    def subscribe(self, *topics: str) -> Subscription:
        subscription = self.topics.subscribe(*topics)
        self.notifier.subscribe(topics)
        return subscription


@pytest.fixture(scope="module")
def private() -> Iterator[RedisServer]:
    """A server whose clients the tests may end."""
    with private_server({"save": "", "appendonly": "no"}) as server:
        yield server


@pytest.fixture
def start(private: RedisServer) -> Iterator[Callable[[], Process]]:
    started: list[Process] = []

    def start() -> Process:
        started.append(Process(private.url()))
        return started[-1]

    yield start
    for process in started:
        process.notifier.close()


Start = Callable[[], Process]


# N7
@pytest.mark.usefixtures("confirmed_subscriptions")
async def test_a_topic_reaches_those_who_subscribe_to_it_and_no_others(private: RedisServer, start: Start) -> None:
    one, other = start(), start()
    with one.subscribe("queue:a", "room:a") as received, other.subscribe("queue:b") as not_received:
        assert private.execute("PUBLISH", f"{PREFIX}queue:a", "") == 1
        assert await received.wait(30) == {"queue:a"}
        private.execute("PUBLISH", f"{PREFIX}queue:b", "")
        assert await not_received.wait(30) == {"queue:b"}


@pytest.mark.usefixtures("confirmed_subscriptions")
async def test_a_subscription_is_in_force_when_the_call_returns(private: RedisServer, start: Start) -> None:
    process = start()
    for number in range(50):
        with process.subscribe(f"reply:{number}") as subscription:
            assert private.execute("PUBLISH", f"{PREFIX}reply:{number}", "") == 1
            assert await subscription.wait(30) == {f"reply:{number}"}


# N1
async def test_what_is_sent_before_a_late_subscription_is_notified(private: RedisServer, start: Start) -> None:
    """The call goes on after a limited wait."""
    process, may_go_on = start(), threading.Event()
    process.notifier._on_loop(lambda: may_go_on.wait(60))
    try:
        with process.subscribe("queue:a") as subscription:
            private.execute("PUBLISH", f"{PREFIX}queue:a", "")
            may_go_on.set()
            assert await subscription.wait(30) == {"queue:a"}
            await eventually(lambda: not process.notifier._waiters)
    finally:
        may_go_on.set()


# N1
async def test_a_late_subscription_does_not_wait_for_a_topic_that_is_dropped_meanwhile(start: Start) -> None:
    """Else the other topics are not notified, and it stays in the list for ever."""
    process, may_go_on = start(), threading.Event()
    process.notifier._on_loop(lambda: may_go_on.wait(60))
    try:
        with process.topics.subscribe("queue:a") as kept:
            with process.topics.subscribe("reply:1"):
                process.notifier.subscribe_again()
            may_go_on.set()
            assert await kept.wait(30) == {"queue:a"}
            await eventually(lambda: not process.notifier._waiters)
    finally:
        may_go_on.set()


async def test_a_topic_that_is_dropped_and_wanted_again_at_once_is_confirmed(start: Start) -> None:
    """Else every later subscription to it would wait for the whole time limit."""
    process = start()
    first = process.subscribe("queue:a")
    second: list[Subscription] = []

    def subscribe_again() -> None:
        first.close()
        process.notifier._route()
        second.append(process.topics.subscribe("queue:a"))
        process.notifier._route()

    process.notifier._on_loop(subscribe_again)
    await eventually(lambda: second)
    await eventually(lambda: f"{PREFIX}queue:a" in process.notifier._confirmed)


@pytest.mark.usefixtures("confirmed_subscriptions")
async def test_a_topic_without_a_subscription_is_dropped(private: RedisServer, start: Start) -> None:
    process = start()
    process.subscribe("queue:a").close()
    with process.subscribe("queue:b"):
        await eventually(lambda: private.execute("PUBSUB", "NUMSUB", f"{PREFIX}queue:a")[1] == 0)
        assert private.execute("PUBSUB", "NUMSUB", f"{PREFIX}queue:b")[1] == 1
        with process.subscribe("queue:a"):
            assert private.execute("PUBSUB", "NUMSUB", f"{PREFIX}queue:a")[1] == 1


# N7
@pytest.mark.usefixtures("confirmed_subscriptions")
async def test_a_notifier_whose_connection_is_ended_receives_again(
    private: RedisServer, start: Start, caplog: pytest.LogCaptureFixture
) -> None:
    process = start()
    with caplog.at_level(logging.WARNING), process.subscribe("queue:a") as subscription:
        for _ in range(3):
            assert private.kill_clients("pubsub") == 1
            assert await subscription.wait(30)  # after the reconnect, because notifications may have been lost
            private.execute("PUBLISH", f"{PREFIX}queue:a", "")
            assert await subscription.wait(30) == {"queue:a"}
        assert process.notifier.receives
    assert not caplog.records


@pytest.mark.usefixtures("confirmed_subscriptions")
async def test_a_notifier_receives_again_after_a_restart_of_the_server(private: RedisServer, start: Start) -> None:
    process = start()
    with process.subscribe("queue:a") as subscription:
        private.kill()
        await eventually(lambda: not process.notifier.receives)
        private.start()
        assert await subscription.wait(30)
        private.execute("PUBLISH", f"{PREFIX}queue:a", "")
        assert await subscription.wait(30) == {"queue:a"}
        assert process.notifier.receives


# PF1
async def test_a_server_that_does_not_answer_is_noticed_and_found_again(
    private: RedisServer, start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(subscriber, "PROBE_INTERVAL_S", 0.1)
    monkeypatch.setattr(subscriber, "REPLY_TIMEOUT_S", 0.2)
    process = start()
    with process.subscribe("queue:a") as subscription:
        private.freeze()
        try:
            await eventually(lambda: not process.notifier.receives)
            began_s = time.monotonic()
            with process.subscribe("queue:b"):
                assert time.monotonic() - began_s < 5  # it does not wait for the server
        finally:
            private.thaw()
        assert await subscription.wait(30)
        await eventually(lambda: process.notifier.receives)


# PF1
async def test_closing_does_not_wait_for_a_server_that_does_not_answer(private: RedisServer, start: Start) -> None:
    process = start()
    private.freeze()
    try:
        process.notifier.feed.publish(b"never sent")
        began_s = time.monotonic()
        process.notifier.close()
        assert time.monotonic() - began_s < 10
        assert not process.notifier._thread.is_alive()
    finally:
        private.thaw()


async def test_pauses_between_reconnects_are_short_and_differ(
    private: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    pauses_s: list[float] = []

    async def pause(one: subscriber.Subscriber, seconds: float) -> None:
        pauses_s.append(seconds)
        await asyncio.sleep(0.001)

    monkeypatch.setattr(subscriber.Subscriber, "_pause", pause)
    process = Process(f"redis://127.0.0.1:{private.port}/0")  # without the password
    await eventually(lambda: len(pauses_s) > 12)
    assert not process.notifier.receives
    process.notifier.close()
    assert min(pauses_s[6:12]) >= 0.125
    assert max(pauses_s[:12]) <= 0.25
    assert len(set(pauses_s[6:12])) > 1


# PF1
def test_a_notifier_that_cannot_start_is_an_error_and_no_endless_wait(
    private: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse() -> None:
        raise OSError(errno.EMFILE, "Too many open files")

    monkeypatch.setattr("holdfast.engines.notifier_thread.asyncio.Runner", refuse)
    with pytest.raises(EngineUnavailable, match=r"could not start.*Too many open files"):
        Process(private.url())


async def test_a_user_who_may_not_subscribe_polls_and_is_warned_once(
    private: RedisServer, caplog: pytest.LogCaptureFixture
) -> None:
    private.execute("ACL", "SETUSER", "poor", "on", ">secret", "~*", "+@all", "resetchannels")
    process = Process(private.url(user="poor", password="secret"))
    try:
        assert not process.notifier.receives
        with process.subscribe("queue:a"):
            await eventually(lambda: caplog.records)
        (record,) = (record for record in caplog.records if record.levelno == logging.WARNING)
        assert "may not subscribe" in record.message
        assert "secret" not in record.message
    finally:
        process.notifier.close()
        private.execute("ACL", "DELUSER", "poor")


# PF2
async def test_a_forked_child_does_not_keep_the_subscriptions_of_its_parent(private: RedisServer, start: Start) -> None:
    """Else the server would not notice that the parent has ended."""
    process = start()
    process.notifier.join_worker("w")
    assert private.execute("PUBSUB", "NUMSUB", f"{PREFIX}alive:w")[1] == 1
    child = os.fork()
    if not child:
        signal.alarm(60)  # ends it if this test is killed
        signal.pause()
        os._exit(0)
    try:
        process.notifier.close()
        await eventually(lambda: private.execute("PUBSUB", "NUMSUB", f"{PREFIX}alive:w")[1] == 0)
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)


# The feed


@pytest.mark.usefixtures("confirmed_subscriptions")
async def test_the_feed_reaches_other_processes_that_listen(start: Start) -> None:
    sender, listener = start(), start()
    received: list[bytes] = []
    assert sender.notifier.feed.kinds == frozenset()
    listener.notifier.listen_to_feed(["Started"], received.append)
    await eventually(lambda: sender.notifier.feed.kinds == {"Started"})
    sender.notifier.feed.publish(b"one")
    listener.notifier.feed.publish(b"own")
    sender.notifier.feed.publish("zwei ü".encode())
    await eventually(lambda: received == [b"one", "zwei ü".encode()])
    listener.notifier.listen_to_feed([], received.append)
    await eventually(lambda: sender.notifier.feed.kinds == frozenset())


@pytest.mark.usefixtures("confirmed_subscriptions")
async def test_a_new_process_knows_who_listens_before_its_first_message(start: Start) -> None:
    listener = start()
    received: list[bytes] = []
    listener.notifier.listen_to_feed(["Started"], received.append)
    await eventually(lambda: listener.notifier._confirmed.keys() >= {listener.notifier.feed.messages})
    short = start()
    assert short.notifier.feed.kinds == {"Started"}
    short.notifier.feed.publish(b"one")
    short.notifier.close()  # sends what is pending
    await eventually(lambda: received == [b"one"])


async def test_a_listener_that_is_gone_is_forgotten(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("holdfast.engines.feed_channels.LISTENER_TTL_S", 0.5)
    sender, listener = start(), start()
    listener.notifier.listen_to_feed(["Started"], print)
    await eventually(lambda: sender.notifier.feed.kinds == {"Started"})
    listener.notifier.close()
    await eventually(lambda: sender.notifier.feed.kinds == frozenset())


async def test_the_feed_goes_on_after_the_connections_were_ended(private: RedisServer, start: Start) -> None:
    sender, listener = start(), start()
    received: list[bytes] = []
    listener.notifier.listen_to_feed(["Started"], received.append)
    await eventually(lambda: sender.notifier.feed.kinds == {"Started"})
    private.kill_clients("pubsub")
    await eventually(lambda: sender.notifier.watch and listener.notifier.watch)

    def arrives() -> bool:
        sender.notifier.feed.publish(b"again")
        return b"again" in received

    await eventually(arrives)


# N5
def test_a_message_is_not_sent_before_the_write_is_in_the_file() -> None:
    """AOF always: the server is killed as soon as the message has come. After its restart the write is there."""
    script = "redis.call('SET', KEYS[1], ARGV[1]) redis.call('PUBLISH', 'n', '') return 1"
    with private_server(AOF_ALWAYS) as server:
        for number in range(5):
            client: Any = server.client
            messages = client.pubsub()
            messages.subscribe("n")
            assert messages.get_message(timeout=30)["type"] == "subscribe"
            connection = client.connection_pool.get_connection()
            connection.send_command("EVAL", script, 1, "key", number)
            assert messages.get_message(timeout=30)["type"] == "message"
            server.kill()
            connection.disconnect()
            server.start()
            assert server.execute("GET", "key") == str(number).encode()


def test_announcements_that_cannot_be_sent_do_not_fill_the_memory() -> None:
    feed = PubSubFeed(PREFIX, RUNTIME, lambda: None)
    feed.listen(["Started"], lambda message: None, lambda: None)
    for _ in range(10 * MAX_PENDING_MESSAGES):  # one every 5 s while the server is away
        feed.announce()
    assert len(feed.take_pending()) == MAX_PENDING_MESSAGES
