"""What the server or the wire said, as an error of ours that says what happened and what to do.

The question that matters: is it certain that nothing was written? An error that the server sends for a statement means
that its transaction was rolled back. A wire that breaks after the request went out means nothing at all, unless the
server said before that it ends this session: then it has not committed.
"""

from collections.abc import Iterable
from typing import Any

import asyncpg

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
from holdfast.model.work import Disown, Exchange, Expired, ForgetWorker, Heartbeat, Renew

SCHEME = "postgresql"

FAILURES = (OSError, EOFError, asyncpg.PostgresError, asyncpg.InterfaceError, asyncpg.InternalClientError)
"""All that the driver raises when something goes wrong. (A timeout is an OSError.)"""

_AGAIN = frozenset({"40001", "40P01", "23505"})
"""Serialization failure, deadlock, lost a race for a new row: rolled back, and worth another try at once."""
_SESSION_ENDED = frozenset({"57P01", "57P04", "57P05"})
"""By an administrator, with its database, for being idle. The server says so between statements or in the middle of
one, never between a commit and its answer."""
_NO_SCHEMA = frozenset({"3F000", "42P01", "42883"})
_WRONG_LOGIN = frozenset({"28000", "28P01", "3D000"})
_READ_ONLY = "25006"
_CUT_SHORT = "57014"
_WORK = (Exchange, Renew, Expired, Disown, Heartbeat, ForgetWorker)
"""Verbs of workers, which ask again until they are answered. They must not hear of a lock as if it were a refusal."""


def may_try_again(error: BaseException, *, reads: bool, unknown: bool) -> bool:
    """Whether the same call may be made once more, at once."""
    if _state(error) in _AGAIN:
        return True
    return _broken(error) and (reads or not unknown) and not isinstance(error, TimeoutError | ValueError)


def undone(error: BaseException, *, shared: bool) -> bool:
    """Whether it is certain that the call that failed so, after it went out, has written nothing."""
    if _unsent(error):
        return True
    if not shared and _state(error.__cause__) in _SESSION_ENDED:
        return True
    return isinstance(error, asyncpg.PostgresError) and not _broken(error)


def _unsent(error: BaseException) -> bool:
    """The driver did not send it: the connection is closed, or has heard that it will be."""
    return isinstance(error, asyncpg.InterfaceError) or (
        isinstance(error, asyncpg.InternalClientError) and "cannot switch to state" in str(error)
    )


def ends_connection(error: asyncpg.PostgresError) -> bool:
    """Whether the connection is of no use after this error: the server closes it, or is not the one that we want. Or a
    call was cut short in the server, and may have left a lock of the session behind."""
    return _broken(error) or _state(error) in (_READ_ONLY, _CUT_SHORT)


def _broken(error: BaseException) -> bool:
    if isinstance(error, asyncpg.PostgresError):
        return _state(error).startswith(("57P", "08"))
    return isinstance(error, FAILURES)


def _state(error: BaseException | None) -> str:
    return getattr(error, "sqlstate", None) or ""


def _said(error: BaseException) -> str:
    """In one line, without the full stop."""
    lines = str(error).strip().splitlines()
    return lines[0].rstrip(".") if lines else type(error).__name__


def of_connecting(error: BaseException, place: str, *, trusted: bool = False) -> HoldfastError:
    """No connection could be made, so nothing was written. `trusted`: this address and login have worked before."""
    state, said = _state(error), _said(error)
    if isinstance(error, ValueError | asyncpg.InterfaceError) and not trusted:
        return ConfigError(f"The address of PostgreSQL at {place} cannot be used: {said}.", key="url")
    if state in _WRONG_LOGIN and not trusted:
        return ConfigError(f"PostgreSQL at {place} refused the login: {said}.", key="url")
    if state == "08P01" and "startup parameter" in said:
        return ConfigError(
            f"What answers at {place} is a proxy that shares sessions ({said}). Say `[postgres] pooled = true`.",
            key="postgres.pooled",
        )
    if state == "53300":
        said = f"{said}. Raise its max_connections, lower `[postgres] pool_size`, or put a pooler in between"
    return EngineUnavailable(f"PostgreSQL at {place} cannot be reached: {said}. Nothing was written.", engine=SCHEME)


