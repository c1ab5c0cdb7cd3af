"""Whether this process is the child of a worker that runs its isolated handlers. Such a process has no store.

The flag is set before any code of the user is imported, and is never reset. An App that is created afterwards is noted
here, because the child has to find the App that declares its task.
"""

from typing import Any

from holdfast.errors import Unsupported

_apps: list[Any] = []
_is_child = False


def enter() -> None:
    """From now on this process is such a child."""
    global _is_child  # noqa: PLW0603 - there is one process
    _is_child = True


def note_app(app: Any) -> None:
    """An App was created."""
    if _is_child:
        _apps.append(app)


def apps() -> tuple[Any, ...]:
    """The Apps of this child, in the order in which they were created."""
    return tuple(_apps)


def refuse_store() -> None:
    """Raise `Unsupported` in such a child."""
    if _is_child:
        raise Unsupported(
            'A handler with isolate="process" has no access to the store: it cannot enqueue, wait for jobs, complete '
            "its job in a transaction or start a worker. Return what is to be done, and let async middleware or a task "
            "without `isolate` do it. If this happens while a module is imported, put the call under "
            '`if __name__ == "__main__":`.',
            capability="store",
            engine="isolated process",
        )
