"""Turns an error of the server or of the network into one of ours, which says what happened and what to do.

The question that matters: is it certain that nothing was written? The server refuses a call before its script begins,
or at its first write: then nothing was written. If the connection ends after a request was sent, nothing is certain,
unless the request only reads.
"""

import re
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

from redis.exceptions import RedisError, ResponseError

from holdfast.errors import (
    ConfigError,
    EngineError,
    EngineUnavailable,
    HoldfastError,
    OutcomeUnknown,
    SchemaMismatch,
    StorageFull,
)
from holdfast.model.command import Command
from holdfast.model.produce import Enqueue
from holdfast.model.text import shown

SCHEME = "redis"

FAILURES = (OSError, EOFError, RedisError)
"""All errors that the driver and the network raise while a connection is made. (A timeout is an OSError.)"""

_INSIDE_SCRIPT = re.compile(r"(?:^|-)([A-Z]{2,}) (.*)", re.DOTALL)
"""Redis 6.2 reports an error inside a script as `ERR Error running script (…): @user_script:1: -OOM command …`, newer
servers as `ERR OOM command … script: …, on @user_script:1.` if it went through a `pcall`."""
_OF_SCRIPT = re.compile(r" ?script: [0-9a-f]{40}, on @?\w+:\d+\.$")
"""What newer servers append."""

# Codes of error replies
NO_SCRIPT = "NOSCRIPT"
OWN_ERROR = "HOLDFAST"
"""Of our own script."""
ENDS_CONNECTION = frozenset({"READONLY", "NOAUTH", "MASTERDOWN"})
"""Another server, or another login, may answer a new connection."""
_CLOSED_BY_SERVER = ("Connection reset by peer", "Connection closed by server")
"""So a port with TLS answers a client without it."""
_WRONG_LOGIN = frozenset({"WRONGPASS", "NOAUTH"})
_REFUSED_LOGIN = ("invalid username-password pair", "Authentication required", "no permissions")
_TRY_LATER = {
    "LOADING": "It loads its data from disk after a start. Wait until it is ready.",
    "BUSY": "A script of another client has been running for too long. Find it with CLIENT LIST; SCRIPT KILL ends it.",
    "READONLY": "It is a replica, which accepts no writes. Connect to the primary.",
    "MASTERDOWN": "It is a replica that has lost its primary. Connect to the primary.",
    "CLUSTERDOWN": "The cluster has no node for some slots. Look at CLUSTER INFO.",
    "TRYAGAIN": "The slot moves to another node. Try again.",
    "MISCONF": "It cannot save its data to disk, and accepts no writes until it can. Look at its log and its disk.",
    "NOREPLICAS": "It has fewer replicas than its min-replicas-to-write. Look at INFO replication.",
    "NOAUTH": "It asks for a login. Write user and password into the address.",
}
"""What an operator should know and do, for errors that pass."""


class ReplyError(ResponseError):
    """An error reply of the server. `code` is its first word, `text` the rest.

    `in_script`: the script had begun. It writes at its end, so it has hardly written anything, but that is not certain.
    """

    def __init__(self, message: str) -> None:
        super().__init__(message)
        self.in_script = "user_script" in message and "compiling script" not in message
        code, _, text = message.partition(" ")
        inside = _INSIDE_SCRIPT.search(text) if code == "ERR" and "@user_script" in text else None
        if inside is not None:
            code, text = inside.groups()
        elif "The user executing the script can't" in text:  # so Redis 6.2 says it
            code = "NOPERM"
        self.code = code
        self.text = _OF_SCRIPT.sub("", text).strip().rstrip(".")


class ConnectionLost(Exception):
    """The connection ended, or was closed by us, after a request was sent and before its reply has come."""


class CallTimeout(ConnectionLost):
    """The server did not answer in time."""


class NoTls(ConnectionError):
    """The server answers without TLS on a port where the address wants it."""


def of_connecting(
    error: BaseException, place: str, *, login_worked: bool = False, uses_tls: bool | None = None
) -> HoldfastError:
    """The error when no connection could be made; so nothing was written.

    `login_worked`: this address and login were accepted before, so the settings are not wrong.
    `uses_tls`: whether the connection was to have TLS; None for a socket of this host.
    """
    text = _text(error)
    code = text.partition(" ")[0]
    if not login_worked:
        if code in _WRONG_LOGIN or any(words in text for words in _REFUSED_LOGIN):
            return ConfigError(f"Redis at {place} refused the login: {text}.", key="url")
        if "without any password configured" in text:
            return ConfigError(
                f"Redis at {place} has no password for the default user, but the address has one. Remove it there, or "
                "set one on the server. If the password is that of another user, write user:password.",
                key="url",
            )
        if "DB index is out of range" in text or "invalid DB index" in text:
            return ConfigError(f"Redis at {place} has no such database: {text}.", key="url")
        if "CERTIFICATE_VERIFY_FAILED" in text:
            return ConfigError(f"The certificate of Redis at {place} cannot be trusted: {text}.", key="url")
        if isinstance(error.__context__, NoTls) or isinstance(error, NoTls):
            return ConfigError(
                f"Redis at {place} answers without TLS on this port. Write redis:// instead of rediss://, or the port "
                "with TLS.",
                key="url",
            )
        if uses_tls and isinstance(error, TimeoutError):
            text = f"{text}. If this port has no TLS, write redis:// instead of rediss://"
        elif uses_tls is False and any(words in text for words in _CLOSED_BY_SERVER):
            text = f"{text}. If this port needs TLS, write rediss:// instead of redis://"
    if "max number of clients" in text:
        text = f"{text}. Raise its maxclients, or run fewer processes"
    return EngineUnavailable(f"Redis at {place} cannot be reached: {text}. Nothing was written.", engine=SCHEME)


