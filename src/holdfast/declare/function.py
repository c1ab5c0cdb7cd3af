"""Which functions can be tasks, and when a second function may take the place of the first."""

import builtins
import inspect
import sys
from collections.abc import Callable
from typing import Any

from holdfast.errors import InvalidOption
from holdfast.model.text import check_name


def name_of(function: Callable[..., Any]) -> str:
    """The name of its task, if the decorator gives none."""
    name = getattr(function, "__name__", None)
    if name is None or name == "<lambda>":
        raise InvalidOption("A task is a function with a name; give one to anything else with name=.", option="name")
    return check_name(name, "name")


def is_coroutine(function: Callable[..., Any]) -> bool:
    called = function if inspect.isroutine(function) else type(function).__call__
    return inspect.iscoroutinefunction(called)


def refuse_method(function: Any) -> None:
    """Refuse a function in the body of a class whose first parameter is the object or the class.

    A static or a bound method can be called without more, so it is accepted.
    """
    scope = getattr(function, "__qualname__", "").rpartition(".")[0]
    first = next(iter(inspect.signature(function).parameters), "") if inspect.isfunction(function) else ""
    in_class = bool(scope) and not scope.endswith("<locals>")
    if isinstance(function, classmethod) or (in_class and first in ("self", "cls")):
        raise InvalidOption(
            f"{function.__name__!r} is a method: a worker has no object to call it on. Make it a function, or a static "
            "method, and pass what it needs, such as a primary key.",
            option="function",
        )


def is_redefinition(earlier: Any, function: Any) -> bool:
    """True if a cell of a notebook, or a line of a shell, that defines this function was run again."""
    origin = getattr(function, "__module__", ""), getattr(function, "__qualname__", "")
    return _is_interactive() and origin == (getattr(earlier, "__module__", ""), getattr(earlier, "__qualname__", ""))


def _is_interactive() -> bool:
    """True in a Python shell, in IPython and in a notebook."""
    return hasattr(sys, "ps1") or hasattr(builtins, "__IPYTHON__")
