"""Attempts of isolated tasks: the handler runs in a child process, all else in the worker.

An abort is first a request: `ctx.aborted` is true in the child, and an async handler is cancelled. If the child has not
answered a short time later, it is killed. If the lease is lost, it is killed at once, because another worker may run
the job by now. A handler that answers in time ends as it would in the worker.
"""

import asyncio
import logging
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from holdfast.context import AbortReason
from holdfast.errors import Interrupt, Retry, Snooze, Unsupported
from holdfast.isolation.child_error import ChildError
from holdfast.isolation.children import KILLED_TIMEOUT_S, HandlerProcesses
from holdfast.isolation.environment import WITHHELD, WITHHELD_ADVICE, child_environment
from holdfast.isolation.frames import (
    CallAnswer,
    CallInterrupted,
    CallRaised,
    CallRefused,
    CallReturned,
    ChildReady,
    ChildSetup,
    TaskPlace,
)
from holdfast.isolation.process import HandlerProcess, ProcessGone
from holdfast.isolation.running import INTERRUPTS
from holdfast.isolation.surrounds import is_surround, surround_name
from holdfast.model.instants import SECOND, Seconds
from holdfast.model.outcome import DoesNotFit, GaveUp, NotRetryable, ProcessDied, Raised
from holdfast.model.retry import Computed, Listed
from holdfast.model.states import Reason
from holdfast.model.text import ErrorInfo
from holdfast.process_death import broken_info, died_info
from holdfast.runtime import Runtime, call_later
from holdfast.telemetry.logs import OWN_LOGGER, JsonFormatter, TextFormatter
from holdfast.worker.attempt import LeasedAttempt
from holdfast.worker.protocols import HandledTask, WorkerApp
from holdfast.worker.slots import Slots

KILL_AFTER_S: Seconds = 1.0
"""After a request to stop, the child has this long. Less than the worker waits for aborted handlers when it stops."""
MAIN = "__main__"
NO_PLACE = ErrorInfo("asyncio.exceptions.CancelledError", "", "")
"""For a handler that was killed: where it was is not known."""


class EncodedResult(NamedTuple):
    """A result as the child has encoded it. It is stored as it is."""

    data: bytes


class WorkerChildren:
    """What the children of a worker are started with."""

    def __init__(self, app: WorkerApp, worker: str) -> None:
        self._app = app
        self._worker = worker

    def environment(self) -> Mapping[str, str]:
        addresses, secret_variables = self._app.store_secrets
        return child_environment(os.environ, addresses, secret_variables)

    def setup(self, task: TaskPlace, memory_limit: int | None) -> ChildSetup:
        app, main = self._app, sys.modules[MAIN]
        surrounds = [one for one in app.middlewares if is_surround(one)]
        definers: list[Any] = [*surrounds, *([] if app.lifespan is None else [app.lifespan])]
        spec = getattr(main, "__spec__", None)
        level, style = _log_options()
        return ChildSetup(
            worker=self._worker,
            task=task,
            path=list(sys.path),
            arguments=list(sys.argv),
            main_module="" if spec is None else spec.name,
            main_path=os.path.abspath(getattr(main, "__file__", None) or ""),
            modules=tuple(dict.fromkeys(_module_of(one) for one in definers)),
            surrounds=tuple(map(surround_name, surrounds)),
            max_payload_bytes=app.config.limits.payload,
            max_result_bytes=app.config.limits.result,
            memory_limit=memory_limit,
            log_level=level,
            log_style=style,
        )