def is_of_ended_connection(error: HoldfastError) -> bool:
    """True if the server, or the network, ended a connection while it was made: another one may be made at once."""
    cause = error.__cause__
    while cause is not None:
        if isinstance(cause, (ConnectionLost, ConnectionResetError, BrokenPipeError)):
            return not isinstance(cause, CallTimeout)
        if isinstance(cause, RedisError) and "Connection closed by server" in str(cause):
            return True
        cause = cause.__cause__ or cause.__context__
    return False


def of_lost(error: ConnectionLost, place: str, verb: str, *, reads: bool) -> HoldfastError:
    """The error when a request was sent and no reply has come."""
    text = _text(error)
    if reads:
        failed = "did not answer" if isinstance(error, CallTimeout) else "closed the connection"
        return EngineUnavailable(
            f"Redis at {place} {failed} during {verb}: {text}. Nothing was written.", engine=SCHEME
        )
    return OutcomeUnknown(
        f"The answer of Redis at {place} was lost ({text}): {verb} may or may not have been carried out. Look up the "
        "jobs by id, or repeat the call with the same ids: that is safe.",
        verb=verb,
        engine=SCHEME,
    )


class UnconfirmedWrite(OutcomeUnknown):
    """The reply was lost, and with it how many replicas have the write: reading it from the primary proves nothing."""

    found_by_reading = False


def with_ids(unknown: OutcomeUnknown, command: Command[Any], *, replicated: bool) -> OutcomeUnknown:
    """The same error with the ids of the jobs that the command names. `replicated`: replicas must confirm the write."""
    ids = tuple(ids_of(command))
    if not ids or unknown.job_ids or type(unknown) is not OutcomeUnknown:
        return unknown
    more = f" and {len(ids) - 3} more" if len(ids) > 3 else ""
    of = f"{unknown.verb} of {', '.join(map(shown, ids[:3]))}{more} may or may not"
    message = str(unknown).replace(f"{unknown.verb} may or may not", of, 1)
    if not replicated:
        return OutcomeUnknown(message, verb=unknown.verb, job_ids=ids, engine=SCHEME)
    message = message.replace("Look up the jobs by id, or repeat", "Repeat", 1)
    return UnconfirmedWrite(message, verb=unknown.verb, job_ids=ids, engine=SCHEME)


def of_reply(error: ReplyError, place: str, verb: str) -> HoldfastError:
    """The error when the server answered with one. It has written nothing, except perhaps if a script failed."""
    code, text = error.code, error.text
    nothing = "" if error.in_script else " Nothing was written."
    if code == "OOM":
        return StorageFull(
            f"Redis at {place} has reached its maxmemory. Nothing was written, and stored jobs are safe. Raise "
            "maxmemory, or let jobs be worked off and pruned, then try again.",
            engine=SCHEME,
        )
    if code in _TRY_LATER:
        return EngineUnavailable(
            f"Redis at {place} did not carry out {verb}: {code} {text}. Nothing was written. {_TRY_LATER[code]}",
            engine=SCHEME,
        )
    if code == "NOPERM":
        return EngineError(
            f'The user that Holdfast has at {place} may not do this: {text}.{nothing} The guide "Redis and Valkey in '
            'production" lists the rights that it needs.',
            engine=SCHEME,
        )
    if code in ("MOVED", "ASK", "CROSSSLOT"):
        return ConfigError(
            f"Redis at {place} is a node of a cluster ({code} {text}). Nothing was written. Set `[redis] cluster`.",
            key="redis.cluster",
        )
    if error.in_script:
        return EngineError(
            f"Redis at {place} could not carry out {verb}: {code} {text}. Another program has changed the keys of "
            "Holdfast, or this is a defect of Holdfast: please report it.",
            engine=SCHEME,
        )
    return EngineError(f"Redis at {place} refused {verb}: {code} {text}.{nothing}", engine=SCHEME)


@contextmanager
def opening(place: str, verb: str) -> Iterator[None]:
    """Translates what fails in this block. A missing right is a wrong setting here, as a wrong password is."""
    try:
        yield
    except (HoldfastError, ReplyError) as error:
        reply = reply_of(error)
        if reply is not None and reply.code == "NOPERM":
            raise ConfigError(str(of_reply(reply, place, verb)), key="url") from reply
        if isinstance(error, ReplyError):
            raise of_reply(error, place, verb) from error
        raise


def reply_of(error: BaseException) -> ReplyError | None:
    """The reply of the server, if the error is one."""
    cause = error if isinstance(error, ReplyError) else error.__cause__
    return cause if isinstance(cause, ReplyError) else None


def of_format(found: str, place: str) -> SchemaMismatch:
    """The error when the jobs are stored in another format than that of this release."""
    return SchemaMismatch(
        f"The jobs at {place} are stored in format {found}; this release of Holdfast has format {FORMAT}. Nothing was "
        "written. Use the release that stored them, or a later one.",
        found=found,
        wanted=str(FORMAT),
        engine=SCHEME,
    )


FORMAT = 1
"""The number of the format in which jobs are stored. A release that stores them otherwise has another number."""


def ids_of(command: Command[Any]) -> Iterable[str]:
    """The jobs that a command names."""
    if isinstance(command, Enqueue):
        return [job.id for group in command.groups for job in group.jobs]
    return list(getattr(command, "ids", ()))


def _text(error: BaseException) -> str:
    """The text of the error in one line, without the full stop."""
    lines = str(error).strip().splitlines()
    if not lines and isinstance(error, TimeoutError):
        return "no answer in time"
    return lines[0].rstrip(".") if lines else type(error).__name__
