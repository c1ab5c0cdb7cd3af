"""What a task may be called with, read from its function, and checked before anything is written.

The check is the decoding that the worker will do: a call is encoded, and the bytes are decoded against the type hints.
So what is accepted here arrives there, as the declared types. A refusal names the parameter.

Hints are read when the task is declared. Where one names something that is defined further down in its module, they are
read at first use instead.
"""

import inspect
import re
from collections.abc import Callable, Mapping, Sequence
from difflib import get_close_matches
from typing import Any, get_args, get_origin, get_type_hints

from holdfast.codec import Codec, JsonCodec, MsgpackCodec
from holdfast.context import Context
from holdfast.declare.envelope import (
    ABSENT,
    fitted,
    given_by_name,
    given_in_order,
    is_model,
    plain,
    problem_with,
    shape,
)
from holdfast.errors import InvalidArguments, InvalidOption

Arguments = tuple[list[Any], dict[str, Any]]

_POSITIONAL = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
_KEYWORD = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
DOES_NOT_FIT = "The data does not fit the declared type: "
"""How a codec begins such a message."""
_CONTEXT = re.compile(r"(\w+\.)*Context(\[.*\])?")
_ARGUMENT = re.compile(r"\[0\]\[(?P<index>\d+)\](?P<rest>.*)|\[1\]\.(?P<name>[^.\[]+)(?P<inside>.*)", re.DOTALL)


