"""Makes docs/reference/python.md: every public name of the package with its signature and its docstring.

The page is made from the source (`python_sources.py`). A name that is missing here, or a member without a docstring, is
found by tests/docs/test_reference.py.
"""

import ast
import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from tools.python_sources import (
    Attribute,
    Definition,
    Method,
    class_page,
    doc_of,
    find,
    module,
    public_names,
    signature,
)

PAGE = Path(__file__).parents[1] / "docs/reference/python.md"

HEADER = """\
# Python

This page is generated from the source and its docstrings: `make reference`. The [guides](../../README.md#the-docs) show
how the parts are used together; the [command line](cli.md) has a page of its own.

**Sync and async.** `verb` blocks, `averb` is awaited; both have the same parameters. A blocking method on a running
event loop raises `BlockingCall`. Streams and blocks have one name for both: `for` and `async for`, `with` and
`async with`.

**Durations** (`Duration`) are seconds, a `timedelta`, or text such as `"30s"`, `"10m"`, `"2h"`, `"1d"`. Instants are
aware datetimes. Fields whose type is `Micros` or `Instant` are whole microseconds, an `Instant` since 1970 UTC.

**Values** are frozen: a copy of one moment. Read again to see what has changed.
"""


class Part(NamedTuple):
    """A section of the page. The names are in the order of the page; `names` empty: all public names of the module."""

    title: str
    module: str
    names: tuple[str, ...] = ()
    intro: str = ""


PARTS = (
    Part(
        "holdfast",
        "holdfast",
        (
            *("App", "Task", "Draft", "Handle", "Receipt", "Client", "Control"),
            *("Context", "AbortReason", "Middleware", "Next", "Worker"),
            *("Queue", "Lease", "Pool", "Lane"),
            *("Job", "JobState", "Attempt", "ErrorInfo", "Report", "CancelAnswer", "Why", "Obstacle"),
            *("CheckReport", "CheckProblem", "Misfit"),
            *("exponential", "linear", "fixed", "content_id", "Codec"),
        ),
        "`from holdfast import App, …`. `holdfast` also has the names of [holdfast.errors](#holdfasterrors).",
    ),
    Part(
        "Options",
        "holdfast.declare.handling",
        ("TaskFactory", "TaskOptions", "UsingOptions", "QueueOptions", "PoolOptions", "HandlerOptions"),
        "The keywords of decorators and of enqueues.",
    ),
    Part(
        "Values of other calls",
        "holdfast.app",
        (
            *("Manager", "EventStream", "Leases", "Page", "QueueStatus", "LaneStatus", "PoolSize", "PoolStatus"),
            *("PoolLaneStatus", "WorkerStatus", "Progress", "Reason", "AttemptOutcome", "Holder", "ObstacleKind"),
            *("JobExample", "Finding", "Level", "Setting", "SourceKind", "LeftJobs", "HarnessClock"),
        ),
        "What methods and attributes of the classes above return. Programs need not import these classes.",
    ),
    Part("holdfast.errors", "holdfast.errors"),
    Part("holdfast.events", "holdfast.events"),
    Part("holdfast.presets", "holdfast.presets"),
    Part("holdfast.codec", "holdfast.codec", ("JsonCodec", "MsgpackCodec"), "`App(codec=MsgpackCodec())`."),
    Part(
        "holdfast.telemetry.logs",
        "holdfast.telemetry.logs",
        ("JobFilter", "TextFormatter", "JsonFormatter"),
        "For the logging of your own program.",
    ),
    Part(
        "holdfast.isolation.child_error",
        "holdfast.isolation.child_error",
        ("ChildError",),
        "What async middleware of an isolated task gets.",
    ),
    Part("holdfast.testing", "holdfast.testing"),
    Part("holdfast.contrib.sqlalchemy", "holdfast.contrib.sqlalchemy", ("jobs_model", "JobRow")),
    Part("holdfast.django", "holdfast.django"),
    Part("holdfast.kinds", "holdfast.kinds"),
)

