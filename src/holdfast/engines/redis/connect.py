"""Addresses, and connections to them: login, TLS, timeouts, and the error when a connection cannot be made.

redis-py makes a connection: it resolves the name, encrypts, logs in and selects the database. Then our own protocol
(`connections.py`) takes over its socket.

An address is `redis://`, or `rediss://` for TLS, with `valkey://` and `valkeys://` as other names of the same, or
`unix://` with the path of a socket. Its options are those of TLS, as redis-py calls them, and every setting of the
table `[redis]`. A password appears in no message.
"""

import asyncio
import socket
import ssl
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any
from urllib.parse import SplitResult, parse_qsl, unquote, urlsplit

from redis.asyncio.connection import (
    AbstractConnection,
    SSLConnection,
    UnixDomainSocketConnection,
)
from redis.asyncio.connection import (
    Connection as TcpConnection,
)

from holdfast import forks
from holdfast.engines.redis import failures
from holdfast.engines.redis.connections import Connection, OnPush
from holdfast.errors import ConfigError, EngineUnavailable, HoldfastError
from holdfast.model.address import check_address, unreadable, without_login

CLIENT_NAME = "holdfast"
DEFAULT_PORT = 6379
TCP_OPTIONS = {
    "TCP_KEEPIDLE": 15,  # seconds
    "TCP_KEEPINTVL": 5,  # seconds
    "TCP_KEEPCNT": 3,  # probes
    "TCP_USER_TIMEOUT": 30_000,  # milliseconds
}
"""Set where the system has them. A server that vanishes without closing its socket is detected within 30 seconds."""

_TLS_SCHEMES = frozenset({"rediss", "valkeys"})
HANDSHAKE_S = 2.0
"""After this long without TLS, the first connection asks whether the port has none."""
PLAIN_ANSWER_S = 1.0
"""A server without TLS answers within this time, or counts as one with TLS that is slow."""
_TLS_VERSIONS = {"1.2": ssl.TLSVersion.TLSv1_2, "1.3": ssl.TLSVersion.TLSv1_3}
_TLS_TEXT = frozenset({"ssl_ca_certs", "ssl_ca_path", "ssl_certfile", "ssl_keyfile", "ssl_password", "ssl_ciphers"})
_BOOLEANS = {"true": True, "1": True, "yes": True, "false": False, "0": False, "no": False}


@dataclass(frozen=True, slots=True)
class Address:
    """One server, and how to log in there."""

    host: str = "localhost"
    port: int = DEFAULT_PORT
    path: str = ""
    """Of a unix socket; then host and port do not count."""
    database: int = 0
    username: str | None = None
    password: str | None = field(default=None, repr=False)
    tls: Mapping[str, Any] | None = field(default=None, repr=False)
    """Options of redis-py's TLS connection. None: no TLS."""

    @property
    def place(self) -> str:
        """For messages: without user name and password."""
        if self.path:
            return f"{self.path} database {self.database}" if self.database else self.path
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{host}:{self.port}/{self.database}"

    def at(self, host: str, port: int) -> "Address":
        """Another server with the same login."""
        return replace(self, host=host, port=port, path="")


def split(url: str) -> SplitResult:
    """The parts of an address. Raises ConfigError if it cannot be split, or would be split inside of its password."""
    check_address(url)
    return urlsplit(url)


def parse(url: str) -> tuple[Address, dict[str, str]]:
    """The server that an address names, and the options that are settings of the engine, as text."""
    shown, parts = without_login(url), split(url)
    try:
        port = parts.port
    except ValueError:
        raise unreadable(url) from None
    options = dict(parse_qsl(parts.query, keep_blank_values=True))
    scheme = parts.scheme.lower()
    tls: dict[str, Any] | None = None
    if scheme in _TLS_SCHEMES:
        tls = {name: _tls_option(name, options.pop(name)) for name in tuple(options) if name.startswith("ssl_")}
    elif any(name.startswith("ssl_") for name in options):
        raise ConfigError(f"The address {shown} has options for TLS. Write rediss:// for TLS.", key="url")
    is_socket = scheme == "unix"
    if is_socket and not parts.path:
        raise ConfigError(f"The address {shown} names no socket. Write unix:///path/of/the/socket.", key="url")
    database = options.pop("db", "") or ("" if is_socket else parts.path.strip("/"))
    if database and not (database.isascii() and database.isdigit()):
        raise ConfigError(f"The database in {shown} must be a number, such as /0.", key="url")
    address = Address(
        host=parts.hostname or "localhost",
        port=port or DEFAULT_PORT,
        path=unquote(parts.path) if is_socket else "",
        database=int(database or 0),
        username=unquote(parts.username) if parts.username else None,
        password=unquote(parts.password) if parts.password else None,
        tls=tls,
    )
    return address, options


