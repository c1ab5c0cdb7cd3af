"""Enqueueing: jobs arrive in groups.

A group is one caller's call: it is accepted whole or refused whole. Groups of several callers may share a command (so
concurrent enqueues are merged into one write), and each gets its own answer.
"""

from enum import StrEnum

from msgspec import Struct

from holdfast.model.command import Answer, Command
from holdfast.model.instants import Instant, Micros
from holdfast.model.job import NOTHING_GIVEN, Given, JobKey, KeyScope
from holdfast.model.states import JobState


class Parent(Struct, frozen=True, gc=False):
    """A job that must end first. With `any_end` it may also fail or be cancelled."""

    job: JobKey
    any_end: bool = False


class PoolPlace(Struct, frozen=True, gc=False):
    """The job goes to a pool, and the engine chooses its lane: by the key, or round-robin."""

    lanes: int
    """The number in the producer's code; the stored number wins."""
    key: str | None = None


class NewJob(Struct, frozen=True, gc=False, kw_only=True, omit_defaults=True):
    """A job as the producer sends it. It is due after `delay`, by the engine's clock, or at `due`."""

    queue: str
    id: str
    task: str = ""
    payload: bytes = b""
    codec: str = "json"
    metadata: dict[str, str] = {}
    payload_hash: bytes = b""
    priority: int = 0
    delay: Micros = 0
    due: Instant | None = None
    expires: Instant | None = None
    lane: str | None = None
    pool: PoolPlace | None = None
    """Instead of `lane`."""
    fresh_id: bool = False
    """The id is random and was made for this job: no stored job can have it."""
    unique_key: str | None = None
    key_scope: KeyScope | None = None
    """None: `incomplete` if there is a `unique_key`, else `result` for the id."""
    key_window: Micros = 0
    parents: tuple[Parent, ...] = ()
    reply: str | None = None
    given: Given = NOTHING_GIVEN


def is_like(job: NewJob, other: NewJob) -> bool:
    """True if the two are certain to differ at most in id and payload: all other fields are the same objects."""
    return (
        job.queue is other.queue
        and job.task is other.task
        and job.codec is other.codec
        and job.metadata is other.metadata
        and job.payload_hash is other.payload_hash
        and job.priority is other.priority
        and job.delay is other.delay
        and job.due is other.due
        and job.expires is other.expires
        and job.lane is other.lane
        and job.pool is other.pool
        and job.fresh_id is other.fresh_id
        and job.unique_key is other.unique_key
        and job.key_scope is other.key_scope
        and job.key_window is other.key_window
        and job.parents is other.parents
        and job.reply is other.reply
        and job.given is other.given
    )


class DepthLimit(Struct, frozen=True, gc=False):
    """At most `limit` live jobs in the queue, or in one lane of it. Sent with each enqueue; not stored."""

    queue: str
    limit: int
    lane: str | None = None
    each_lane: bool = False
    """The limit applies to each lane of the queue, also to lanes that a pool chooses. Then `lane` is None."""


class Group(Struct, frozen=True, gc=False):
    jobs: tuple[NewJob, ...]
    limits: tuple[DepthLimit, ...] = ()


class EnqueueStatus(StrEnum):
    CREATED = "created"
    DUPLICATE = "duplicate"
    COMPLETED = "completed"
    """A duplicate whose result is still stored."""


class Accepted(Struct, frozen=True, gc=False, kw_only=True):
    """The answer for one job: about the new job, or about the stored job that it duplicates."""

    status: EnqueueStatus
    id: str
    state: JobState
    arrival: int
    generation: int
    position: int | None = None
    """Live jobs before it in its lane at the insert: 0 is next. None outside lanes."""
    depth: int | None = None
    """Live jobs in the lane, or else in the queue, with this one. Exact for lanes and limited queues, else None."""
    result: bytes | None = None
    codec: str = "json"
    lane: str | None = None
    """Of the job, also if its pool has chosen it. None outside lanes, and if a pool will choose it later."""


class GroupAccepted(Struct, frozen=True, gc=False, tag="accepted"):
    jobs: tuple[Accepted, ...]


class GroupFull(Struct, frozen=True, gc=False, tag="full"):
    """Refused whole: the queue or lane is full."""

    queue: str
    lane: str | None
    depth: int
    limit: int


class GroupConflict(Struct, frozen=True, gc=False, tag="conflict"):
    """Refused whole: a job with this id has another task or other arguments."""

    job: JobKey


class GroupOrphan(Struct, frozen=True, gc=False, tag="orphan"):
    """Refused whole: a parent does not exist."""

    parent: JobKey


GroupAnswer = GroupAccepted | GroupFull | GroupConflict | GroupOrphan


class EnqueueAnswer(Answer, frozen=True, gc=False, kw_only=True):
    groups: tuple[GroupAnswer, ...]


class Enqueue(Command[EnqueueAnswer], frozen=True, gc=False, kw_only=True):
    groups: tuple[Group, ...]
