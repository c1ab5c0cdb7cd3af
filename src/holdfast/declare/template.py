"""Lanes and unique keys made from a call's arguments: a text with names in braces, or a function of them.

    @jobs.task(lane="customer:{customer_id}")

The names are checked when the task is declared, not at the first call. The task's author writes a template; it never
comes from data: a lane given at the call, with `using(lane=...)`, is used literally.
"""

from collections.abc import Callable, Collection
from string import Formatter
from typing import Any

from holdfast.declare.signature import Arguments, Signature
from holdfast.errors import InvalidArguments, InvalidOption
from holdfast.model.text import check_name

Source = str | Callable[..., str | None]


class Template:
    """`option` is the name of the decorator's parameter, for error messages."""

    def __init__(self, source: Source, option: str) -> None:
        if not isinstance(source, str) and not callable(source):
            raise InvalidOption(f"`{option}` must be a text or a function of the arguments.", option=option)
        self.source = source
        self.option = option
        self.fields = _fields(source, option) if isinstance(source, str) else []
        if isinstance(source, str) and not self.fields:
            check_name(source, option)

    def check(self, names: Collection[str]) -> None:
        """Refuse a name that is not a parameter of the task."""
        for field in self.fields:
            if field not in names:
                parameters = ", ".join(names) or "none"
                raise InvalidOption(
                    f"`{self.option}` names `{field}`, which is no parameter of the task. It has: {parameters}.",
                    option=self.option,
                )

    def render(self, signature: Signature, arguments: Arguments) -> str | None:
        """The lane or key of one call. If a function returns None, this call has none."""
        rendered = self._render(signature, arguments)
        return None if rendered is None else check_name(rendered, self.option)

    def _render(self, signature: Signature, arguments: Arguments) -> Any:
        if isinstance(self.source, str):
            if not self.fields:
                return self.source
            try:
                return self.source.format_map(signature.bound(arguments))
            except (LookupError, AttributeError, ValueError, TypeError) as error:
                message = f"`{self.option}` of task {signature.task!r} cannot be made from these arguments: {error!r}."
                raise InvalidArguments(message, task=signature.task, field=self.option) from error
        args, kwargs = arguments
        return self.source(*args, **kwargs)


def _fields(source: str, option: str) -> list[str]:
    try:
        parsed = [name for _, name, _, _ in Formatter().parse(source) if name is not None]
    except ValueError as error:
        raise InvalidOption(f"`{option}` is no template: {error}.", option=option) from error
    names = [name.partition(".")[0].partition("[")[0] for name in parsed]
    if not all(names):
        raise InvalidOption(f"`{option}` has empty braces; name the parameter in them.", option=option)
    return names