def of_call(error: BaseException, command: Command[Any], place: str, *, reads: bool, unknown: bool) -> HoldfastError:
    """A call failed, for good. `unknown`: it may have taken effect all the same."""
    verb, said = type(command).__name__.lower(), _said(error)
    if isinstance(error, asyncpg.PostgresError) and not _broken(error):
        return _of_server(error, command, place, verb)
    if isinstance(error, ValueError):  # the driver's own: it could not even be encoded
        return InvalidArguments(f"{verb}: this cannot be stored: {said}. Nothing was written.")
    if reads or not unknown:
        went = "did not answer" if isinstance(error, TimeoutError) else "went away"
        return EngineUnavailable(
            f"PostgreSQL at {place} {went} during {verb}: {said}. Nothing was written.", engine=SCHEME
        )
    ids = tuple(_ids(command))
    more = f" and {len(ids) - 3} more" if len(ids) > 3 else ""
    of = f" of {', '.join(ids[:3])}{more}" if ids else ""
    return OutcomeUnknown(
        f"The answer of PostgreSQL at {place} was lost ({said}): {verb}{of} may or may not have happened. "
        "Look the jobs up by id, or repeat the call with the same ids: that is safe.",
        verb=verb,
        job_ids=ids,
        engine=SCHEME,
    )


def _of_server(error: asyncpg.PostgresError, command: Command[Any], place: str, verb: str) -> HoldfastError:
    """The server refused a statement: its transaction was rolled back."""
    state, said = _state(error), _said(error)
    match state[:2]:
        case "22" | "23" | "54" if state not in _AGAIN:
            return InvalidArguments(
                f"PostgreSQL at {place} cannot store what {verb} brought: {said}. Nothing was written."
            )
    if state == "55P03" and not isinstance(command, _WORK):
        queue = _queue(command)
        return Busy(
            f"{verb} waited too long for a lock in queue {queue!r}: a transaction that is still open holds the same "
            "id, key or job. Nothing was written. Commit or roll back that transaction, then try again.",
            queue=queue,
            waited=2.0,
        )
    if state in _NO_SCHEMA:
        return SchemaMismatch(
            f"PostgreSQL at {place} does not have the tables of this version of Holdfast ({said}). "
            "Run: holdfast migrate",
            found="none or older",
            wanted="this version's",
            engine=SCHEME,
        )
    if state == "53100":
        return StorageFull(
            f"PostgreSQL at {place} has no room: {said}. Nothing was written, what it holds is safe; make room and try "
            "again.",
            engine=SCHEME,
        )
    if state in ("XX001", "XX002"):
        return CorruptRecord(
            f"PostgreSQL at {place} found its data damaged during {verb}: {said}. Nothing was written. Restore a "
            "backup.",
            where=place,
            engine=SCHEME,
        )
    if state == "42501":
        return EngineError(
            f"The role that Holdfast uses at {place} may not do this: {said}. Nothing was written. Let the owner of "
            "the schema run: holdfast migrate --grant ROLE",
            engine=SCHEME,
        )
    if state in ("57014", "55P03", _READ_ONLY) or state in _AGAIN or state.startswith("53"):
        why = "This server is a standby, or was told to take no writes. " if state == _READ_ONLY else ""
        return EngineUnavailable(
            f"PostgreSQL at {place} gave up {verb}: {said}. {why}Nothing was written. Try again.", engine=SCHEME
        )
    return EngineError(f"PostgreSQL at {place} refused {verb}: {said} ({state}). Nothing was written.", engine=SCHEME)


def _ids(command: Command[Any]) -> Iterable[str]:
    if isinstance(command, Enqueue):
        return [job.id for group in command.groups for job in group.jobs]
    return list(getattr(command, "ids", ()))


def _queue(command: Command[Any]) -> str:
    if isinstance(command, Enqueue):
        return next((job.queue for group in command.groups for job in group.jobs), "")
    return str(getattr(command, "queue", ""))
