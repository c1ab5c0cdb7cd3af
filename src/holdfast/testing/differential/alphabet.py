"""What the machine says: few names, few numbers, so that collisions are the rule and not the exception.

A job is drawn as a list of *traits*: one short draw each, and dropped one by one when a failure is shrunk.
Instants cannot be drawn before the machine runs, so a trait gives them as a distance from now (`due_in`,
`expires_in`), and `new_job` adds the time.
"""

from collections.abc import Mapping
from typing import Any

from hypothesis import strategies as st

from holdfast.model.command import Command
from holdfast.model.instants import DAY, HOUR, MINUTE, SECOND
from holdfast.model.job import Given, JobKey, KeyScope, Progress
from holdfast.model.operate import DropSchedule, Pools, PutPool, PutSchedule, Resize, Schedules
from holdfast.model.produce import DepthLimit, NewJob, Parent
from holdfast.model.records import ScheduleRecord, WorkerRecord
from holdfast.model.states import JobState, Reason
from holdfast.model.text import ErrorInfo
from holdfast.model.work import ForgetWorker, Heartbeat, QueueClaim, StopWorker, TaskClaim, Workers

QUEUES = ("q", "r")
TASKS = ("t", "u")
IDS = {"a": "t", "b": "u", "c": "t", "d": "u", "e": "t", "f": "t"}
"""Each with the task it is nearly always a job of: with another task it would only be a conflict."""
LANES = ("x", "0")
WORKERS = ("w1", "w2")
LEASE = 10 * SECOND
BOOM = ErrorInfo("Boom", "it broke", "")

ALL_KEYS = tuple(JobKey(queue, id) for queue in QUEUES for id in IDS)

Trait = Mapping[str, Any]

queues = st.sampled_from(["q", "q", "q", "r"])
ids = st.sampled_from(sorted(IDS))
some_ids = st.lists(ids, min_size=1, max_size=3).map(tuple)
workers = st.sampled_from(WORKERS)
flags = st.booleans()

scopes = st.sampled_from([(queue, lane) for queue in QUEUES for lane in (None, *LANES)])
"""A queue, or a lane of it."""

def timed(fields: Trait, now: int) -> dict[str, Any]:
    """The fields with every distance from now turned into an instant."""
    return {
        name.removesuffix("_in"): now + held if name.endswith("_in") else held for name, held in fields.items()
    }


advances = st.sampled_from([1, SECOND, LEASE, LEASE + 1, LEASE, 2 * MINUTE, HOUR, HOUR + SECOND, DAY, 31 * DAY])

# --- Jobs ---

TRAITS: tuple[Trait, ...] = (
    *({"lane": lane} for lane in (*LANES, LANES[0])),
    *({"priority": priority} for priority in (5, -5)),
    *({"delay": delay} for delay in (1, SECOND, HOUR)),
    *({"due_in": distance} for distance in (-SECOND, 5 * SECOND)),
    *({"expires_in": distance} for distance in (-1, 0, 1, LEASE)),
    *({"unique_key": key} for key in ("k", "l")),
    {"unique_key": "k", "key_scope": KeyScope.RESULT},
    {"unique_key": "k", "key_scope": KeyScope.WINDOW, "key_window": 2 * HOUR},
    {"unique_key": "k", "key_scope": KeyScope.FOREVER},
    {"key_scope": KeyScope.INCOMPLETE},
    {"key_scope": KeyScope.WINDOW, "key_window": MINUTE},
    {"key_scope": KeyScope.FOREVER},
    *({"parents": (Parent(JobKey(queue, id), any_end),)} for queue, id, any_end in (("q", "a", False), ("q", "b", True))),
    {"parents": (Parent(JobKey("q", "a")), Parent(JobKey("r", "a")))},
    {"parents": (Parent(JobKey("q", "c"), True), Parent(JobKey("q", "c")))},
    *({"payload_hash": hash} for hash in (b"1", b"2")),
    {"task": "t"},
    *({"reply": process} for process in ("p1", "p2")),
    {"payload": b"[1]", "metadata": {"customer": "7"}, "limit_key": "m"},
    {"given": Given(max_attempts=2, max_losses=1, timeout=MINUTE, lease_len=30 * SECOND)},
    {"given": Given(result_ttl=0, retention=0)},
    {"given": Given(result_ttl=HOUR, retention=0)},
    {"given": Given(result_ttl=0, retention=HOUR)},
)

job_traits = st.tuples(queues, ids, st.lists(st.sampled_from(TRAITS), max_size=3))
"""A new job but for the time; `new_job` makes it one."""

groups = st.lists(job_traits, min_size=1, max_size=4)

depth_limits = st.sampled_from(
    [
        (),
        (),
        (DepthLimit("q", 3),),
        (DepthLimit("q", 0),),
        (DepthLimit("r", 2), DepthLimit("q", 4)),
        (DepthLimit("q", 1, "x"),),
        (DepthLimit("q", 2, "x"), DepthLimit("r", 2, "x")),
    ]
)


def new_job(drawn: tuple[str, str, list[Trait]], now: int) -> NewJob:
    queue, id, traits = drawn
    fields: dict[str, Any] = {"task": IDS[id]}
    for trait in traits:
        fields.update(trait)
    return NewJob(queue=queue, id=id, **timed(fields, now))


