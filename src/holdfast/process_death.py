"""How a process ended, as text: the signal or the exit code, and the peak memory.

A task with `isolate="process"` runs in a child process of its worker. When that process dies, the job counts a loss,
and this text is stored as its error. So it is when a whole worker dies whose manager knows how. `deaths_text` sums the
losses of a job up for an operator.
"""

import signal
from collections.abc import Iterable
from dataclasses import dataclass

from holdfast.model.text import ErrorInfo

PROCESS_DIED = "holdfast.ProcessDied"
"""`ErrorInfo.type` of the death of a handler's process. It is no exception: the handler could not raise one."""
WORKER_DIED = "holdfast.WorkerDied"
"""The same for the process of a whole worker."""

_MEBIBYTE = 1 << 20
_SUBJECTS = {PROCESS_DIED: "The process of the handler ", WORKER_DIED: "The process of the worker "}
_NOUNS = {PROCESS_DIED: "process", WORKER_DIED: "worker"}
_KILLED = "was killed by "
_EXITED = "ended with "
_BROKE = "broke its connection to the worker"
_LATE = "did not stop in time and was killed by its manager"
_PEAK = "; its peak memory was "
_CAUSES = {_BROKE: "a broken connection", _LATE: "a stop that took too long"}
_HINTS = {
    "SIGKILL": " The system does this when memory is short.",
    "exit code 0": " It ended before the handler returned, as by os._exit(0).",
}


@dataclass(frozen=True, slots=True)
class ProcessDeath:
    """`cause` is the name of a signal, `exit code N`, `a broken connection` or `a stop that took too long`.

    `peak_mib` is None if the peak memory is not known.
    """

    cause: str
    peak_mib: int | None


def died_text(exit_code: int | None, peak_bytes: int | None) -> str:
    """What is stored about a process that died. `exit_code` is negative for a signal, as in `Popen.returncode`.

    None: other code of the worker's process has taken the status.

    >>> died_text(-11, 35 << 20)
    'The process of the handler was killed by SIGSEGV; its peak memory was 35 MiB.'
    >>> died_text(3, None)
    'The process of the handler ended with exit code 3.'
    """
    return _died_text(PROCESS_DIED, exit_code, peak_bytes)


def _died_text(kind: str, exit_code: int | None, peak_bytes: int | None) -> str:
    return _text(kind, end_text(exit_code), peak_bytes) + _HINTS.get(_cause(exit_code), "")


def end_text(exit_code: int | None) -> str:
    """How a process ended, as the rest of a sentence about it.

    >>> end_text(-9), end_text(3)
    ('was killed by SIGKILL', 'ended with exit code 3')
    """
    verb = _EXITED if exit_code is None or exit_code >= 0 else _KILLED
    return f"{verb}{_cause(exit_code)}"


def _text(kind: str, what: str, peak_bytes: int | None) -> str:
    peak = "" if peak_bytes is None else f"{_PEAK}{max(1, round(peak_bytes / _MEBIBYTE))} MiB"
    return f"{_SUBJECTS[kind]}{what}{peak}."


def died_info(exit_code: int | None, peak_bytes: int | None) -> ErrorInfo:
    """The stored error of an attempt whose process died."""
    return ErrorInfo(PROCESS_DIED, died_text(exit_code, peak_bytes), "")


def broken_info(peak_bytes: int | None) -> ErrorInfo:
    """The same for a process that the worker had to kill: it closed its socket, or wrote what is no answer."""
    return ErrorInfo(PROCESS_DIED, _text(PROCESS_DIED, _BROKE, peak_bytes), "")


def worker_died_info(exit_code: int | None, peak_bytes: int | None) -> ErrorInfo:
    """The stored error of an attempt whose worker died.

    >>> worker_died_info(-6, 35 << 20).message
    'The process of the worker was killed by SIGABRT; its peak memory was 35 MiB.'
    """
    return ErrorInfo(WORKER_DIED, _died_text(WORKER_DIED, exit_code, peak_bytes), "")


def late_stop_info(peak_bytes: int | None) -> ErrorInfo:
    """The same for a worker that its manager had to kill."""
    return ErrorInfo(WORKER_DIED, _text(WORKER_DIED, _LATE, peak_bytes), "")


def death_of(error: ErrorInfo | None) -> ProcessDeath | None:
    """The facts in a stored error; None if it is the error of something else.

    >>> death_of(died_info(-9, 812 << 20))
    ProcessDeath(cause='SIGKILL', peak_mib=812)
    """
    if error is None or error.type not in _SUBJECTS:
        return None
    facts = error.message.removeprefix(_SUBJECTS[error.type]).partition(".")[0]
    verb, _, peak = facts.partition(_PEAK)
    cause = _CAUSES.get(verb, verb.removeprefix(_KILLED).removeprefix(_EXITED))
    number = peak.partition(" ")[0]
    return ProcessDeath(cause, int(number) if number.isdecimal() else None)


def deaths_text(errors: Iterable[ErrorInfo | None]) -> str:
    """The losses of a job in a few words: each cause with its number, and the highest peak memory.

    An error that is not the death of a process stands for a worker that was lost, it is not known how.

    >>> deaths_text([died_info(-11, 34 << 20), None, died_info(-11, 812 << 20)])
    'its process died 2 times of SIGSEGV, peak memory 812 MiB; its worker was lost once'
    """
    by_cause: dict[tuple[str, str], list[int | None]] = {}
    lost_workers = 0
    for error in errors:
        death = death_of(error)
        if error is None or death is None:
            lost_workers += 1
        else:
            by_cause.setdefault((_NOUNS[error.type], death.cause), []).append(death.peak_mib)
    texts = []
    for (noun, cause), peaks in by_cause.items():
        peak_mib = max((peak for peak in peaks if peak is not None), default=None)
        peak = "" if peak_mib is None else f", peak memory {peak_mib} MiB"
        texts.append(f"its {noun} died {_times(len(peaks))} of {cause}{peak}")
    if lost_workers:
        texts.append(f"its worker was lost {_times(lost_workers)}")
    return "; ".join(texts)


def _times(number: int) -> str:
    return "once" if number == 1 else f"{number} times"


def _cause(exit_code: int | None) -> str:
    if exit_code is None:
        return "an unknown status"
    if exit_code >= 0:
        return f"exit code {exit_code}"
    try:
        return signal.Signals(-exit_code).name
    except ValueError:  # such as a real-time signal, which has no name of its own
        return f"signal {-exit_code}"
