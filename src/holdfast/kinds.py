"""A catalogue of work: named behaviours for demos, load tests, simulation and docs.

A kind says how long a run takes and how that time is spent, how often a job fails before its last run and with which
error, how it ends, and how large its payload and result are. All of it is computed from the kind, a key and the number
of the run: the same input gives the same behaviour every time, on every engine and in every process.

    >>> behave(KINDS["quick"], "order-7", attempt=1) == behave(KINDS["quick"], "order-7", attempt=9)
    True

Three functions are handlers; declare those that you need, and enqueue kinds by name:

    jobs.task(kinds.run)                                run.enqueue("flaky", "order-7")
    jobs.task(kinds.run_plain)                          run_plain.enqueue("cpu", "order-7")
    jobs.task(isolate="process")(kinds.run_crashing)    run_crashing.enqueue("segfaults", "order-7")

The last one ends the process that it runs in. It is meant for a child process, or for a worker that may die.
"""

import signal
from collections.abc import Iterator
from hashlib import blake2b
from typing import Any, Literal, NoReturn

from msgspec import Struct

from holdfast.context import Context
from holdfast.errors import Cancel, GiveUp, InvalidOption, Retry, Snooze
from holdfast.runtime import SystemRuntime, end_process

Form = Literal["async", "plain", "crash"]
"""Which handler runs a kind: `run`, `run_plain` or `run_crashing`."""
HOUR_S = 3_600.0
EXIT_CODE = 41
"""Of a process that the kind `exits` ends."""
_STEP_S = 0.02
"""A plain function looks this often whether it has to stop."""


class Kind(Struct, frozen=True, kw_only=True):
    """One behaviour."""

    name: str
    about: str
    """One line for people."""
    form: Form = "async"
    takes_s: float = 0.0
    """Seconds that a run lasts."""
    up_to_s: float = 0.0
    """Above `takes_s`: the run of a key lasts between the two, as a hash of the key decides."""
    slow_one_in: int = 0
    """Above 0: one key in this many lasts `up_to_s`, and all others `takes_s`."""
    first_run_s: float = 0.0
    """Above 0: the first run lasts this long instead."""
    failures: int = 0
    """How many runs of one job fail before the last one."""
    one_in: int = 1
    """Only one key in `one_in` fails, gives up or is cancelled; a hash of the key decides which."""
    error: str = "not_yet"
    """What a failing run raises: a name in `_errors`."""
    outcome: Literal["succeeds", "gives_up", "cancels"] = "succeeds"
    """How the last run ends."""
    snoozes: int = 0
    """How many times the job is snoozed before its first run that counts."""
    delay_s: float | None = None
    """A failing run asks for its next run, or a snooze for its end, after this many seconds."""
    payload_bytes: int = 0
    """`payload_of` makes a payload of this many bytes."""
    result: Literal["text", "none", "nested", "types", "unstorable"] = "text"
    result_bytes: int = 0
    """A result of text has at least this many bytes."""
    cpu_rounds: int = 0
    """Hashes that a run computes: work that needs the processor."""
    memory_bytes: int = 0
    """Memory that a run writes to and holds until its end."""
    steps: int = 0
    """A run reports its progress this many times."""
    blocks_loop: bool = False
    """An async run that does not await while it waits: all other handlers of the event loop stand still."""
    ends_process: Literal["", "by_exit", "by_signal"] = ""
    """How the first run ends its process."""
    checks_abort: bool = True
    """A plain run stops when it is aborted."""


class NotYet(ConnectionError):
    """The temporary failure of a kind: a later attempt succeeds."""


class Unprintable(Exception):
    """An error whose text cannot be made."""

    def __str__(self) -> str:
        raise ValueError("this error has no text")