class IsolatedHandlers:
    """The isolated handlers of a worker, and the child processes in which they run."""

    def __init__(
        self,
        app: WorkerApp,
        worker: str,
        slots: Slots,
        watch_deadline: Callable[[LeasedAttempt], None],
        enabled: bool,
    ) -> None:
        """`enabled` is False in the test kit: there all handlers run in its process."""
        self._app = app
        self._watch_deadline = watch_deadline
        self._enabled = enabled
        self._processes = HandlerProcesses(app.runtime, WorkerChildren(app, worker), lambda: slots.size)

    def handler_of(self, task: HandledTask) -> "IsolatedHandler | None":
        """How the worker runs this task. None: like any other."""
        if not self._enabled or not task.policy.isolate:
            return None
        if sys.platform == "win32":
            message = f'Task {task.policy.name!r} has isolate="process", which Windows does not support. Use WSL 2.'
            raise Unsupported(message, capability="isolate", engine="Windows")
        has_onions = not all(map(is_surround, (*self._app.middlewares, *task.middleware)))
        return IsolatedHandler(task, self._processes, self._app.runtime, self._watch_deadline, decodes=has_onions)

    async def kill(self) -> None:
        """Kill the children that run a handler. The idle ones begin to end."""
        await self._processes.kill_busy()

    async def end(self) -> None:
        """No child is left afterwards."""
        await self._processes.end_all()


def _module_of(definer: Any) -> str:
    return str(getattr(definer, "__module__", None) or type(definer).__module__)


def _log_options() -> tuple[str, str]:
    """Level and style of the log lines of the children: those of `holdfast worker`, else warnings as text."""
    formatter = None if logging.lastResort is None else logging.lastResort.formatter
    if isinstance(formatter, JsonFormatter | TextFormatter):
        level = logging.getLogger(OWN_LOGGER).getEffectiveLevel()
        return logging.getLevelName(level).lower(), "json" if isinstance(formatter, JsonFormatter) else "text"
    return "warning", "text"