HOMES = {
    "TaskFactory": "holdfast.declare.factory",
    "TaskOptions": "holdfast.declare.policy",
    "UsingOptions": "holdfast.declare.policy",
    "QueueOptions": "holdfast.declare.payload",
    "PoolOptions": "holdfast.declare.payload",
    "Manager": "holdfast.manager",
    "EventStream": "holdfast.stream",
    "Leases": "holdfast.pull.leases",
    "Page": "holdfast.operate.searching",
    "PoolStatus": "holdfast.lanes",
    "PoolLaneStatus": "holdfast.lanes",
    "Reason": "holdfast.model.states",
    "AttemptOutcome": "holdfast.model.job",
    "Holder": "holdfast.core.obstacles",
    "ObstacleKind": "holdfast.core.obstacles",
    "JobExample": "holdfast.operate.checking",
    "Finding": "holdfast.model.findings",
    "Level": "holdfast.model.findings",
    "Setting": "holdfast.core.settings",
    "SourceKind": "holdfast.config",
    "LeftJobs": "holdfast.worker.until_empty",
    "HarnessClock": "holdfast.testing.harness_engine",
    "QueueStatus": "holdfast.views",
    "LaneStatus": "holdfast.views",
    "PoolSize": "holdfast.views",
    "WorkerStatus": "holdfast.views",
    "Progress": "holdfast.views",
}
"""Where the names of the second and the third part are defined."""

CONSTRUCTED = frozenset(
    {"App", "Retry", "Snooze", "GiveUp", "Cancel", "FakeClock", "FrozenRuntime", "Probe"},
)
"""Classes that users call. Of the others they get objects."""

WITH_EXAMPLE = frozenset({"App", "Queue", "Lease", "Pool", "Worker", "Harness"})
"""Classes whose module has an example in its docstring."""

HIDDEN = {
    "App": frozenset(
        {"runtime", "bus", "config", "flags", "url_conflict", "engine", "store_secrets", "import_modules", "swapped"}
    ),
    "Task": frozenset(
        {
            *("policy", "function", "declared_in", "middleware", "dead_letter_hooks", "decode_arguments", "fits"),
            *("encode_result", "decode_result", "transaction", "handle_of"),
        }
    ),
    "Draft": frozenset({"wait_for_room_us"}),
    "Handle": frozenset({"result_of", "decoded"}),
    "Worker": frozenset({"note_failure", "run_and_clean_up"}),
    "Manager": frozenset({"worker_arguments"}),
    "HarnessClock": frozenset({"on_advance"}),
    "FrozenRuntime": frozenset({"wall", "monotonic", "boot", "boot_id", "random", "token_bytes"}),
    "JsonCodec": frozenset({"encode"}),
    "JobFilter": frozenset({"filter"}),
    "TextFormatter": frozenset({"formatMessage"}),
    "JsonFormatter": frozenset({"format"}),
    "ChildError": frozenset({"outcome"}),
    "EngineError": frozenset({"standard"}),
    "OutcomeUnknown": frozenset({"found_by_reading"}),
    "Backend": frozenset({"check", "validate_task", "enqueue", "get_result"}),
    "HoldfastTask": frozenset({"declared_options", "using_options"}),
}
"""Members for other parts of the package, and those that Django calls."""


class Entry(NamedTuple):
    """A name on the page."""

    part: Part
    found: Definition

    @property
    def title(self) -> str:
        return self.found.name


def entries(part: Part) -> list[Entry]:
    """The names of a part, in the order of the page."""
    names = part.names or tuple(public_names(part.module))
    if part.module == "holdfast.errors":
        names = tuple(name for name in names if name in public_names("holdfast"))
    return [Entry(part, find(HOMES.get(name, part.module), name)) for name in names]


def make_page() -> str:
    """The text of the page."""
    body = "\n".join(_part(part) for part in PARTS)
    return "\n".join([HEADER, _contents(HEADER + body), body])


def _contents(page: str) -> str:
    links = dict(anchors(page))
    lines = []
    for part in PARTS:
        names = " · ".join(f"[{one.title}](#{links[_heading(one)]})" for one in entries(part))
        lines.append(f"**[{part.title}](#{links[part.title]})**: {names}\n")
    return "\n".join(lines)


def anchors(page: str) -> Iterator[tuple[str, str]]:
    """The headings of a page in Markdown, each with the name that links to it, as GitHub makes it."""
    seen: dict[str, int] = {}
    outside = re.sub(r"^```.*?^```$", "", page, flags=re.DOTALL | re.MULTILINE)
    for heading in re.findall(r"^#+ (.+)$", outside, re.MULTILINE):
        name = re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")
        count = seen[name] = seen.get(name, -1) + 1
        yield heading, f"{name}-{count}" if count else name


