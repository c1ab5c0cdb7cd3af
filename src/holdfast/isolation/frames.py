"""What a worker and the child process of a handler send each other: frames, a length of four bytes and msgpack.

The payload passes as the bytes that are stored, and so does the result. An exception passes as text (`ErrorInfo`) and
as what the retry policy says about it: the policy is applied in the child, where the exception is. No frame contains
code.
"""

from collections.abc import Iterator

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from holdfast.model.instants import Instant, Micros
from holdfast.model.job import ProgressRecord
from holdfast.model.text import ErrorInfo
from holdfast.model.work import Lease

LENGTH_BYTES = 4
MAX_FRAME_BYTES = 64 << 20
"""Payloads and results have at most 16 MiB, errors much less."""


# Worker → child


class TaskPlace(Struct, frozen=True):
    """Where a task is declared: its name, and the module of its function. An empty module is the main one."""

    name: str
    module: str
    declared_in: str = ""
    """The module that declares it: another one, if the function is one of a library. Empty: not known."""


class ChildSetup(Struct, frozen=True, tag=True, kw_only=True):
    """The first frame."""

    worker: str
    task: TaskPlace
    path: list[str]
    arguments: list[str]
    main_module: str = ""
    main_path: str = ""
    modules: tuple[str, ...] = ()
    """Modules that declare middleware or the lifespan of the App."""
    surrounds: tuple[str, ...] = ()
    """The generator middleware of the App, as the worker has it."""
    max_payload_bytes: int
    max_result_bytes: int
    memory_limit: int | None = None
    log_level: str = ""
    """Empty: the worker logs by handlers of the application."""
    log_style: str = "text"


class HandlerCall(Struct, frozen=True, tag=True):
    """Run one attempt. Its lease has no token."""

    number: int
    """Counts the calls of this child. Messages about an earlier call are ignored."""
    task: TaskPlace
    lease: Lease


class AbortRequest(Struct, frozen=True, tag=True):
    """The attempt has to stop. Without a reason only an async handler can notice it: by its cancellation."""

    number: int
    reason: str


# Child → worker


class ChildReady(Struct, frozen=True, tag=True):
    """The child has imported the task and entered the lifespan."""


class StartFailure(Struct, frozen=True, tag=True):
    """The child cannot run the task; it ends."""

    info: ErrorInfo


class ProgressReport(Struct, frozen=True, tag=True):
    """The latest progress of the running attempt."""

    number: int
    progress: ProgressRecord


class CallReturned(Struct, frozen=True, tag=True):
    """The handler returned; its result is encoded."""

    result: bytes
    progress: ProgressRecord | None = None


class CallRaised(Struct, frozen=True, tag=True):
    """The handler raised. The policy says whether it is retried, and a function of the policy when."""

    info: ErrorInfo
    kinds: tuple[str, ...]
    """The dotted names of its class and of the bases of that."""
    retried: bool
    delay: Micros | None = None
    """What the back-off function returned. Used only if `computed`."""
    computed: bool = False
    aborted: bool = False
    """It is a cancellation, or `Aborted`."""
    last: bool = False
    """The child is not to be used again."""
    progress: ProgressRecord | None = None


class CallInterrupted(Struct, frozen=True, tag=True):
    """The handler raised `Retry`, `Snooze`, `GiveUp` or `Cancel`."""

    kind: str
    reason: str
    delay: Micros | None
    at: Instant | None
    info: ErrorInfo
    progress: ProgressRecord | None = None


class CallRefused(Struct, frozen=True, tag=True):
    """The payload could not be decoded, or the result could not be stored."""

    info: ErrorInfo
    problem: str
    """`corrupt`, `does_not_fit`, `too_large` or `unstorable`."""
    progress: ProgressRecord | None = None


WorkerMessage = ChildSetup | HandlerCall | AbortRequest
CallAnswer = CallReturned | CallRaised | CallInterrupted | CallRefused
ChildMessage = ChildReady | StartFailure | ProgressReport | CallAnswer

_encoder = msgspec.msgpack.Encoder()
_requests: msgspec.msgpack.Decoder[WorkerMessage] = msgspec.msgpack.Decoder(WorkerMessage)
_reports: msgspec.msgpack.Decoder[ChildMessage] = msgspec.msgpack.Decoder(ChildMessage)


class BrokenFrame(Exception):
    """The other process sent something that is no frame."""


def frame_of(message: WorkerMessage | ChildMessage) -> bytes:
    """The message with its length in front."""
    data = _encoder.encode(message)
    if len(data) > MAX_FRAME_BYTES:
        raise BrokenFrame(f"a message of {len(data)} bytes, which is too long")
    return len(data).to_bytes(LENGTH_BYTES, "big") + data


def without_token(lease: Lease) -> Lease:
    """The lease without what would settle its job: the child has no use for it."""
    return replace(lease, token="")


def length_of(header: bytes | bytearray) -> int:
    """How long the message after this header is."""
    length = int.from_bytes(header[:LENGTH_BYTES], "big")
    if length > MAX_FRAME_BYTES:
        raise BrokenFrame(f"a message of {length} bytes, which is too long")
    return length


def read_worker_message(data: bytes) -> WorkerMessage:
    return _requests.decode(data)


class ReportReader:
    """Turns the bytes that a child sends into messages."""

    def __init__(self) -> None:
        self._buffer = bytearray()

    def feed(self, data: bytes) -> Iterator[ChildMessage]:
        """The messages that are complete now."""
        self._buffer += data
        while len(self._buffer) >= LENGTH_BYTES:
            end = LENGTH_BYTES + length_of(self._buffer)
            if len(self._buffer) < end:
                return
            message = bytes(memoryview(self._buffer)[LENGTH_BYTES:end])
            del self._buffer[:end]
            try:
                yield _reports.decode(message)
            except msgspec.DecodeError as error:
                raise BrokenFrame(str(error)) from error