def _tls_option(name: str, value: str) -> Any:
    if name in _TLS_TEXT:
        return value
    choices: Mapping[str, Any] = {}
    match name:
        case "ssl_cert_reqs":
            choices = {word: word for word in ("required", "optional", "none")}
        case "ssl_check_hostname":
            choices = _BOOLEANS
        case "ssl_min_version":
            choices = _TLS_VERSIONS
    if value.lower() in choices:
        return choices[value.lower()]
    if choices:
        raise ConfigError(f"The option `{name}` of the address must be one of {', '.join(choices)}.", key="url")
    known = ", ".join(sorted({*_TLS_TEXT, "ssl_cert_reqs", "ssl_check_hostname", "ssl_min_version"}))
    raise ConfigError(f"The address has an unknown option `{name}`. Those of TLS are {known}.", key="url")


class RedisConnector:
    """Connects to one server. Every connection of the engine is made here."""

    def __init__(self, address: Address, *, timeout_s: float, connect_timeout_s: float) -> None:
        self.address = address
        self.place = address.place
        self.timeout_s = timeout_s
        self._connect_timeout_s = connect_timeout_s
        self.login_worked = False
        """True: this login was accepted before. A refusal is then a fault of the server, not a wrong setting."""
        self._ssl_context: ssl.SSLContext | None = None

    def at(self, host: str, port: int) -> "RedisConnector":
        """Connects to another server with the same login, options and limits."""
        other = RedisConnector(
            self.address.at(host, port), timeout_s=self.timeout_s, connect_timeout_s=self._connect_timeout_s
        )
        other.login_worked = self.login_worked
        return other

    async def __call__(self) -> Connection:
        """A pipelined connection that belongs to the running event loop."""
        return await self.connect(self.timeout_s)

    async def connect(
        self,
        timeout_s: float,
        connect_timeout_s: float | None = None,
        *,
        protocol: int = 2,
        on_push: OnPush | None = None,
    ) -> Connection:
        """The same, with other limits in seconds: for a reply, and for the connection.

        A connection that ends while it is made is made once more: no call was sent on it.
        """
        try:
            return await self._connect(timeout_s, connect_timeout_s, protocol, on_push)
        except EngineUnavailable as error:
            if not failures.is_of_ended_connection(error):
                raise
        return await self._connect(timeout_s, connect_timeout_s, protocol, on_push)

    async def _connect(
        self, timeout_s: float, connect_timeout_s: float | None, protocol: int, on_push: OnPush | None
    ) -> Connection:
        login_worked = self.login_worked
        driver = await self.open_driver(connect_timeout_s, protocol=protocol)
        connection = Connection.take_over(driver, timeout_s, on_push)
        try:
            await connection.read_server()
        except (failures.ConnectionLost, failures.ReplyError) as error:
            connection.close()
            self.login_worked = login_worked
            raise self._failed(error) from error
        except BaseException:
            connection.close()
            raise
        connection.request("CLIENT", "SETNAME", CLIENT_NAME)  # a user without this right connects, too
        return connection

    async def open_driver(self, connect_timeout_s: float | None = None, *, protocol: int = 2) -> AbstractConnection:
        """A connection of redis-py, logged in. `protocol`: version 2 or 3.

        Raises ConfigError if the address or the login is wrong, EngineUnavailable if the server cannot be reached.
        """
        limit_s = self._connect_timeout_s if connect_timeout_s is None else connect_timeout_s
        driver: AbstractConnection | None = None
        try:
            driver = self._driver(limit_s, protocol)
            async with asyncio.timeout(limit_s):
                await driver.connect()  # type: ignore[no-untyped-call]  # redis-py is typed in part
        except BaseException as error:
            if driver is not None:
                with suppress(Exception):
                    await driver.disconnect(nowait=True)
            if isinstance(error, (*failures.FAILURES, ValueError)):
                raise self._failed(error) from error
            raise
        del driver._connect  # it refers to the driver
        self.login_worked = True
        _set_tcp_options(socket_of(driver))
        return driver

    def _failed(self, error: BaseException) -> HoldfastError:
        uses_tls = None if self.address.path else self.address.tls is not None
        return failures.of_connecting(error, self.place, login_worked=self.login_worked, uses_tls=uses_tls)

    def _driver(self, limit_s: float, protocol: int) -> AbstractConnection:
        address = self.address
        options: dict[str, Any] = {
            "db": address.database,
            "username": address.username,
            "password": address.password,
            "socket_connect_timeout": limit_s,
            "socket_timeout": limit_s,
            "protocol": protocol,
        }
        tls: dict[str, Any] = {}
        driver: AbstractConnection
        if address.path:
            driver = UnixDomainSocketConnection(path=address.path, **options)
        elif address.tls is None:
            driver = TcpConnection(host=address.host, port=address.port, **options)
        else:
            driver = SSLConnection(**address.tls, host=address.host, port=address.port, **options)
            tls = {"ssl": self._tls_context(driver), "server_hostname": address.host}
        for name in ("driver_info", "lib_name", "lib_version"):  # no CLIENT SETINFO: it hides a refusal
            setattr(driver, name, None)
        open_socket = partial(_open_socket, driver, address, tls, may_lack_tls=not self.login_worked)
        driver._connect = open_socket  # type: ignore[method-assign]
        return driver

    def _tls_context(self, driver: SSLConnection) -> ssl.SSLContext:
        if self._ssl_context is None:
            try:
                self._ssl_context = driver.ssl_context.get()  # no limit: it reads the certificates, once
            except OSError as error:
                raise ConfigError(f"The options for TLS of Redis at {self.place}: {error}.", key="url") from error
        return self._ssl_context