def _heading(one: Entry) -> str:
    """Two modules have a `HistoryLost` and an `UnknownTask`, so names outside `holdfast` have their module."""
    return (
        f"{one.part.module.removeprefix('holdfast.')}.{one.title}"
        if one.part.title.startswith("holdfast.")
        else one.title
    )


def _part(part: Part) -> str:
    intro = part.intro or markdown(ast.get_docstring(module(_doc_home(part)).tree) or "")
    return "\n".join([f"## {part.title}\n", f"{intro}\n", *(_entry(one) for one in entries(part))])


def _doc_home(part: Part) -> str:
    return {"holdfast.events": "holdfast.telemetry.events"}.get(part.module, part.module)


def _entry(one: Entry) -> str:
    return "\n".join([f"### {_heading(one)}\n", *_body(one.found)])


def _body(found: Definition) -> Iterator[str]:
    node = found.node
    if isinstance(node, ast.ClassDef):
        yield from _class(found)
    elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
        prefix = "async def " if isinstance(node, ast.AsyncFunctionDef) else "def "
        yield _code(f"{prefix}{found.name}{signature(found.module, node, bound=False)}")
        yield f"{markdown(doc_of(found))}\n"
    else:
        value = getattr(node, "value", None)
        assert value is not None
        text = found.module.cut(value)
        yield _code(f"{found.name} = {text}" if len(text) < 200 else found.name)
        yield f"{markdown(doc_of(found))}\n"


def _class(found: Definition) -> Iterator[str]:
    page = class_page(found, HIDDEN.get(found.name, frozenset()))
    bases = f"({', '.join(page.bases)})" if page.bases else ""
    if page.name in CONSTRUCTED and page.parameters:
        yield _code(f"class {page.name}{bases}\n\n{page.name}{page.parameters}")
    else:
        yield f"`class {page.name}{bases}`\n"
    yield f"{markdown(page.doc)}\n"
    if page.name in WITH_EXAMPLE:
        yield f"{_example(found)}\n"
    if page.attributes:
        yield "\n".join(_attribute(each) for each in page.attributes) + "\n"
    for method in page.methods:
        yield _method(page.name, method)


def _example(found: Definition) -> str:
    """The first example in the docstring of the module of a class."""
    blocks = [part for part in _parts(ast.get_docstring(found.module.tree) or "") if part.startswith("    ")]
    return _fenced(blocks[0])


def _attribute(attribute: Attribute) -> str:
    text = attribute.name
    if attribute.type:
        text += f": {attribute.type}"
    if attribute.default:
        text += f" = {attribute.default}"
    doc = " ".join(attribute.doc.split())
    return f"- `{text}`: {doc}" if doc else f"- `{text}`"


def _method(owner: str, method: Method) -> str:
    title = f"{owner}.{method.name}" + (f", {method.twin}" if method.twin else "")
    return "\n".join([f"#### {title}\n", _code(f"{method.name}{method.signature}"), f"{markdown(method.doc)}\n"])


def _code(text: str) -> str:
    return f"```python\n{text}\n```\n"


def markdown(doc: str) -> str:
    """A docstring as Markdown: its examples and drawings become blocks of code."""
    return "\n\n".join(_fenced(part) for part in _parts(doc))


def _parts(doc: str) -> list[str]:
    """Its paragraphs. Those that are indented, one after the other, are one part."""
    parts: list[str] = []
    for paragraph in doc.split("\n\n"):
        if paragraph.startswith("    ") and parts and parts[-1].startswith("    "):
            parts[-1] += f"\n\n{paragraph}"
        else:
            parts.append(paragraph)
    return parts


def _fenced(part: str) -> str:
    """A part that is indented, or is an example with a prompt, as a block of code."""
    text = "\n".join(line.removeprefix("    ") for line in part.split("\n")) if part.startswith("    ") else part
    if text.startswith(">>> "):
        return f"```pycon\n{text.rstrip()}\n```"
    return part if text is part else f"```{'python' if _is_python(text) else 'text'}\n{text.rstrip()}\n```"


def _is_python(text: str) -> bool:
    try:
        ast.parse(text)
    except SyntaxError:
        return False
    return True
