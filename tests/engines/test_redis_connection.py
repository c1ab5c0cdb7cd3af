"""One pipelined connection to Redis: which reply belongs to which request, lost connections, limits of time, logins."""

import asyncio
import gc
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from eventually import eventually
from proxy import Cut, Direction, Proxy, RedisWire
from redis_server import WITHOUT_PERSISTENCE, RedisServer, private_server
from redis_tls import make_certificate, tls_server

from holdfast.engines.redis import connect as connect_module
from holdfast.engines.redis.connect import Address, RedisConnector, parse
from holdfast.engines.redis.connections import Connection
from holdfast.engines.redis.failures import CallTimeout, ConnectionLost, ReplyError, of_reply
from holdfast.engines.redis.primary import Primary
from holdfast.engines.redis.scripts import ServerScript
from holdfast.errors import ConfigError, EngineError, EngineUnavailable, OutcomeUnknown, StorageFull
from holdfast.runtime import SystemRuntime

ECHO = ServerScript("return {ARGV[1], ARGV[3]}")
COUNT = ServerScript("return {redis.call('INCR', KEYS[1] .. ARGV[3])}")


def connector(url: str, *, timeout_s: float = 30.0) -> RedisConnector:
    return RedisConnector(parse(url)[0], timeout_s=timeout_s, connect_timeout_s=10.0)


@asynccontextmanager
async def connected(url: str, *, timeout_s: float = 30.0) -> AsyncIterator[Connection]:
    connection = await connector(url, timeout_s=timeout_s)()
    try:
        yield connection
    finally:
        connection.close()


@asynccontextmanager
async def primary_at(url: str, script: ServerScript = ECHO, *, timeout_s: float = 30.0) -> AsyncIterator[Primary]:
    connect = connector(url, timeout_s=timeout_s)
    primary = Primary(connect, connect.place, script, SystemRuntime(), lambda *about_the_call: b"")
    try:
        yield primary
    finally:
        await primary.close()


# Which reply belongs to which request


async def test_replies_come_in_the_order_of_the_requests(redis_server: RedisServer) -> None:
    async with connected(redis_server.url()) as connection:
        words = [f"word {number}" for number in range(500)]
        replies = await asyncio.gather(*(connection.command("ECHO", word) for word in words))
        assert replies == [word.encode() for word in words]


async def test_a_cancelled_command_leaves_no_reply_for_the_next(redis_server: RedisServer) -> None:
    with Proxy(redis_server.port) as proxy:
        async with connected(redis_server.url(port=proxy.port)) as connection:
            proxy.hold(Direction.TO_CLIENT)
            calls = [asyncio.ensure_future(connection.command("ECHO", str(number))) for number in range(10)]
            await asyncio.sleep(0)
            for call in calls[::2]:
                call.cancel()
            later = asyncio.ensure_future(connection.command("ECHO", "later"))
            proxy.release()
            assert await later == b"later"
            assert [await call for call in calls[1::2]] == [b"1", b"3", b"5", b"7", b"9"]
            assert all(call.cancelled() for call in calls[::2])


async def test_an_error_reply_ends_neither_the_connection_nor_other_commands(redis_server: RedisServer) -> None:
    async with connected(redis_server.url()) as connection:
        wrong, right = connection.request("NO SUCH COMMAND"), connection.request("PING")
        assert isinstance(await wrong, ReplyError)
        assert await right == b"PONG"


async def test_bytes_that_are_no_reply_end_the_connection(redis_server: RedisServer) -> None:
    async with connected(redis_server.url()) as connection:
        call = connection.request("BLPOP", "nothing", 20)
        connection.data_received(b"?what\r\n")
        with pytest.raises(ConnectionLost):
            await call
        assert not connection.is_usable


# Lost connections


async def test_a_connection_that_ended_while_it_was_idle_is_replaced_without_an_error(
    redis_server: RedisServer,
) -> None:
    async with primary_at(redis_server.url()) as primary:
        assert (await primary.call("r:", [b"exchange", b"1"])).values == [b"exchange", b"1"]
        redis_server.kill_clients()
        # The loop does not run in between, so it has not seen the end of the connection.
        assert (await primary.call("r:", [b"exchange", b"2"])).values == [b"exchange", b"2"]