class Signature:
    """The parameters of a task as its callers see them: without the context."""

    def __init__(self, function: Callable[..., Any], task: str) -> None:
        self.task = task
        self._function = function
        parameters = list(inspect.signature(function).parameters.values())
        hints = _hints(function, task, last_chance=False)
        marked = [p for p in parameters if _is_context(p, hints)]
        self.takes_context = bool(parameters) and parameters[:1] == marked
        if marked and not self.takes_context:
            raise InvalidOption(
                f"Parameter `{marked[0].name}` of task {task!r} is a Context; only the first parameter may be one.",
                option=marked[0].name,
            )
        self._parameters = parameters[1:] if self.takes_context else parameters
        self._by_position = [p.name for p in self._parameters if p.kind in _POSITIONAL]
        self._by_keyword = {p.name for p in self._parameters if p.kind in _KEYWORD}
        self._rest = next((p.name for p in self._parameters if p.kind is p.VAR_POSITIONAL), None)
        self._others = next((p.name for p in self._parameters if p.kind is p.VAR_KEYWORD), None)
        self._defaults = {p.name: p.default for p in self._parameters if p.default is not p.empty}
        self._needed = [
            {p.name for p in self._parameters if p.name in self._required() and p.name not in self._by_position[:count]}
            for count in range(len(self._by_position) + 1)
        ]
        self._types: _Types | None = None
        if hints is not None:
            self._types = _Types(self._parameters, hints, task)

    def _required(self) -> set[str]:
        named = {*self._by_position, *self._by_keyword}
        return named - self._defaults.keys()

    @property
    def names(self) -> list[str]:
        """The parameters a template may name."""
        return [p.name for p in self._parameters]

    @property
    def types(self) -> "_Types":
        if self._types is None:
            hints = _hints(self._function, self.task, last_chance=True)
            self._types = _Types(self._parameters, hints or {}, self.task)
        return self._types

    def encode(self, codec: Codec, args: Sequence[Any], kwargs: Mapping[str, Any]) -> bytes:
        """The call as bytes that the worker can read. InvalidArguments names the parameter that does not fit."""
        self._check_names(len(args), kwargs)
        try:
            call: object = [args, kwargs]
            payload = codec.encode(plain(call) if self.types.models else call)
            types = self.types
            if types.shape is None or types.models or not isinstance(codec, JsonCodec | MsgpackCodec):
                self._read(payload, codec)
            else:
                codec.reread(payload, types.shape)
        except InvalidArguments as error:
            raise self._named(error) from None
        return payload

    def decode(self, codec: Codec, payload: bytes) -> Arguments:
        """The stored call. It may have been made for another version of the function, and then may not fit."""
        try:
            call = self._read(payload, codec)
        except InvalidArguments as error:
            raise self._named(error) from None
        args, kwargs = call if isinstance(call, tuple) else (given_in_order(call.args), given_by_name(call.kwargs))
        self._check_names(len(args), kwargs)
        return args, kwargs

    def _read(self, payload: bytes, codec: Codec) -> Any:
        """The call in its shape; where it has none, its arguments."""
        types = self.types
        if types.shape is None:
            return self._fitted_one_by_one(codec.decode(payload))
        if types.models or not isinstance(codec, JsonCodec | MsgpackCodec):
            return fitted(codec.decode(payload), types.shape)
        return codec.decode(payload, types.shape)

    def _fitted_one_by_one(self, call: Any) -> Arguments:
        """For functions that take any number of arguments."""
        plain_args, plain_kwargs = fitted(call, tuple[list[Any], dict[str, Any]])
        of = self.types.of
        rest = of.get(self._rest, Any) if self._rest else Any
        others = of.get(self._others, Any) if self._others else Any
        args = [
            _fitted_at(f"[0][{index}]", value, of[self._by_position[index]] if index < len(self._by_position) else rest)
            for index, value in enumerate(plain_args)
        ]
        kwargs = {
            name: _fitted_at(f"[1].{name}", value, of[name] if name in self._by_keyword else others)
            for name, value in plain_kwargs.items()
        }
        return args, kwargs

    def _check_names(self, count: int, kwargs: Mapping[str, Any]) -> None:
        """Python's own rules of calling, but before the write and with our error."""
        if count > len(self._by_position):
            if self._rest is None:
                raise self._refused("", f"takes {len(self._by_position)} positional arguments, {count} were given")
            count = len(self._by_position)
        needed = self._needed[count]
        if not kwargs and not needed:
            return
        for name in kwargs:
            if name in self._by_keyword:
                if name in self._by_position[:count]:
                    raise self._refused(name, f"got argument `{name}` twice")
            elif self._others is None:
                near = get_close_matches(name, self._by_keyword, n=1)
                hint = f" (did you mean `{near[0]}`?)" if near else ""
                raise self._refused(name, f"has no parameter `{name}`{hint}")
        for name in self.names:
            if name in needed and name not in kwargs:
                raise self._refused(name, f"misses argument `{name}`")

    def _refused(self, field: str, problem: str) -> InvalidArguments:
        return InvalidArguments(f"Task {self.task!r} {problem}.", task=self.task, field=field)

    def _named(self, error: InvalidArguments) -> InvalidArguments:
        """The error with the parameter's name in place of its position in the call."""
        field = self._name_of(error.field)
        problem = str(error).removeprefix(DOES_NOT_FIT).partition(" - at `$")[0]
        problem = problem.replace(f" at {error.field} ", " ", 1).rstrip(".")
        return self._refused(field, f"refuses argument `{field}`: {problem}" if field else f"refuses: {problem}")

    def _name_of(self, place: str) -> str:
        found = _ARGUMENT.match(place)
        if found is None:
            return ""
        if found["name"]:
            return f"{found['name']}{found['inside']}"
        index = int(found["index"])
        known = self._by_position[index] if index < len(self._by_position) else f"{self._rest}[{index}]"
        return f"{known}{found['rest']}"

    def in_one_form(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Arguments:
        """The call with as much of it by position as can be: `f(1)` and `f(x=1)` are one call."""
        positional, named = list(args), dict(kwargs)
        for name in self._by_position[len(args) :]:
            if name not in named:
                break
            positional.append(named.pop(name))
        return positional, named

    def bound(self, arguments: Arguments) -> dict[str, Any]:
        """Every parameter with its value, defaults included."""
        args, kwargs = arguments
        known = len(self._by_position)
        values = {**self._defaults, **dict(zip(self._by_position, args, strict=False))}
        values |= {name: value for name, value in kwargs.items() if name in self._by_keyword}
        if self._rest is not None:
            values[self._rest] = args[known:]
        if self._others is not None:
            values[self._others] = {name: value for name, value in kwargs.items() if name not in self._by_keyword}
        return values

    def decode_result(self, codec: Codec, data: bytes) -> Any:
        """The stored result, as the declared return type."""
        returns = self.types.returns
        if returns is ABSENT:
            return codec.decode(data)
        if self.types.models or not isinstance(codec, JsonCodec | MsgpackCodec):
            return fitted(codec.decode(data), returns)
        return codec.decode(data, returns)

    def encode_result(self, codec: Codec, value: object) -> bytes:
        return codec.encode(plain(value) if self.types.models else value)


class _Types:
    """The type hints of a function, ready to decode with."""

    def __init__(self, parameters: list[inspect.Parameter], hints: Mapping[str, Any], task: str) -> None:
        self.of = {p.name: Any if hints.get(p.name, Any) is object else hints.get(p.name, Any) for p in parameters}
        for name, kind in self.of.items():
            _check_decodable(name, kind, task)
        self.models = any(_holds_model(kind) for kind in hints.values())
        self.returns = _returns(hints.get("return", Any))
        self.shape: Any = None
        if not any(p.kind in (p.VAR_POSITIONAL, p.VAR_KEYWORD) for p in parameters):
            self.shape = shape(
                task,
                {p.name: self.of[p.name] for p in parameters if p.kind in _POSITIONAL},
                {p.name: self.of[p.name] for p in parameters if p.kind in _KEYWORD},
            )


def _hints(function: Callable[..., Any], task: str, *, last_chance: bool) -> dict[str, Any] | None:
    """The type hints, resolved. None where one of them names something that is not there yet."""
    target = function if inspect.isroutine(function) else type(function).__call__
    try:
        return get_type_hints(target, include_extras=True)
    except NameError as error:
        if not last_chance:
            return None
        said = f"A type hint of task {task!r} names {error.name!r}, which its module does not have. Define it there."
        raise InvalidOption(said, option="hints") from error


def _is_context(parameter: inspect.Parameter, hints: Mapping[str, Any] | None) -> bool:
    hint = parameter.annotation if hints is None else hints.get(parameter.name)
    if isinstance(hint, str):
        return _CONTEXT.fullmatch(hint) is not None
    return hint is Context or get_origin(hint) is Context


def _check_decodable(name: str, kind: Any, task: str) -> None:
    if problem := problem_with(kind):
        said = f"Parameter `{name}` of task {task!r} cannot be stored: {problem}. Use plain data, or a tagged union."
        raise InvalidOption(said, option=name)


def _returns(kind: Any) -> Any:
    """The declared return type where it can be decoded; `ABSENT`: take the result as it is stored."""
    taken_as_stored = kind is Any or kind is object or kind is type(None) or problem_with(kind)
    return ABSENT if taken_as_stored else kind


def _holds_model(kind: Any) -> bool:
    return is_model(kind) or any(_holds_model(part) for part in get_args(kind))


def _fitted_at(place: str, value: object, kind: Any) -> Any:
    try:
        return fitted(value, kind)
    except InvalidArguments as error:
        raise InvalidArguments(str(error), field=f"{place}{error.field}") from None


class OpenSignature(Signature):
    """Of a task whose code lives elsewhere: everything goes, the worker will check."""

    def __init__(self, task: str) -> None:
        super().__init__(_anything, task)


def _anything(*args: Any, **kwargs: Any) -> Any: ...