# --- Claims and settlements ---


def _task(task: str, **fields: Any) -> TaskClaim:
    return TaskClaim(task=task, **{"lease_len": LEASE, "max_attempts": 3, **fields})


_BOTH = (_task("t"), _task("u"))

EVERYTHING = (QueueClaim("q", _BOTH), QueueClaim("r", _BOTH))

claim_queues = st.sampled_from(
    [
        EVERYTHING,
        (QueueClaim("r", _BOTH), QueueClaim("q", _BOTH)),
        (QueueClaim("q", _BOTH),),
        (QueueClaim("q", (_task("t"),)),),
        (QueueClaim("q", (_task("u", lease_len=MINUTE, max_losses=1), _task("t", limit=1))),),
        (QueueClaim("q", _BOTH, 1), QueueClaim("r", (_task("t", max_attempts=0), _task("u", limit=0)), 2)),
    ]
)
claim_sizes = st.sampled_from([(1, 0), (2, 0), (1, 1), (0, 2), (5, 0), (2, 2), (0, 0)])
"""How many to run, how many to hold ready."""

OUTCOMES: tuple[Trait, ...] = (
    {"target": JobState.SUCCEEDED, "result": b"42"},
    {"target": JobState.SUCCEEDED},
    {"target": JobState.SUCCEEDED, "result": b"42", "result_ttl": 0, "retention": 0},
    {"target": JobState.SUCCEEDED, "result": b"42", "result_ttl": 2 * HOUR, "retention": 0},
    {"target": JobState.FAILED, "reason": Reason.EXHAUSTED, "error": BOOM},
    {"target": JobState.FAILED, "reason": Reason.GAVE_UP, "note": "pointless", "retention": 0, "result_ttl": 0},
    {"target": JobState.CANCELLED, "reason": Reason.ASKED},
    {"target": JobState.RETRYING, "reason": Reason.ERROR, "error": BOOM},
    {"target": JobState.RETRYING, "reason": Reason.TIMEOUT, "error": BOOM, "delay": 5 * SECOND},
    {"target": JobState.RETRYING, "reason": Reason.ERROR, "error": BOOM, "refund": True},
    {"target": JobState.SCHEDULED, "reason": Reason.SNOOZED, "delay": SECOND, "refund": True},
    {"target": JobState.SCHEDULED, "reason": Reason.SNOOZED, "due_in": HOUR},
    {"target": JobState.SCHEDULED, "reason": Reason.SNOOZED, "due_in": -HOUR, "refund": True},
    {"target": JobState.QUEUED, "reason": Reason.RELEASED, "refund": True},
    {"target": JobState.QUEUED, "reason": Reason.RELEASED},
)
outcomes = st.sampled_from(OUTCOMES)

LOSSES: tuple[Trait, ...] = (
    {"target": JobState.RETRYING, "reason": Reason.WORKER_LOST},
    {"target": JobState.RETRYING, "reason": Reason.WORKER_LOST, "delay": MINUTE},
    {"target": JobState.RETRYING, "reason": Reason.WORKER_LOST, "refund": True},
    {"target": JobState.FAILED, "reason": Reason.WORKER_LOST},
    {"target": JobState.CANCELLED, "reason": Reason.ASKED},
)
losses = st.sampled_from(LOSSES)

progresses = st.sampled_from([None, Progress(0.5), Progress(1.0, "nearly")])

# --- Operators and readers ---

AMENDMENTS: tuple[Trait, ...] = (
    {"priority": 9},
    {"priority": -9},
    {"due_in": HOUR},
    {"due_in": -1},
    {"result_ttl": 0},
    {"retention": 0},
    {"result_ttl": DAY, "retention": DAY},
    {"reply": "p3"},
    {"priority": 1, "due_in": MINUTE, "reply": "p1"},
)
amendments = st.sampled_from(AMENDMENTS)

FILTERS: tuple[Trait, ...] = (
    {},
    {"limit": 1},
    {"limit": 2, "scan": 3},
    {"scan": 1},
    {"task": "t"},
    {"lane": "x", "scan": 2},
    {"metadata": {"customer": "7"}},
    {"since_in": -MINUTE, "limit": 1},
)
finds = st.tuples(queues, st.sampled_from(JobState), st.sampled_from(FILTERS))

declarations: st.SearchStrategy[Command[Any]] = st.sampled_from(
    [
        *(verb(name=queue, lanes=lanes) for verb in (PutPool, Resize) for queue in QUEUES for lanes in (1, 2)),
        Pools(),
        PutSchedule(schedule=ScheduleRecord(name="s", queue="q", task="t", when="1h")),
        PutSchedule(schedule=ScheduleRecord(name="s", queue="q", task="t", when="1h", paused=True)),
        DropSchedule(name="s"),
        Schedules(),
        *(Heartbeat(worker=WorkerRecord(worker=worker, tasks=TASKS)) for worker in WORKERS),
        Heartbeat(worker=WorkerRecord(worker="w1", slots=4, interval=HOUR)),
        *(StopWorker(worker=worker) for worker in WORKERS),
        ForgetWorker(worker="w1"),
        Workers(),
    ]
)