class IsolatedHandler:
    """Runs the handler of one task in children of the worker. The innermost part of its plan."""

    def __init__(
        self,
        task: HandledTask,
        processes: HandlerProcesses,
        runtime: Runtime,
        watch_deadline: Callable[[LeasedAttempt], None],
        *,
        decodes: bool,
    ) -> None:
        declared: Any = task  # only a task of an App can be isolated; others have no such options
        self._task = declared
        self._place = TaskPlace(task.policy.name, _module_of(task.function), declared.declared_in)
        self._memory_limit = task.policy.memory_limit
        self._processes = processes
        self._runtime = runtime
        self._watch_deadline = watch_deadline
        self._decodes = decodes
        """Async middleware gets the result as a value. Without it the bytes are enough."""

    def decode(self, payload: bytes, codec: str) -> tuple[Sequence[Any], Mapping[str, Any]]:
        """The child decodes the payload."""
        return (), {}

    def encode(self, value: Any, codec: str) -> bytes:
        """Bytes of what the handler, or its middleware, returned."""
        if type(value) is EncodedResult:
            return value.data
        encoded: bytes = self._task.encode_result(value, codec)
        return encoded

    async def call(self, attempt: LeasedAttempt, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        attempt.began_at = None  # the start of a child is not a part of the timeout
        try:
            process = await self._processes.take(self._place, self._memory_limit)
        except (ProcessGone, TimeoutError, OSError) as error:
            info = _start_failure(error)
            raise ChildError(info, Raised(None, info)) from None
        except asyncio.CancelledError as error:
            error.__dict__["child_info"] = NO_PLACE
            raise
        finally:
            attempt.began_at = self._runtime.monotonic()
        self._watch_deadline(attempt)
        try:
            answer = await self._answer(attempt, process)
        finally:
            self._processes.give_back(process)
        if answer.progress is not None:
            attempt.progress = answer.progress
        return self._end(attempt, answer)

    async def _answer(self, attempt: LeasedAttempt, process: HandlerProcess) -> CallAnswer:
        def note_progress(progress: Any) -> None:
            attempt.progress = progress

        pending = process.begin(self._place, attempt.lease, note_progress)
        try:
            await process.wait(pending)
        except asyncio.CancelledError as error:
            await self._stop(attempt, process, pending)
            answer = _result_of(pending)
            if answer is None or (isinstance(answer, CallRaised) and answer.aborted):
                error.__dict__["child_info"] = NO_PLACE if answer is None else answer.info
                raise
            return answer
        try:
            found = pending.result()
        except ProcessGone as gone:
            info = _death(gone)
            raise ChildError(info, ProcessDied(info)) from None
        assert not isinstance(found, ChildReady), "A call has an answer of its own."
        return found

    async def _stop(
        self, attempt: LeasedAttempt, process: HandlerProcess, pending: "asyncio.Future[CallAnswer | ChildReady]"
    ) -> None:
        """Wait for the end of a call that has to stop. Later cancellations change nothing."""
        if pending.done():
            return
        reason = attempt.abort_reason
        loop_task, attempt.loop_task = attempt.loop_task, None
        if reason is AbortReason.OWNERSHIP_LOST:
            process.kill()
        else:
            process.abort("" if reason is None else reason.value)
        timer = call_later(KILL_AFTER_S, process.kill)
        deadline = self._runtime.monotonic() + round((KILL_AFTER_S + KILLED_TIMEOUT_S) * SECOND)
        try:
            while not pending.done() and (left_us := deadline - self._runtime.monotonic()) > 0:
                try:
                    await asyncio.wait({pending}, timeout=left_us / SECOND)
                except asyncio.CancelledError:
                    continue
        finally:
            timer.cancel()
            attempt.loop_task = loop_task

    def _end(self, attempt: LeasedAttempt, answer: CallAnswer) -> Any:
        """Return or raise what the handler did."""
        match answer:
            case CallReturned(result=data):
                return self._task.decode_result(data, attempt.lease.codec) if self._decodes else EncodedResult(data)
            case CallRaised(info=info, kinds=kinds, retried=retried):
                raise ChildError(info, Raised(None, info, _backoff(answer)) if retried else GaveUp("", info), kinds)
            case CallInterrupted():
                raise _interrupt(answer)
            case CallRefused(info=info, problem=problem):
                raise ChildError(info, _refusal(problem, info))


def _result_of(pending: "asyncio.Future[CallAnswer | ChildReady]") -> CallAnswer | None:
    """The answer, if there is one."""
    if not pending.done() or pending.exception() is not None:
        return None
    found = pending.result()
    return None if isinstance(found, ChildReady) else found


def _backoff(answer: CallRaised) -> Computed | Listed | None:
    """The back-off, if it is a function: it was called in the child."""
    if not answer.computed:
        return None
    return Computed(lambda attempt, error: None) if answer.delay is None else Listed((answer.delay,))


def _interrupt(answer: CallInterrupted) -> Interrupt:
    kind = INTERRUPTS[answer.kind]
    error = kind.__new__(kind)
    error.args, error.reason = (answer.reason,), answer.reason
    if isinstance(error, Retry | Snooze):
        error.delay = answer.delay
    if isinstance(error, Snooze):
        error.at = answer.at
    error.__dict__["child_info"] = answer.info
    return error


def _refusal(problem: str, info: ErrorInfo) -> DoesNotFit | NotRetryable:
    reasons = {"corrupt": Reason.UNDECODABLE, "too_large": Reason.RESULT_TOO_LARGE, "unstorable": Reason.ERROR}
    return DoesNotFit(info) if problem == "does_not_fit" else NotRetryable(reasons[problem], info)


def _start_failure(error: Exception) -> ErrorInfo:
    """The error of an attempt whose child could not start."""
    text = "The process for the handler could not start"
    if isinstance(error, ProcessGone) and error.failure is not None:
        failure = error.failure
        advice = WITHHELD_ADVICE if WITHHELD.partition(":")[0] in failure.message else ""
        return ErrorInfo(failure.type, f"{text}: {failure.message}{advice}", failure.traceback)
    if isinstance(error, ProcessGone):
        return ErrorInfo("builtins.ChildProcessError", f"{text}. {_death(error).message}", "")
    if isinstance(error, TimeoutError):
        return ErrorInfo("builtins.TimeoutError", f"{text}: importing its modules takes too long.", "")
    return ErrorInfo("builtins.OSError", f"{text}: {error}", "")


def _death(gone: ProcessGone) -> ErrorInfo:
    peak_bytes = gone.end.peak_bytes or None
    return broken_info(peak_bytes) if gone.is_broken else died_info(gone.end.exit_code, peak_bytes)
