"""Turns an error of the server or of the network into one of ours, which says what happened and what to do.

The question that matters: is it certain that nothing was written? If the server answers a statement with an error, it
rolled back the transaction. If the connection breaks after the request was sent, nothing is certain, unless the server
announced before that it ends this session: then it did not commit.
"""

from collections.abc import Iterable
from typing import Any

import asyncpg

from holdfast.engines.postgres.rules import LOCK_WAIT_S
from holdfast.errors import (
    Busy,
    ConfigError,
    CorruptRecord,
    EngineError,
    EngineUnavailable,
    HoldfastError,
    InvalidArguments,
    OutcomeUnknown,
    SchemaMismatch,
    StorageFull,
)
from holdfast.model.command import Command
from holdfast.model.produce import Enqueue
from holdfast.model.text import shown
from holdfast.model.work import Disown, Exchange, Expired, ForgetWorker, Heartbeat, Renew

SCHEME = "postgresql"

FAILURES = (OSError, EOFError, asyncpg.PostgresError, asyncpg.InterfaceError, asyncpg.InternalClientError)
"""All errors that the driver raises. (A timeout is an OSError.)"""

# SQLSTATE codes
_RETRY_AT_ONCE = frozenset({"40001", "40P01", "23505"})
"""Serialization failure, deadlock, and a race for a new row that was lost: rolled back, and a retry may succeed."""
_SESSION_ENDED = frozenset({"57P01", "57P04", "57P05"})
"""Ended by an administrator, with its database, or for being idle. The server sends these between statements or during
one, never between a commit and its answer."""
_NO_SCHEMA = frozenset({"3F000", "42P01", "42883"})
_WRONG_LOGIN = frozenset({"28000", "28P01", "3D000"})
_PROTOCOL_VIOLATION = "08P01"
_OTHER_SESSION = frozenset({"26000", "42P05"})
"""A prepared statement is missing, or exists already: this call reached another session than the one before it."""
_TOO_MANY_CONNECTIONS = "53300"
_DISK_FULL = "53100"
_DAMAGED = frozenset({"XX001", "XX002"})
_NOT_ALLOWED = "42501"
_LOCK_TIMEOUT = "55P03"
_READ_ONLY = "25006"
_CANCELLED = "57014"

_RETRYING_COMMANDS = (Exchange, Renew, Expired, Disown, Heartbeat, ForgetWorker)
"""Commands of workers, which repeat them until they are answered. To them a lock timeout must not look like a
refusal."""


def may_try_again(error: BaseException, *, reads: bool, unknown: bool) -> bool:
    """True if the same call may be repeated at once."""
    if _sqlstate(error) in _RETRY_AT_ONCE:
        return True
    return _is_broken(error) and (reads or not unknown) and not isinstance(error, TimeoutError | ValueError)


def wrote_nothing(error: BaseException, *, shared: bool) -> bool:
    """True if it is certain that a call that was sent, and failed with this error, wrote nothing."""
    if _is_unsent(error):
        return True
    if not shared and _sqlstate(error.__cause__) in _SESSION_ENDED:
        return True
    return isinstance(error, asyncpg.PostgresError) and not _is_broken(error)


def _is_unsent(error: BaseException) -> bool:
    """The driver did not send the call: the connection is closed, or the server announced that it will close it."""
    return isinstance(error, asyncpg.InterfaceError) or (
        isinstance(error, asyncpg.InternalClientError) and "cannot switch to state" in str(error)
    )


def ends_connection(error: asyncpg.PostgresError) -> bool:
    """True if the connection must not be used again after this error.

    The server closes it, or accepts no writes, or cancelled a call that may have left a lock of the session behind.
    """
    return _is_broken(error) or _sqlstate(error) in (_READ_ONLY, _CANCELLED)


def _is_broken(error: BaseException) -> bool:
    if isinstance(error, asyncpg.PostgresError):
        return _sqlstate(error).startswith(("57P", "08"))
    return isinstance(error, FAILURES)


def _sqlstate(error: BaseException | None) -> str:
    return getattr(error, "sqlstate", None) or ""


def _text(error: BaseException) -> str:
    """The text of the error in one line, without the full stop."""
    lines = str(error).strip().splitlines()
    return lines[0].rstrip(".") if lines else type(error).__name__


def of_connecting(error: BaseException, place: str, *, login_worked: bool = False) -> HoldfastError:
    """The error when no connection could be made; so nothing was written.

    `login_worked`: this address and login were accepted before, so the settings are not wrong.
    """
    state, text = _sqlstate(error), _text(error)
    if isinstance(error, ValueError | asyncpg.InterfaceError) and not login_worked:
        return ConfigError(f"The address of PostgreSQL at {place} cannot be used: {text}.", key="url")
    if state in _WRONG_LOGIN and not login_worked:
        return ConfigError(f"PostgreSQL at {place} refused the login: {text}.", key="url")
    if state == _PROTOCOL_VIOLATION and "startup parameter" in text:
        return shared_session(place, text)
    if state == _TOO_MANY_CONNECTIONS:
        text = f"{text}. Raise its max_connections, lower `[postgres] pool_size`, or use a proxy such as PgBouncer"
    return EngineUnavailable(f"PostgreSQL at {place} cannot be reached: {text}. Nothing was written.", engine=SCHEME)