KINDS = {
    kind.name: kind
    for kind in (
        # How long a run lasts
        Kind(name="quick", about="ends at once"),
        Kind(name="short", about="lasts 10 ms", takes_s=0.01),
        Kind(name="slow", about="lasts 200 ms", takes_s=0.2),
        Kind(name="varied", about="lasts 1 to 100 ms, by key", takes_s=0.001, up_to_s=0.1),
        Kind(
            name="long_tail", about="lasts 2 ms; one key in 50 lasts a second", takes_s=0.002, up_to_s=1, slow_one_in=50
        ),
        Kind(name="stuck", about="its first run lasts an hour: for timeouts and cancels", first_run_s=HOUR_S),
        # How a job ends
        Kind(name="flaky", about="one key in 20 fails once", failures=1, one_in=20),
        Kind(name="stubborn", about="fails three times, then succeeds", failures=3),
        Kind(name="endless", about="fails at every run, until its attempts are used up", failures=2**31),
        Kind(name="hopeless", about="gives up at its first run", outcome="gives_up"),
        Kind(name="bad_data", about="one key in 10 gives up, because of its data", outcome="gives_up", one_in=10),
        Kind(name="unwanted", about="cancels itself", outcome="cancels"),
        Kind(name="snoozing", about="is snoozed twice for 50 ms, then succeeds", snoozes=2, delay_s=0.05),
        Kind(name="rate_limited", about="asks for a retry after 50 ms, once", failures=1, error="retry", delay_s=0.05),
        # What a run raises
        Kind(name="wrong_value", about="raises ValueError once", failures=1, error="value"),
        Kind(name="missing_key", about="raises KeyError once", failures=1, error="key"),
        Kind(name="no_disk", about="raises OSError with an errno once", failures=1, error="os"),
        Kind(name="chained", about="raises an error that has a cause, once", failures=1, error="chained"),
        Kind(name="several_errors", about="raises an ExceptionGroup once", failures=1, error="group"),
        Kind(name="long_error", about="raises an error of 20,000 characters once", failures=1, error="long"),
        Kind(name="unprintable", about="raises an error whose str() fails, once", failures=1, error="unprintable"),
        Kind(name="system_exit", about="raises SystemExit once", failures=1, error="exit"),
        # Payloads and results
        Kind(name="large_payload", about="has a payload of 100 kB", payload_bytes=100_000),
        Kind(name="bulky", about="returns 100 kB", result_bytes=100_000),
        Kind(name="silent", about="returns None", result="none"),
        Kind(name="nested", about="returns a value that is 40 levels deep", result="nested"),
        Kind(name="all_types", about="returns every type of JSON, and text that is hard to encode", result="types"),
        Kind(name="unstorable", about="returns a value that cannot be stored: the job fails", result="unstorable"),
        # What a run uses
        Kind(name="reporting", about="reports its progress in 10 steps, within 50 ms", takes_s=0.05, steps=10),
        Kind(name="blocks_loop", about="blocks the event loop for 50 ms", takes_s=0.05, blocks_loop=True),
        Kind(name="blocking", about="sleeps 50 ms in a thread", form="plain", takes_s=0.05),
        Kind(
            name="unstoppable",
            about="its first run sleeps 2 s in a thread, and does not look whether it has to stop",
            form="plain",
            first_run_s=2,
            checks_abort=False,
        ),
        Kind(name="cpu", about="computes 20,000 hashes in a thread", form="plain", cpu_rounds=20_000),
        Kind(name="memory", about="writes to 50 MB of memory", form="plain", memory_bytes=50_000_000),
        # What ends its process: in a child process, or in a worker that may die
        Kind(
            name="exits",
            about="ENDS ITS PROCESS with exit code 41, at its first run",
            form="crash",
            ends_process="by_exit",
        ),
        Kind(
            name="segfaults",
            about="ENDS ITS PROCESS with SIGSEGV, at its first run",
            form="crash",
            ends_process="by_signal",
        ),
    )
}
"""The kinds by name."""


# --- What a run does, as a pure function ---


def behave(kind: Kind, key: str, *, attempt: int, leases: int | None = None) -> Any:
    """One run without its duration: return the result, or raise the error, of this kind for this key and attempt.

    `leases`: how many leases the job has had; by default as many as attempts. A snooze costs a lease and no attempt.
    """
    if (attempt if leases is None else leases) <= kind.snoozes:
        raise Snooze(delay=kind.delay_s or 0, reason=f"{kind.name} {key} waits")
    if attempt <= will_fail(kind, key):
        raise _error(kind, f"{kind.name} {key} fails on attempt {attempt} of {kind.failures}")
    if kind.outcome != "succeeds" and _is_chosen(kind, key):
        if kind.outcome == "gives_up":
            raise GiveUp(f"{kind.name} {key} never succeeds")
        raise Cancel(f"{kind.name} {key} is not wanted")
    return _result(kind, key)


def will_fail(kind: Kind, key: str) -> int:
    """How many runs of this job will fail."""
    return kind.failures if _is_chosen(kind, key) else 0


def duration_s(kind: Kind, key: str, *, attempt: int) -> float:
    """Seconds that this run lasts."""
    if attempt == 1 and kind.first_run_s:
        return kind.first_run_s
    if kind.slow_one_in:
        return kind.up_to_s if _hash(kind, key) % kind.slow_one_in == 0 else kind.takes_s
    if kind.up_to_s > kind.takes_s:
        return kind.takes_s + (kind.up_to_s - kind.takes_s) * (_hash(kind, key) % 1_000) / 1_000
    return kind.takes_s


def payload_of(kind: Kind, key: str) -> str:
    """Text for the third argument of a handler. Empty for most kinds."""
    return "".join(_words(f"{kind.name}:{key}", kind.payload_bytes))


def _is_chosen(kind: Kind, key: str) -> bool:
    return _hash(kind, key) % kind.one_in == 0


