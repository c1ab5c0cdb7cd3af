"""The arguments that a task accepts: read from its function, and checked before anything is written.

The check decodes in the same way as the worker will: a call is encoded, and the bytes are decoded by the type hints. So
a call that is accepted here can be decoded there, as the declared types. An error names the parameter.

The hints are read when the task is declared. If a hint names something that is defined later in its module, the hints
are read at first use.
"""

import inspect
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from itertools import takewhile
from typing import Any, get_origin, get_type_hints

from holdfast.codec import Codec, JsonCodec, MsgpackCodec
from holdfast.context import Context
from holdfast.declare.advice import advice_on_argument
from holdfast.declare.envelope import (
    ABSENT,
    fitted,
    given_by_name,
    given_in_order,
    holds_model,
    plain,
    problem_with,
    shape,
    with_model_unions,
)
from holdfast.declare.lost_types import UNCHANGED, find_lost_type
from holdfast.errors import InvalidArguments, InvalidOption

Arguments = tuple[list[Any], dict[str, Any]]

_POSITIONAL = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
_KEYWORD = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
OUR_CODECS = (JsonCodec, MsgpackCodec)
"""They decode by type hints. A tuple: `isinstance` takes twice as long with a union."""
_ALWAYS_FIT = frozenset({bool, int, float, str})
"""A value of exactly this type fits: it need not be decoded to find out."""
_SIMPLE = _ALWAYS_FIT - {float}
"""The same, and every such value can be stored. A float may be no number."""
DOES_NOT_FIT = "The data does not fit the declared type: "
"""The start of a codec's error message about this."""
DISCRIMINATE = "Use plain data, one model, or a union with a discriminator: Annotated[A | B, Field(discriminator=...)]."
_CONTEXT = re.compile(r"(\w+\.)*Context(\[.*\])?")
_ARGUMENT = re.compile(r"\[0\]\[(?P<index>\d+)\](?P<rest>.*)|\[1\]\.(?P<name>[^.\[]+)(?P<inside>.*)", re.DOTALL)