async def test_a_call_that_was_sent_and_not_answered_has_an_unknown_outcome(redis_server: RedisServer) -> None:
    with Proxy(redis_server.port) as proxy:
        async with primary_at(redis_server.url(port=proxy.port), COUNT) as primary:
            name = f"count{id(primary)}"
            await primary.call("r:", [b"enqueue", name.encode()])
            proxy.hold(Direction.TO_CLIENT)
            call = asyncio.ensure_future(primary.call("r:", [b"enqueue", name.encode()]))
            await eventually(lambda: redis_server.execute("GET", f"r:{name}") == b"2")
            proxy.cut()
            proxy.release()
            with pytest.raises(OutcomeUnknown, match="may or may not have been carried out"):
                await call
            assert (await primary.call("r:", [b"enqueue", name.encode()])).values == [3]
            redis_server.execute("DEL", f"r:{name}")


async def test_a_request_on_an_ended_connection_may_be_left_unread(redis_server: RedisServer) -> None:
    messages: list[object] = []
    asyncio.get_running_loop().set_exception_handler(lambda loop, context: messages.append(context))
    async with connected(redis_server.url()) as connection:
        connection.close()
        connection.request("PING")  # as the write before a WAIT, if the WAIT fails first
        gc.collect()
    assert messages == []


class EveryRequest(RedisWire):
    """The requests of a login count, too."""

    def begins_request(self, data: bytes) -> bool:
        super().begins_request(data)
        return True


@pytest.mark.parametrize("where", [Cut.BEFORE_REQUEST, Cut.BEFORE_REPLY])
async def test_a_connection_that_ends_while_it_is_made_is_made_once_more(redis_server: RedisServer, where: Cut) -> None:
    with Proxy(redis_server.port, EveryRequest) as proxy:
        for nth in (1, 2, 3):
            proxy.cut_at(where, nth)
            async with connected(redis_server.url(port=proxy.port)) as connection:
                assert await connection.command("PING") == b"PONG"


