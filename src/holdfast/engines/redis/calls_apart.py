"""Several calls for one command, each on the root of another queue, and what their failures mean together.

The calls run at the same time. If some were carried out and others were not, no single error of theirs is true for the
command: `EngineUnavailable`, `HistoryLost` and `StorageFull` say that nothing has happened. Then the command's outcome
is unknown, and the caller sends it again: commands that were carried out are recognised.
"""

import asyncio
from collections.abc import Awaitable, Iterable, Mapping, Sequence
from functools import lru_cache, partial
from typing import Any, Generic, Protocol, TypeVar

from holdfast.engines.redis.roots import root_of_no_queue, root_of_queue
from holdfast.errors import EngineUnavailable, HistoryLost, OutcomeUnknown, StorageFull
from holdfast.model.command import A, Command
from holdfast.model.instants import At

T = TypeVar("T")

MOST_CALLS_AT_ONCE = 64
"""Of one command that is about all queues: more would only wait in the servers, before the calls of others."""

ROOTS_REMEMBERED = 1_000  # to make one takes two microseconds

_NOTHING_WRITTEN = (EngineUnavailable, HistoryLost, StorageFull)
"""What they say of one queue is not true for a command that was carried out in others."""


PASSING = (EngineUnavailable, HistoryLost)
"""Errors of one queue after which a command may go on with the others: nothing was written in this queue, and a later
call may succeed. (The loss of a history is reported by its event.)"""


class PerformOnRoot(Protocol):
    """Carries out a command under one root. `first_rank`: of the first lease of its claim."""

    def __call__(self, root: str, command: Command[A], *, first_rank: int = 0) -> Awaitable[A]: ...


class CallsApart:
    """Calls on the roots of queues."""

    def __init__(self, namespace: str, perform: PerformOnRoot) -> None:
        self._root_of_no_queue = root_of_no_queue(namespace)
        self._root_of = lru_cache(ROOTS_REMEMBERED)(partial(root_of_queue, namespace))
        self._perform = perform

    def on_queue(self, queue: str, command: Command[A], first_rank: int = 0) -> Awaitable[A]:
        return self._perform(self._root_of(queue), command, first_rank=first_rank)

    def on_no_queue(self, command: Command[A]) -> Awaitable[A]:
        return self._perform(self._root_of_no_queue, command)

    async def on_each(self, commands: Mapping[str, Command[A]]) -> "Parts[A]":
        """Carry out one command in each queue, all of them whatever happens to the others."""
        parts = list(commands.items())
        answers: dict[str, A] = {}
        errors: dict[str, Exception] = {}
        for first in range(0, len(parts), MOST_CALLS_AT_ONCE):
            some = parts[first : first + MOST_CALLS_AT_ONCE]
            outcomes = await in_parallel([self.on_queue(queue, command) for queue, command in some])
            for (queue, _), outcome in zip(some, outcomes, strict=True):
                if isinstance(outcome, Exception):
                    errors[queue] = outcome
                else:
                    answers[queue] = outcome
        return Parts(answers, errors)


class Parts(Generic[T]):
    """The answers and the errors of calls, by queue."""

    def __init__(self, answers: Mapping[str, T], errors: Mapping[str, Exception]) -> None:
        self.answers = answers
        self.errors = errors

    def all_or_raise(self, verb: str, *, reads: bool = False) -> Mapping[str, T]:
        """The answers, if there is no error. Else raise what is true for the whole command."""
        if self.errors:
            raise self._error(verb, reads=reads)
        return self.answers

    def some_or_raise(self, verb: str, passing: tuple[type[Exception], ...] = PASSING) -> Mapping[str, T]:
        """The answers, if there are any and the errors will pass. Else raise what is true for the whole command."""
        others = any(not isinstance(error, passing) for error in self.errors.values())
        if self.errors and (others or not self.answers):
            raise self._error(verb, reads=False)
        return self.answers

    def _error(self, verb: str, *, reads: bool) -> Exception:
        errors = list(self.errors.values())
        for error in errors:
            if not isinstance(error, _NOTHING_WRITTEN):
                return error
        first = next((error for error in errors if isinstance(error, HistoryLost)), errors[0])
        if reads or not self.answers:
            return first
        queues = ", ".join(map(repr, list(self.errors)[:3]))
        unknown = OutcomeUnknown(
            f"{verb} was carried out for some queues, but not for {queues}: {first} Repeat the call with the same "
            "ids: that is safe.",
            verb=verb,
            engine=first.engine if isinstance(first, _NOTHING_WRITTEN) else "",
        )
        unknown.__cause__ = first
        return unknown


async def in_parallel(calls: Sequence[Awaitable[T]]) -> list[T | Exception]:
    """The result or the error of each call, in order. If the caller is cancelled, so are the calls."""
    if len(calls) == 1:
        try:
            return [await calls[0]]
        except Exception as error:
            return [error]
    outcomes: list[Any] = await asyncio.gather(*calls, return_exceptions=True)
    for outcome in outcomes:
        if isinstance(outcome, BaseException) and not isinstance(outcome, Exception):
            raise outcome
    return outcomes


def latest(times: Iterable[At]) -> At:
    """The time of an answer that was joined from several."""
    first, *others = times
    for other in others:
        first = first.after(other)
    return first