def shared_session(place: str, text: str) -> ConfigError:
    """The error when a proxy shares sessions and the settings do not say so."""
    return ConfigError(
        f"At {place} answers a proxy that shares sessions ({text}). Set `[postgres] pooled = true`.",
        key="postgres.pooled",
    )


def of_other_session(error: BaseException, place: str) -> ConfigError | None:
    """The error if a statement reached another session than the one before it; else None."""
    return shared_session(place, _text(error)) if _sqlstate(error) in _OTHER_SESSION else None


def of_opening(error: BaseException, place: str) -> HoldfastError:
    """The error when the first statements of a connection failed; they only read."""
    return of_other_session(error, place) or EngineUnavailable(
        f"PostgreSQL at {place} cannot be used: {_text(error)}. Nothing was written.", engine=SCHEME
    )


def of_call(
    error: BaseException, command: Command[Any], place: str, *, reads: bool, unknown: bool, lock_holders: str = ""
) -> HoldfastError:
    """The error when a call failed for good. `unknown`: it may have been carried out all the same.

    `lock_holders`: after a lock timeout, a sentence that names the sessions that may hold the lock.
    """
    verb, text = type(command).__name__.lower(), _text(error)
    if isinstance(error, asyncpg.PostgresError) and not _is_broken(error):
        return _of_server(error, command, place, verb, f"{lock_holders} " if lock_holders else "")
    if isinstance(error, ValueError):  # raised by the driver before it sends: it cannot encode a value
        return InvalidArguments(f"{verb}: a value cannot be stored: {text}. Nothing was written.")
    if reads or not unknown:
        failed = "did not answer" if isinstance(error, TimeoutError) else "closed the connection"
        return EngineUnavailable(
            f"PostgreSQL at {place} {failed} during {verb}: {text}. Nothing was written.", engine=SCHEME
        )
    ids = tuple(_ids(command))
    more = f" and {len(ids) - 3} more" if len(ids) > 3 else ""
    of = f" of {', '.join(map(shown, ids[:3]))}{more}" if ids else ""
    return OutcomeUnknown(
        f"The answer of PostgreSQL at {place} was lost ({text}): {verb}{of} may or may not have been carried out. "
        "Look up the jobs by id, or repeat the call with the same ids: that is safe.",
        verb=verb,
        job_ids=ids,
        engine=SCHEME,
    )


def _of_server(
    error: asyncpg.PostgresError, command: Command[Any], place: str, verb: str, holders: str
) -> HoldfastError:
    """The error when the server refused a statement: it rolled back the transaction."""
    state, text = _sqlstate(error), _text(error)
    if (shared := of_other_session(error, place)) is not None:
        return shared
    if state.startswith(("22", "23", "54")) and state not in _RETRY_AT_ONCE:
        return InvalidArguments(
            f"PostgreSQL at {place} cannot store the values of this {verb}: {text}. Nothing was written."
        )
    if state == _LOCK_TIMEOUT and not isinstance(command, _RETRYING_COMMANDS):
        queue = _queue(command)
        return Busy(
            f"{verb} waited too long for a lock in queue {queue!r}: an open transaction holds the same "
            f"id, key or job. {holders}Nothing was written. Commit or roll back that transaction, then try again.",
            queue=queue,
            waited=LOCK_WAIT_S,
        )
    if state in _NO_SCHEMA:
        return SchemaMismatch(
            f"PostgreSQL at {place} does not have the tables of this version of Holdfast ({text}). "
            "Run: holdfast migrate",
            found="none or older",
            wanted="this version's",
            engine=SCHEME,
        )
    if state == _DISK_FULL:
        return StorageFull(
            f"The disk of PostgreSQL at {place} is full: {text}. Nothing was written, and stored jobs are safe. Free "
            "some space, then try again.",
            engine=SCHEME,
        )
    if state in _DAMAGED:
        return CorruptRecord(
            f"PostgreSQL at {place} found its data damaged during {verb}: {text}. Nothing was written. Restore a "
            "backup.",
            where=place,
            engine=SCHEME,
        )
    if state == _NOT_ALLOWED:
        return EngineError(
            f"The role that Holdfast uses at {place} may not do this: {text}. Nothing was written. Let the owner of "
            "the schema run: holdfast migrate --grant ROLE",
            engine=SCHEME,
        )
    if state in (_CANCELLED, _LOCK_TIMEOUT, _READ_ONLY) or state in _RETRY_AT_ONCE or state.startswith("53"):
        why = "This server is a standby, or is set to accept no writes. " if state == _READ_ONLY else ""
        return EngineUnavailable(
            f"PostgreSQL at {place} did not complete {verb}: {text}. {why}{holders}Nothing was written. Try again.",
            engine=SCHEME,
        )
    return EngineError(f"PostgreSQL at {place} refused {verb}: {text} ({state}). Nothing was written.", engine=SCHEME)


def _ids(command: Command[Any]) -> Iterable[str]:
    if isinstance(command, Enqueue):
        return [job.id for group in command.groups for job in group.jobs]
    return list(getattr(command, "ids", ()))


def _queue(command: Command[Any]) -> str:
    if isinstance(command, Enqueue):
        return next((job.queue for group in command.groups for job in group.jobs), "")
    return str(getattr(command, "queue", ""))