async def test_a_connection_that_always_ends_while_it_is_made_is_made_twice() -> None:
    made = 0

    async def end(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal made
        made += 1
        await reader.read(1)
        writer.close()

    async with await asyncio.start_server(end, "127.0.0.1", 0) as listener:
        port = listener.sockets[0].getsockname()[1]
        with pytest.raises(EngineUnavailable, match="Nothing was written"):
            await connector(f"redis://127.0.0.1:{port}/0")()
    assert made == 2


async def test_a_server_without_a_free_connection_says_so() -> None:
    with private_server() as server:
        server.configure(requirepass="", maxclients=1)  # the connection that the test itself has
        for _ in range(20):
            with pytest.raises(EngineUnavailable, match=r"max number of clients reached\. Raise its maxclients"):
                await connector(f"redis://127.0.0.1:{server.port}/0")()
        server.configure(requirepass=server.password, maxclients=1000)


async def test_a_closed_primary_opens_no_connection_any_more(redis_server: RedisServer) -> None:
    async with primary_at(redis_server.url()) as primary:
        await primary.call("r:", [b"get", b"1"])
    with pytest.raises(EngineUnavailable, match="has been closed"):  # as the next piece of a clear does
        await primary.call("r:", [b"get", b"2"])


async def test_a_call_that_reads_is_sent_again(redis_server: RedisServer) -> None:
    with Proxy(redis_server.port) as proxy:
        async with primary_at(redis_server.url(port=proxy.port)) as primary:
            await primary.call("r:", [b"get", b"1"])
            proxy.hold(Direction.TO_SERVER)
            call = asyncio.ensure_future(primary.call("r:", [b"get", b"2"]))
            await asyncio.sleep(0)
            proxy.cut()
            proxy.release()
            assert (await call).values == [b"get", b"2"]


async def test_a_server_that_cannot_be_reached_is_unavailable_to_all_callers_at_once() -> None:
    async with primary_at("redis://:secret@127.0.0.1:1/0") as primary:
        calls = [primary.call("r:", [b"enqueue", b""]) for _ in range(20)]
        errors = await asyncio.gather(*calls, return_exceptions=True)
        assert {type(error) for error in errors} == {EngineUnavailable}
        assert all("127.0.0.1:1/0 cannot be reached" in str(error) for error in errors)
        assert "secret" not in "".join(map(str, errors))


async def test_a_caller_that_is_cancelled_while_it_connects_does_not_fail_the_others(
    redis_server: RedisServer,
) -> None:
    with Proxy(redis_server.port) as proxy:
        async with primary_at(redis_server.url(port=proxy.port)) as primary:
            proxy.hold()
            calls = [asyncio.ensure_future(primary.call("r:", [b"get", b"%d" % number])) for number in range(3)]
            await eventually(lambda: proxy.connections)
            calls[0].cancel()
            proxy.release()
            assert [(await call).values[1] for call in calls[1:]] == [b"1", b"2"]


# Limits of time


async def test_a_server_that_does_not_answer_in_time_fails_the_call(redis_server: RedisServer) -> None:
    with Proxy(redis_server.port) as proxy:
        async with primary_at(redis_server.url(port=proxy.port), timeout_s=1.0) as primary:
            await primary.call("r:", [b"get", b""])
            proxy.hold(Direction.TO_CLIENT)
            with pytest.raises(EngineUnavailable, match=r"did not answer during get: no reply within 1 s"):
                await primary.call("r:", [b"get", b""])
            proxy.cut()  # the new connection, too
            proxy.release()
            assert (await primary.call("r:", [b"get", b"2"])).values == [b"get", b"2"]


async def test_the_limit_counts_for_each_request_from_the_time_it_was_sent(redis_server: RedisServer) -> None:
    with Proxy(redis_server.port) as proxy:
        async with connected(redis_server.url(port=proxy.port), timeout_s=1.0) as connection:
            for _ in range(3):
                await connection.command("PING")
                await asyncio.sleep(0.4)
            assert connection.is_usable
            proxy.hold(Direction.TO_CLIENT)
            async with asyncio.timeout(30):
                with pytest.raises(CallTimeout):
                    await connection.command("PING")


async def test_a_connection_that_is_never_accepted_has_a_limit(redis_server: RedisServer) -> None:
    with Proxy(redis_server.port) as proxy:
        proxy.hold()
        connect = RedisConnector(parse(redis_server.url(port=proxy.port))[0], timeout_s=30.0, connect_timeout_s=0.2)
        with pytest.raises(EngineUnavailable, match="cannot be reached"):
            await connect()


# The script


async def test_the_script_is_sent_once_and_again_after_the_server_has_forgotten_it() -> None:
    script = ServerScript("return {'a script of this test', ARGV[1]}")
    with private_server(WITHOUT_PERSISTENCE) as server:  # other tests count the calls to a shared one
        async with primary_at(server.url(), script) as primary:
            for _ in range(2):
                assert (await primary.call("r:", [b"enqueue", b""])).values == [b"a script of this test", b"enqueue"]
            assert server.execute("SCRIPT", "EXISTS", script.sha.decode()) == [1]
            server.execute("SCRIPT", "FLUSH")
            calls = [primary.call("r:", [b"exchange", b""]) for _ in range(10)]
            assert all(reply.values[1] == b"exchange" for reply in await asyncio.gather(*calls))


async def test_a_call_can_wait_for_replicas(redis_server: RedisServer) -> None:
    async with primary_at(redis_server.url()) as primary:
        reply = await primary.call("r:", [b"enqueue", b"1"], wait=(1, 10))
        assert (reply.values, reply.replicas) == ([b"enqueue", b"1"], 0)


# Errors of the server


@pytest.mark.parametrize(
    ("message", "kind", "words"),
    [
        ("OOM command not allowed when used memory > 'maxmemory'.", StorageFull, "maxmemory"),
        (
            "ERR Error running script (call to f_1): @user_script:7: @user_script: 7: -OOM command not allowed when "
            "used memory > 'maxmemory'.",
            StorageFull,
            "maxmemory",
        ),
        ("LOADING Redis is loading the dataset in memory", EngineUnavailable, "loads its data"),
        ("BUSY Redis is busy running a script.", EngineUnavailable, "SCRIPT KILL"),
        ("READONLY You can't write against a read only replica.", EngineUnavailable, "Connect to the primary"),
        ("MASTERDOWN Link with MASTER is down", EngineUnavailable, "lost its primary"),
        ("MISCONF Redis is configured to save RDB snapshots", EngineUnavailable, "save its data to disk"),
        ("NOREPLICAS Not enough good replicas to write.", EngineUnavailable, "min-replicas-to-write"),
        ("NOAUTH Authentication required.", EngineUnavailable, "asks for a login"),
        ("NOPERM this user has no permissions to run the 'evalsha' command", EngineError, "lists the rights"),
        ("MOVED 3999 127.0.0.1:6381", ConfigError, "cluster"),
        ("ERR something else", EngineError, "something else"),
    ],
)
def test_an_error_of_the_server_says_what_to_do(message: str, kind: type[Exception], words: str) -> None:
    error = of_reply(ReplyError(message), "h:1/0", "enqueue")
    assert type(error) is kind
    assert words in str(error)
    assert "Nothing was written" in str(error)


def test_an_error_in_the_middle_of_the_script_does_not_claim_that_nothing_was_written() -> None:
    for message in (
        "WRONGTYPE Operation against a key holding the wrong kind of value script: abc, on @user_script:7.",
        "ERR Error running script (call to f_1): @user_script:7: attempt to index a nil value",
    ):
        error = of_reply(ReplyError(message), "h:1/0", "enqueue")
        assert type(error) is EngineError
        assert "Nothing was written" not in str(error)
        assert "please report it" in str(error)


@pytest.mark.parametrize("verb", [b"enqueue", b"get"])
async def test_a_server_that_is_busy_with_a_script_is_unavailable(redis_server: RedisServer, verb: bytes) -> None:
    with private_server({"lua-time-limit": 50}) as server:
        async with primary_at(server.url()) as primary, connected(server.url()) as other:
            await primary.call("r:", [verb, b""])
            endless = other.request("EVAL", "while true do end", 0)

            async def is_busy() -> bool:
                answers = await asyncio.gather(primary.call("r:", [verb, b""]), return_exceptions=True)
                return isinstance(answers[0], EngineUnavailable) and "BUSY" in str(answers[0])

            await eventually(is_busy)
            server.execute("SCRIPT", "KILL")
            assert isinstance(await endless, ReplyError)
            assert (await primary.call("r:", [verb, b"2"])).values == [verb, b"2"]


# Addresses and logins


@pytest.mark.parametrize(
    ("url", "address", "options"),
    [
        ("redis://", Address(), {}),
        ("valkey://h/3", Address(host="h", database=3), {}),
        ("redis://u:p%2F@h:1/2?timeout=3", Address("h", 1, "", 2, "u", "p/"), {"timeout": "3"}),
        ("redis://:p@[::1]:7?db=4", Address("::1", 7, "", 4, None, "p"), {}),
        ("rediss://h?ssl_check_hostname=no", Address("h", tls={"ssl_check_hostname": False}), {}),
        ("valkeys://h", Address("h", tls={}), {}),
        ("unix:///run/redis.sock?db=5", Address(path="/run/redis.sock", database=5), {}),
        ("unix://u:p@/a%20b", Address(path="/a b", username="u", password="p"), {}),
    ],
)
def test_an_address_is_read(url: str, address: Address, options: dict[str, str]) -> None:
    assert parse(url) == (address, options)


@pytest.mark.parametrize(
    ("url", "words"),
    [
        ("redis://u:pass/word@h", r"u:\*\*\*@h contains"),
        ("redis://h/zero", "must be a number"),
        ("redis://h:port", "cannot be read"),
        ("unix://", "names no socket"),
        ("redis://h?ssl_ca_certs=ca.pem", "Write rediss://"),
        ("rediss://h?ssl_verify=no", "unknown option `ssl_verify`"),
        ("rediss://h?ssl_cert_reqs=maybe", "required, optional, none"),
    ],
)
def test_a_wrong_address_is_refused(url: str, words: str) -> None:
    with pytest.raises(ConfigError, match=words) as refused:
        parse(url)
    assert "pass/word" not in str(refused.value)


def test_an_address_does_not_show_its_secrets() -> None:
    address, _ = parse("rediss://ada:secret@h:1/2?ssl_password=secret")
    assert "secret" not in f"{address!r} {address.place}"
    assert address.place == "h:1/2"


async def test_a_wrong_password_is_a_config_error(redis_server: RedisServer) -> None:
    for url in (f"redis://:wrong@127.0.0.1:{redis_server.port}/0", f"redis://127.0.0.1:{redis_server.port}/0"):
        with pytest.raises(ConfigError, match="refused the login") as refused:
            await connector(url)()
        assert "wrong@" not in str(refused.value)


async def test_a_password_for_a_server_without_one_is_a_config_error() -> None:
    with private_server() as server:
        server.configure(requirepass="")
        with pytest.raises(ConfigError, match="has no password for the default user"):
            await connector(f"redis://:secret@127.0.0.1:{server.port}/0")()
        server.configure(requirepass=server.password)


async def test_tls_for_a_port_without_it_is_named_as_the_cause_long_before_the_limit(
    redis_server: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connect_module, "HANDSHAKE_S", 0.2)
    connect = connector(f"rediss://127.0.0.1:{redis_server.port}/0")
    with pytest.raises(ConfigError, match="answers without TLS on this port"):
        await connect.connect(30, connect_timeout_s=30)  # the limit has another error
    with pytest.raises(EngineUnavailable, match=r"no answer in time\. If this port has no TLS, write redis://"):
        await connect.connect(1, connect_timeout_s=0.1)


async def test_a_slow_server_with_tls_is_not_taken_for_one_without(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connect_module, "HANDSHAKE_S", 0.0)
    with tls_server(tmp_path) as server:
        async with connected(f"{server.url()}?ssl_cert_reqs=none") as connection:
            assert await connection.command("PING") == b"PONG"


async def test_a_password_that_was_changed_makes_the_server_unavailable() -> None:
    with private_server() as server:
        connect = connector(server.url())
        (await connect()).close()
        server.configure(requirepass="another")
        with pytest.raises(EngineUnavailable):
            await connect()
        server.configure(requirepass=server.password)


async def test_a_database_that_does_not_exist_is_a_config_error(redis_server: RedisServer) -> None:
    with pytest.raises(ConfigError, match="no such database"):
        await connector(redis_server.url(9_999))()


async def test_a_unix_socket_works_and_a_missing_one_is_unavailable(redis_server: RedisServer) -> None:
    async with connected(redis_server.unix_url()) as connection:
        assert await connection.command("PING") == b"PONG"
    with pytest.raises(EngineUnavailable, match="cannot be reached"):
        await connector("unix:///nowhere/redis.sock")()


# TLS


async def test_tls_checks_the_certificate_of_the_server(tmp_path: Path) -> None:
    with tls_server(tmp_path) as server:
        certificate = server.certificate.certificate
        async with connected(f"{server.url()}?ssl_ca_certs={certificate}") as connection:
            assert await connection.command("ECHO", "x" * 1_000_000) == b"x" * 1_000_000
        async with connected(f"{server.url()}?ssl_cert_reqs=none") as connection:
            assert await connection.command("PING") == b"PONG"
        other = make_certificate(tmp_path, "other").certificate
        for options in ("", f"?ssl_ca_certs={other}"):
            with pytest.raises(ConfigError, match="CERTIFICATE_VERIFY_FAILED") as refused:
                await connector(f"{server.url()}{options}")()
            assert server.password not in str(refused.value)
        with pytest.raises(ConfigError, match="options for TLS"):
            await connector(f"{server.url()}?ssl_ca_certs=/nowhere/ca.pem")()


async def test_no_tls_for_a_port_with_it_is_named_as_the_cause(tmp_path: Path) -> None:
    with tls_server(tmp_path) as server, pytest.raises(EngineUnavailable, match="needs TLS, write rediss://"):
        await connector(server.url().replace("rediss://", "redis://"))()


async def test_tls_shows_a_certificate_of_the_client(tmp_path: Path) -> None:
    client = make_certificate(tmp_path, "client")
    with tls_server(tmp_path, client_authority=client.certificate) as server:
        options = f"ssl_ca_certs={server.certificate.certificate}"
        own = f"ssl_certfile={client.certificate}&ssl_keyfile={client.key}"
        async with connected(f"{server.url()}?{options}&{own}&ssl_min_version=1.2") as connection:
            assert await connection.command("PING") == b"PONG"
        with pytest.raises(EngineUnavailable):
            await connector(f"{server.url()}?{options}")()