class Signature:
    """The parameters of a task as callers see them: without the context."""

    def __init__(self, function: Callable[..., Any], task: str) -> None:
        self.task = task
        self._function = function
        parameters = list(inspect.signature(function).parameters.values())
        hints = _hints(function, task, must_resolve=False)
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
            hints = _hints(self._function, self.task, must_resolve=True)
            self._types = _Types(self._parameters, hints or {}, self.task)
        return self._types

    def encode(self, codec: Codec, args: Sequence[Any], kwargs: Mapping[str, Any]) -> bytes:
        """Encode the call. Raises InvalidArguments with the name of a parameter that does not fit."""
        self._check_names(len(args), kwargs)
        try:
            call: object = [args, kwargs]
            types = self._types or self.types
            if not kwargs and types.are_simple(args) and (type(codec) is JsonCodec or type(codec) is MsgpackCodec):
                simple = codec.encode_simple(call)  # not for a subclass, which may encode in another way
                if simple is not None:
                    return simple
            payload = codec.encode(plain(call) if types.models else call)
            if types.shape is None or types.models or not isinstance(codec, OUR_CODECS):
                decoded = self._read(payload, codec)
            else:
                decoded = codec.reread(payload, types.shape)
        except InvalidArguments as error:
            raise self._named(error) from None
        if types.untyped:
            self._check_untyped(types.untyped, decoded, args, kwargs)
        return payload

    def _check_untyped(
        self, untyped: Collection[str], decoded: Any, args: Sequence[Any], kwargs: Mapping[str, Any]
    ) -> None:
        """Refuse values for parameters without a type hint that the handler would get as another type."""
        is_struct = type(decoded) is not tuple
        for index, value in enumerate(args):
            if type(value) not in UNCHANGED:
                name = self._by_position[index] if index < len(self._by_position) else self._rest or ""
                if name in untyped:
                    self._refuse_lost_type(name, value, getattr(decoded.args, name) if is_struct else decoded[0][index])
        for name, value in kwargs.items():
            if type(value) not in UNCHANGED and (name if name in self._by_keyword else self._others) in untyped:
                self._refuse_lost_type(name, value, getattr(decoded.kwargs, name) if is_struct else decoded[1][name])

    def _refuse_lost_type(self, name: str, value: Any, decoded: Any) -> None:
        lost = find_lost_type(value, decoded)
        if lost is not None:
            raise self._refused(
                name + lost.place,
                f"refuses argument `{name}{lost.place}`: the handler would get {lost.given} as {lost.arrives}, "
                f"because `{name}` has no type hint",
                "Add the hint, or pass plain data.",
            )

    def decode(self, codec: Codec, payload: bytes) -> Arguments:
        """Decode a stored call. It may be for another version of the function, and then may not fit."""
        types = self._types or self.types
        try:
            if types.shape is None or types.models or not isinstance(codec, OUR_CODECS):
                call = self._read(payload, codec)
            else:
                call = codec.decode(payload, types.shape)
        except InvalidArguments as error:
            raise self._named(error) from None
        args, kwargs = call if type(call) is tuple else (given_in_order(call.args), given_by_name(call.kwargs))
        self._check_names(len(args), kwargs)
        return args, kwargs

    def _read(self, payload: bytes, codec: Codec) -> Any:
        """The call decoded by its type; its arguments if the function takes any number of them."""
        types = self._types or self.types
        if types.shape is None:
            return self._fitted_one_by_one(codec.decode(payload))
        if types.models or not isinstance(codec, OUR_CODECS):
            return fitted(codec.decode(payload), types.shape)
        return codec.decode(payload, types.shape)

    def _fitted_one_by_one(self, call: Any) -> Arguments:
        """Convert each argument by itself: for functions that take any number of arguments."""
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

    def fits(self, parameter: int | str, value: object) -> bool:
        """True if the value fits the parameter, or if there is no such parameter: the call then says so."""
        if isinstance(parameter, int):
            names = self._by_position
            name = names[parameter] if parameter < len(names) else self._rest
        else:
            name = parameter if parameter in self._by_keyword else self._others
        try:
            fitted(value, self.types.of.get(name or "", Any))
        except InvalidArguments:
            return False
        return True

    def _check_names(self, count: int, kwargs: Mapping[str, Any]) -> None:
        """Apply Python's rules for calls, before anything is written, and raise InvalidArguments."""
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
                advice = advice_on_argument(name, self._by_keyword, job_options())
                raise self._refused(name, f"has no parameter `{name}`", advice)
        for name in self.names:
            if name in needed and name not in kwargs:
                raise self._refused(name, f"misses argument `{name}`")

    def _refused(self, field: str, problem: str, advice: str = "") -> InvalidArguments:
        return InvalidArguments(f"Task {self.task!r} {problem}. {advice}".rstrip(), task=self.task, field=field)

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
        name = self._by_position[index] if index < len(self._by_position) else f"{self._rest}[{index}]"
        return f"{name}{found['rest']}"

    def normalised(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Arguments:
        """The call with as many positional arguments as possible, so that `f(1)` and `f(x=1)` are the same call."""
        positional, named = list(args), dict(kwargs)
        for name in self._by_position[len(args) :]:
            if name not in named:
                break
            positional.append(named.pop(name))
        return positional, named

    def bound(self, arguments: Arguments) -> dict[str, Any]:
        """Every parameter with its value, defaults included."""
        args, kwargs = arguments
        positional = len(self._by_position)
        values = {**self._defaults, **dict(zip(self._by_position, args, strict=False))}
        values |= {name: value for name, value in kwargs.items() if name in self._by_keyword}
        if self._rest is not None:
            values[self._rest] = args[positional:]
        if self._others is not None:
            values[self._others] = {name: value for name, value in kwargs.items() if name not in self._by_keyword}
        return values

    def decode_result(self, codec: Codec, data: bytes) -> Any:
        """Decode a stored result as the declared return type."""
        returns = self.types.returns
        if returns is ABSENT:
            return codec.decode(data)
        if self.types.models or not isinstance(codec, OUR_CODECS):
            return fitted(codec.decode(data), returns)
        return codec.decode(data, returns)

    def encode_result(self, codec: Codec, value: object) -> bytes:
        """Encode a result. Raises InvalidArguments if it would not be decoded as the declared return type."""
        types = self._types or self.types
        data = codec.encode(plain(value) if types.models else value)
        returns = types.returns
        if returns is not ABSENT and not (type(value) is returns and returns in _ALWAYS_FIT):
            self._check_result(codec, data, value)
        return data

    def _check_result(self, codec: Codec, data: bytes, value: object) -> None:
        returns = self.types.returns
        try:
            if self.types.models or not isinstance(codec, OUR_CODECS):
                fitted(codec.decode(data), returns)
            else:
                codec.reread(data, returns)
        except InvalidArguments as error:
            problem = str(error).removeprefix(DOES_NOT_FIT).rstrip(".")
            message = (
                f"Task {self.task!r} declares the result `{inspect.formatannotation(returns)}`, and its handler "
                f"returned a value of type {type(value).__qualname__}: {problem}. Correct one of them."
            )
            raise InvalidArguments(message, task=self.task, field=error.field) from None


class _Types:
    """The type hints of a function, prepared for decoding."""

    def __init__(self, parameters: list[inspect.Parameter], hints: Mapping[str, Any], task: str) -> None:
        self.of = {p.name: with_model_unions(_kind(hints.get(p.name, Any))) for p in parameters}
        for name, kind in self.of.items():
            _check_decodable(name, kind, task)
        self.untyped = frozenset(p.name for p in parameters if p.name not in hints)
        """Parameters without a type hint."""
        self.models = any(holds_model(kind) for kind in hints.values())
        self.returns = _returns(with_model_unions(hints.get("return", Any)))
        kinds = [self.of[p.name] for p in parameters if p.kind in _POSITIONAL]
        self._simple = list(takewhile(_SIMPLE.__contains__, kinds))
        """The types of the first positional parameters, up to one that is not simple."""
        self.shape: Any = None
        if not any(p.kind in (p.VAR_POSITIONAL, p.VAR_KEYWORD) for p in parameters):
            self.shape = shape(
                task,
                {p.name: self.of[p.name] for p in parameters if p.kind in _POSITIONAL},
                {p.name: self.of[p.name] for p in parameters if p.kind in _KEYWORD},
            )

    def are_simple(self, args: Sequence[Any]) -> bool:
        """True if each positional argument has exactly the declared type, and that is a simple one."""
        return list(map(type, args)) == self._simple[: len(args)]


def job_options() -> Collection[str]:
    """The names of the options of `using`."""
    from holdfast.declare.policy import UsingOptions  # it imports this module

    return UsingOptions.__annotations__


def _hints(function: Callable[..., Any], task: str, *, must_resolve: bool) -> dict[str, Any] | None:
    """The type hints, resolved. None: a hint names something that is not defined yet."""
    target = function if inspect.isroutine(function) else type(function).__call__
    try:
        return get_type_hints(target, include_extras=True)
    except NameError as error:
        if not must_resolve:
            return None
        message = f"A type hint of task {task!r} names {error.name!r}, which its module does not have. Define it there."
        raise InvalidOption(message, option="hints") from error


def _is_context(parameter: inspect.Parameter, hints: Mapping[str, Any] | None) -> bool:
    hint = parameter.annotation if hints is None else hints.get(parameter.name)
    if isinstance(hint, str):
        return _CONTEXT.fullmatch(hint) is not None
    return hint is Context or get_origin(hint) is Context


def _check_decodable(name: str, kind: Any, task: str) -> None:
    if problem := problem_with(kind):
        advice = DISCRIMINATE if holds_model(kind) else "Use plain data, or a tagged union."
        message = f"Parameter `{name}` of task {task!r} cannot be stored: {problem}. {advice}"
        raise InvalidOption(message, option=name)


def _kind(hint: Any) -> Any:
    return Any if hint is object else hint


def _returns(kind: Any) -> Any:
    """The declared return type if it can be decoded. `ABSENT`: return the result as it is stored."""
    undecodable = kind is Any or kind is object or kind is type(None) or problem_with(kind)
    return ABSENT if undecodable else kind


def _fitted_at(place: str, value: object, kind: Any) -> Any:
    try:
        return fitted(value, kind)
    except InvalidArguments as error:
        raise InvalidArguments(str(error), field=f"{place}{error.field}") from None


class OpenSignature(Signature):
    """The signature of a task whose code is in another program: it accepts any arguments; the worker checks them."""

    def __init__(self, task: str) -> None:
        super().__init__(_anything, task)


def _anything(*args: Any, **kwargs: Any) -> Any: ...
