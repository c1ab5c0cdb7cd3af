"""Producing: jobs come in, in groups.

A group is one caller's call: all of it or nothing. Several callers' groups may share a command (that is how
concurrent enqueues merge into one write), and each gets its own answer.
"""

from enum import StrEnum

from msgspec import Struct

from holdfast.model.command import Answer, Command
from holdfast.model.instants import Instant, Micros
from holdfast.model.job import NOTHING_GIVEN, Given, JobKey, KeyScope
from holdfast.model.states import JobState


class Parent(Struct, frozen=True, gc=False):
    """A job to come after. With `any_end` its failure counts as an end too."""

    job: JobKey
    any_end: bool = False


class PoolPlace(Struct, frozen=True, gc=False):
    """The job goes to a pool, and the engine chooses its lane: by the key, or in turn."""

    lanes: int
    """As the producer's code has it; the stored number wins."""
    key: str | None = None


class NewJob(Struct, frozen=True, gc=False, kw_only=True, omit_defaults=True):
    """A job as the producer asks for it. Times: `delay` on the engine's clock, or `due` as an instant."""

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
    """The id was made for this job alone, at random: nobody else can have it."""
    unique_key: str | None = None
    key_scope: KeyScope | None = None
    """None: `incomplete` where there is a `unique_key`, `result` for the id."""
    key_window: Micros = 0
    parents: tuple[Parent, ...] = ()
    reply: str | None = None
    given: Given = NOTHING_GIVEN


class DepthLimit(Struct, frozen=True, gc=False):
    """No more than `limit` live jobs in the queue, or in one lane of it. Travels with the request."""

    queue: str
    limit: int
    lane: str | None = None
    each_lane: bool = False
    """This limit holds for every lane of the queue, also for lanes that a pool chooses. Then `lane` is None."""


class Group(Struct, frozen=True, gc=False):
    jobs: tuple[NewJob, ...]
    limits: tuple[DepthLimit, ...] = ()


class EnqueueStatus(StrEnum):
    CREATED = "created"
    DUPLICATE = "duplicate"
    COMPLETED = "completed"
    """A duplicate whose result is still there to answer with."""


class Accepted(Struct, frozen=True, gc=False, kw_only=True):
    """One job's answer: its own, or that of the job which was there first."""

    status: EnqueueStatus
    id: str
    state: JobState
    arrival: int
    generation: int
    position: int | None = None
    """Live jobs ahead in its lane at the insert: 0 is next. None outside lanes."""
    depth: int | None = None
    """Live jobs in the lane, else in the queue, after this one. Exact for lanes and limited queues, else None."""
    result: bytes | None = None
    codec: str = "json"


class GroupAccepted(Struct, frozen=True, gc=False, tag="accepted"):
    jobs: tuple[Accepted, ...]


class GroupFull(Struct, frozen=True, gc=False, tag="full"):
    """Refused whole: there is no room."""

    queue: str
    lane: str | None
    depth: int
    limit: int


class GroupConflict(Struct, frozen=True, gc=False, tag="conflict"):
    """Refused whole: an id is taken by another task or other arguments."""

    job: JobKey


class GroupOrphan(Struct, frozen=True, gc=False, tag="orphan"):
    """Refused whole: a parent does not exist."""

    parent: JobKey


GroupAnswer = GroupAccepted | GroupFull | GroupConflict | GroupOrphan


class EnqueueAnswer(Answer, frozen=True, gc=False, kw_only=True):
    groups: tuple[GroupAnswer, ...]


class Enqueue(Command[EnqueueAnswer], frozen=True, gc=False, kw_only=True):
    groups: tuple[Group, ...]
