"""What a queue or a pool takes: one payload of a declared type, checked before anything is written.

It is stored as the call of a task with one argument, so that workers, operators and other processes read it like any
other job. An error names the field that does not fit.
"""

import re
from collections.abc import Callable, Mapping
from datetime import datetime
from difflib import get_close_matches
from typing import Any, Generic, TypedDict, TypeVar

from holdfast.context import Context
from holdfast.core.connection import StoreConnection
from holdfast.declare.envelope import problem_with, with_fields, with_model_unions
from holdfast.declare.policy import Scope
from holdfast.declare.signature import DOES_NOT_FIT, Signature
from holdfast.draft import Draft
from holdfast.durations import Duration
from holdfast.errors import InvalidArguments, InvalidOption
from holdfast.model.produce import PoolPlace
from holdfast.model.text import check_name
from holdfast.task import Definition, Task

T = TypeVar("T")


class PoolOptions(TypedDict, total=False):
    """The keywords of `pool.enqueue` and `pool.draft`, besides `key`. They mean what they mean in `UsingOptions`."""

    id: str | None
    priority: int
    delay: Duration | None
    at: datetime | None
    expires: Duration | datetime | None
    unique_key: str | None
    unique_for: Scope | None
    metadata: Mapping[str, str] | None
    wait_for_room: Duration | None


class QueueOptions(PoolOptions, total=False):
    """The keywords of `queue.enqueue` and `queue.draft`. They mean what they mean in `UsingOptions`."""

    lane: str | None


PAYLOAD = "payload"
_MISSING = re.compile(r"missing required field `([^`]+)`")


class PayloadSignature(Signature):
    """The signature of `def handler(payload: kind)`, whatever the hints of the real handler are.

    `owner` is the subject of error messages: "Queue 'scans'".
    """

    def __init__(self, owner: str, task: str, kind: Any, *, takes_context: bool = False, returns: Any = Any) -> None:
        self._owner = owner
        self._check(kind)
        super().__init__(_function(kind, takes_context=takes_context, returns=returns), task)

    def _check(self, kind: Any) -> None:
        try:
            problem = problem_with(with_model_unions(kind))
        except NameError as error:
            problem = f"it names {error.name!r}, which its module does not have"
        if problem:
            message = f"{self._owner} cannot take this type of payload: {problem}. Use plain data, or a tagged union."
            raise InvalidOption(message, option=PAYLOAD)

    def _refused(self, field: str, problem: str, advice: str = "") -> InvalidArguments:
        return InvalidArguments(f"{self._owner} {problem}. {advice}".rstrip(), task=self.task, field=field)

    def _named(self, error: InvalidArguments) -> InvalidArguments:
        place = self._name_of(error.field).removeprefix(PAYLOAD).lstrip(".")
        problem = str(error).removeprefix(DOES_NOT_FIT).partition(" - at `$")[0]
        problem = problem.replace(f" at {error.field} ", " ", 1).rstrip(".")
        if missing := _MISSING.search(problem):
            place = f"{place}.{missing[1]}".lstrip(".")
        where = f"field `{place}` of the payload" if place else "the payload"
        return self._refused(place or PAYLOAD, f"refuses {where}: {problem}")


def _function(kind: Any, *, takes_context: bool, returns: Any) -> Callable[..., Any]:
    def alone(payload: Any) -> Any: ...

    def with_context(ctx: Any, payload: Any) -> Any: ...

    function: Callable[..., Any] = with_context if takes_context else alone
    context = {"ctx": Context} if takes_context else {}
    function.__annotations__ = {**context, PAYLOAD: kind, "return": returns}
    return function


class PayloadTask(Task[[T], Any], Generic[T]):
    """Turns the payloads of a queue or a pool into jobs. It has no function; a pool's handler is a task of its own.

    The task name of a bare payload is empty; that of a pool's payload is the pool's name.
    """

    def __init__(self, store: StoreConnection, owner: str, name: str, queue: str, kind: type[T]) -> None:
        super().__init__(Definition(store, name, PayloadSignature(owner, name, kind), {"queue": queue}))

    def decode(self, data: bytes, codec: str) -> T:
        """Decode a stored payload as the declared type."""
        (payload,), _ = self.decode_arguments(data, codec)
        decoded: T = payload
        return decoded


def chosen(given: Mapping[str, Any], allowed: type) -> dict[str, Any]:
    """The options of an enqueue, as `using` takes them. An option that is None counts as not given."""
    for option in given:
        if option not in allowed.__annotations__:
            near = get_close_matches(option, allowed.__annotations__, n=1)
            hint = f" Did you mean `{near[0]}`?" if near else ""
            raise InvalidOption(f"There is no option `{option}` here.{hint}", option=option)
    return {option: value for option, value in given.items() if value is not None}


def in_pool(draft: Draft[Any], place: PoolPlace) -> Draft[Any]:
    """The same draft, for a lane of the pool that the engine will choose."""
    if place.key is not None:
        check_name(place.key, "key")
    return Draft(with_fields(draft.job, pool=place), draft.task, wait_for_room_us=draft.wait_for_room_us)


def declare_depth_limits(store: StoreConnection, queue: str, max_depth: int | None, lane_max_depth: int | None) -> None:
    """Check and declare the depth limits that the code gives."""
    for option, given in (("max_depth", max_depth), ("lane_max_depth", lane_max_depth)):
        if given is not None and (type(given) is not int or given < 1):
            message = f"`{option}` must be a whole number from 1 on. Leave it out to use the configured limit."
            raise InvalidOption(message, option=option)
    store.limit_depth(queue, max_depth, lane_max_depth)
