"""The options `isolate` and `memory_limit`: which functions can run in a child process.

The child imports the module of the function and finds its task there. So the function is declared when the module is
imported, which one inside of another function is not.
"""

import sys
from collections.abc import Mapping
from types import FrameType
from typing import Any

from holdfast.errors import InvalidOption

MIN_MEMORY_BYTES = 32 << 20
"""The interpreter and Holdfast alone need about 25 MiB."""


def isolate_option(value: Any, option: str) -> str | None:
    if value not in (None, "process"):
        raise InvalidOption(f"`{option}` must be 'process' or None.", option=option)
    return None if value is None else "process"


def memory_limit_option(value: Any, option: str) -> int | None:
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int) or not MIN_MEMORY_BYTES <= value < 2**63:
        raise InvalidOption(
            f"`{option}` must be a whole number of bytes, at least {MIN_MEMORY_BYTES} (32 MiB). It counts all private "
            "memory of the process, that of the interpreter and of the imported modules, too.",
            option=option,
        )
    return int(value)


def check_isolation(name: str, function: Any, options: Mapping[str, Any]) -> None:
    """Refuse what cannot run in a child process, when the task is declared."""
    if options.get("isolate") is None:
        if options.get("memory_limit") is not None:
            message = f'Task {name!r} has a `memory_limit`, which needs isolate="process": threads share their memory.'
            raise InvalidOption(message, option="memory_limit")
        return
    if options.get("transaction"):
        raise InvalidOption(
            f"Task {name!r} cannot have `isolate` and `transaction`: its process has no access to the store.",
            option="isolate",
        )
    qualified = getattr(function, "__qualname__", "<")
    if "<" in qualified:  # <locals> or <lambda>
        raise InvalidOption(
            f"Task {name!r} is not a function at the top of a module, so its process could not import it. Define it "
            'there, with `def`, to use isolate="process".',
            option="isolate",
        )
    main = sys.modules.get("__main__")
    if function.__module__ == "__main__" and not (getattr(main, "__spec__", None) or _file_of(main)):
        raise InvalidOption(
            f"Task {name!r} is defined in an interactive session, which its process could not import. Put it into a "
            'module to use isolate="process".',
            option="isolate",
        )


def declaring_module() -> str:
    """The module that is being imported now: it declares the task, also if the function is one of a library.

    Empty if no module is being imported, as in a function that is called later.
    """
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        if frame.f_code.co_name == "<module>":
            return str(frame.f_globals.get("__name__") or "")
        frame = frame.f_back
    return ""


def _file_of(module: Any) -> str:
    """The file of the main module; empty in a shell, in a notebook and with `python -c`."""
    path = str(getattr(module, "__file__", None) or "")
    return "" if path.startswith("<") else path