def _hash(kind: Kind, key: str) -> int:
    return int.from_bytes(blake2b(f"{kind.name}:{key}".encode(), digest_size=8).digest(), "big")


def _words(seed: str, size: int) -> Iterator[str]:
    """Text of this many bytes that compresses badly."""
    made = 0
    while made < size:
        word = blake2b(f"{seed}:{made}".encode(), digest_size=32).hexdigest()[: size - made]
        made += len(word)
        yield word


def _error(kind: Kind, text: str) -> BaseException:
    match kind.error:
        case "retry":
            return Retry(text, delay=kind.delay_s)
        case "value":
            return ValueError(text)
        case "key":
            return KeyError(text)
        case "os":
            return OSError(28, text, "/no/such/file")
        case "chained":
            error = RuntimeError(text)
            error.__cause__ = NotYet("the cause")
            return error
        case "group":
            return ExceptionGroup(text, [ValueError("one"), NotYet("two")])
        case "long":
            return RuntimeError((text + " äöü \x1b[31m ") * (20_000 // len(text)))
        case "unprintable":
            return Unprintable()
        case "exit":
            return SystemExit(text)
    return NotYet(text)


def _result(kind: Kind, key: str) -> Any:
    text = f"{kind.name}:{key}:{_hash(kind, key):016x}"
    match kind.result:
        case "none":
            return None
        case "nested":
            value: Any = text
            for level in range(40):
                value = {"level": value} if level % 2 else [value]
            return value
        case "types":
            return {
                "text": text + " \x00 \ud7ff 🙂 \u202e",
                "numbers": [0, -1, 2**53, 0.1, 1e300],
                "none": None,
                "yes": True,
            }
        case "unstorable":
            return complex(1, 2)
    return text + "·" * max(0, kind.result_bytes - len(text))


# --- Handlers ---


async def run(ctx: Context[Any], kind: str, key: str, payload: str = "") -> Any:
    """Run an async kind: a handler for `jobs.task`."""
    found = _find(kind, "async")
    for seconds in _parts_s(found, ctx, key):
        if found.blocks_loop:
            SystemRuntime().event().wait(seconds)
        elif seconds:
            await SystemRuntime().sleep(seconds)
    return behave(found, key, attempt=ctx.attempt, leases=ctx.fence)


def run_plain(ctx: Context[Any], kind: str, key: str, payload: str = "") -> Any:
    """Run a kind that blocks its thread: a handler for `jobs.task`."""
    found = _find(kind, "plain")
    held = bytearray(found.memory_bytes)
    held[::4096] = b"\1" * len(held[::4096])  # so that the pages are really there
    for seconds in _parts_s(found, ctx, key):
        _sleep(found, ctx, seconds)
    digest = key.encode()
    for _ in range(found.cpu_rounds):
        digest = blake2b(digest, digest_size=8).digest()
    return behave(found, key, attempt=ctx.attempt, leases=ctx.fence)


def run_crashing(ctx: Context[Any], kind: str, key: str) -> Any:
    """END THIS PROCESS at the first run of the job. For `isolate="process"`, or for a worker that may die."""
    found = _find(kind, "crash")
    if ctx.attempt == 1:
        _crash(found)
    return behave(found, key, attempt=ctx.attempt, leases=ctx.fence)


def _find(name: str, form: Form) -> Kind:
    kind = KINDS.get(name)
    if kind is None:
        raise GiveUp(f"There is no kind {name!r}. Kinds: {', '.join(KINDS)}.")
    if kind.form != form:
        handlers = {"async": "run", "plain": "run_plain", "crash": "run_crashing"}
        raise GiveUp(f"The kind {name!r} needs the handler kinds.{handlers[kind.form]}.")
    return kind


def _parts_s(kind: Kind, ctx: Context[Any], key: str) -> Iterator[float]:
    """The duration of the run, divided by the reports of its progress."""
    seconds = duration_s(kind, key, attempt=ctx.attempt)
    for step in range(kind.steps):
        ctx.progress(step / kind.steps, f"step {step}")
        yield seconds / kind.steps
    if not kind.steps:
        yield seconds


def _sleep(kind: Kind, ctx: Context[Any], seconds: float) -> None:
    clock = SystemRuntime()
    ends = clock.monotonic() + round(seconds * 1_000_000)
    while (left_s := (ends - clock.monotonic()) / 1_000_000) > 0:
        if kind.checks_abort:
            ctx.check()
        clock.event().wait(min(left_s, _STEP_S))


def _crash(kind: Kind) -> NoReturn:
    if kind.ends_process == "by_exit":
        end_process(EXIT_CODE)
    signal.raise_signal(signal.SIGSEGV)
    raise InvalidOption("This process ignores SIGSEGV.", option="kind")