async def _open_socket(driver: Any, address: Address, tls: dict[str, Any], *, may_lack_tls: bool) -> None:
    """In place of redis-py's own method: a child that is forked while the connection is made keeps no copy (PF2)."""
    if tls and may_lack_tls:
        try:
            async with asyncio.timeout(HANDSHAKE_S):
                return await _open_socket(driver, address, tls, may_lack_tls=False)
        except TimeoutError:
            if await _answers_without_tls(address):
                raise failures.NoTls("no TLS") from None
    found, driver.child_copy = await _connected_socket(address)
    try:
        driver._reader, driver._writer = await asyncio.open_connection(sock=found, **tls)
    except BaseException:
        found.close()
        raise


async def _answers_without_tls(address: Address) -> bool:
    """A server without TLS waits for the end of the line that a handshake never has. So ask it something it answers."""
    found, _child_copy = await _connected_socket(address)
    reader, writer = await asyncio.open_connection(sock=found)
    try:
        writer.write(b"PING\r\n")
        async with asyncio.timeout(PLAIN_ANSWER_S):
            return await reader.read(1) in (b"+", b"-")
    except OSError:  # a timeout, too
        return False
    finally:
        writer.close()


async def _connected_socket(address: Address) -> tuple[socket.socket, forks.ChildCopy]:
    loop = asyncio.get_running_loop()
    errors: list[OSError] = []
    for family, place in await _places(address):
        with forks.no_fork:
            found = socket.socket(family, socket.SOCK_STREAM)
            child_copy = forks.ChildCopy(found.fileno)
        found.setblocking(False)
        try:
            await loop.sock_connect(found, place)
        except BaseException as error:
            found.close()
            if not isinstance(error, OSError):
                raise
            errors.append(error)
        else:
            return found, child_copy
    raise errors[0] if len(errors) == 1 else OSError(", ".join(map(str, errors)))


async def _places(address: Address) -> list[tuple[int, Any]]:
    """The family and the address of every socket that the address may mean."""
    if address.path:
        return [(socket.AF_UNIX, address.path)]
    host, port = address.host, address.port
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_NUMERICHOST)
    except socket.gaierror:  # no number: the name is looked up in a thread
        found = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)
    return [(family, place) for family, _, _, _, place in found]


def socket_of(driver: AbstractConnection) -> socket.socket | None:
    writer: asyncio.StreamWriter | None = driver._writer  # redis-py has no public name for it
    found = None if writer is None else writer.get_extra_info("socket")
    return None if found is None or found.fileno() < 0 else found


def _set_tcp_options(found: socket.socket | None) -> None:
    if found is None or found.family not in (socket.AF_INET, socket.AF_INET6):
        return
    with suppress(OSError, AttributeError):  # the connection works without them
        found.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        for name, value in TCP_OPTIONS.items():
            if hasattr(socket, name):
                found.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)
