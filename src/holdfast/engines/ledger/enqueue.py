"""Enqueue: groups of jobs come in, each whole or not at all.

A group is decided before anything is written: first every job is looked up (is its id taken? its key?), then
the room is counted, and only then are the new ones inserted. So a refusal leaves no trace.

The id is looked at before the key. A job that is there already is answered, not failed: as `duplicate` with
its state, or as `completed` with its result while that is kept. Inside a group the first of two wins.
"""

from collections import Counter
from typing import NamedTuple

from msgspec.structs import replace

from holdfast.engines.ledger import lanes, parents, pools
from holdfast.engines.ledger.ends import cancel_waiting
from holdfast.engines.ledger.state import State
from holdfast.engines.ledger.step import Step, rest
from holdfast.model.job import JobKey, JobRecord, KeyScope
from holdfast.model.produce import (
    Accepted,
    DepthLimit,
    Enqueue,
    EnqueueAnswer,
    EnqueueStatus,
    Group,
    GroupAccepted,
    GroupAnswer,
    GroupConflict,
    GroupFull,
    GroupOrphan,
    NewJob,
)
from holdfast.model.states import LIVE, Hold, JobState, Reason


def enqueue(step: Step, command: Enqueue) -> EnqueueAnswer:
    groups = tuple(_group(step, group) for group in command.groups)
    parents.resolve(step)
    return EnqueueAnswer(at=step.at, groups=groups)


class Plan(NamedTuple):
    """What will become of one job of a group: inserted, or answered with the job of that id."""

    job: NewJob
    existing: str | None


def _group(step: Step, group: Group) -> GroupAnswer:
    plans = _plan(step, group)
    if not isinstance(plans, list):
        return plans
    full = _no_room(step, group, plans)
    if full is not None:
        return full
    limited = {limit.queue for limit in group.limits if limit.lane is None and not limit.each_lane}
    answers: list[Accepted] = []
    inserted: dict[tuple[str, str], Accepted] = {}
    for plan in plans:
        if plan.existing is None:
            answer = _insert(step, plan.job, counted=plan.job.queue in limited)
            inserted[plan.job.queue, plan.job.id] = answer
        else:
            answer = _answer_existing(step, plan.job, plan.existing, inserted)
        answers.append(answer)
    return GroupAccepted(tuple(answers))


# Deciding


def _plan(step: Step, group: Group) -> list[Plan] | GroupConflict | GroupOrphan:
    plans: list[Plan] = []
    ids: dict[tuple[str, str], NewJob] = {}
    keys: dict[tuple[str, str, str], str] = {}
    for job in group.jobs:
        name = (job.queue, job.id)
        twin = ids.get(name)
        if twin is not None:
            if _differs(job, twin.task, twin.payload_hash):
                return GroupConflict(JobKey(*name))
            plans.append(Plan(job, job.id))
            continue
        stored = _stored(step, job)
        if stored is not None and id_taken(stored, step.now):
            if _differs(job, stored.task, stored.payload_hash):
                return GroupConflict(JobKey(*name))
            plans.append(Plan(job, job.id))
            continue
        if job.unique_key is not None:
            key = (job.queue, job.task, job.unique_key)
            holder = keys.get(key) or key_holder(step.state, job.queue, job.task, job.unique_key, step.now)
            if holder is not None and keys.get(key) != holder and (job.queue, holder) in ids:
                holder = None  # this group replaces that job, and its key goes with it
            if holder is not None:
                plans.append(Plan(job, holder))
                continue
            keys[key] = job.id
        for parent in job.parents:
            parent_name = (parent.job.queue, parent.job.id)
            if parent_name not in ids and step.state.job(*parent_name) is None:
                return GroupOrphan(parent.job)
        ids[name] = job
        plans.append(Plan(job, None))
    return plans


def _stored(step: Step, job: NewJob) -> JobRecord | None:
    state = step.state
    return state.job_of_fresh_id(job.queue, job.id) if job.fresh_id else state.job(job.queue, job.id)


def _differs(job: NewJob, task: str, payload_hash: bytes) -> bool:
    """The same id for another piece of work."""
    return job.task != task or bool(job.payload_hash and payload_hash and job.payload_hash != payload_hash)


def id_taken(job: JobRecord, now: int) -> bool:
    """Whether this record turns away a new job of its id."""
    return job.state in LIVE or (job.state is JobState.SUCCEEDED and now < job.id_until)


def key_holder(state: State, queue: str, task: str, unique_key: str, now: int) -> str | None:
    """The id of the job that turns away a new one of this key."""
    job = state.key_taker(queue, task, unique_key)
    if job is None:
        return None
    taken = job.state in LIVE or (job.state is JobState.SUCCEEDED and now < job.key_until)
    return job.id if taken else None


def _no_room(step: Step, group: Group, plans: list[Plan]) -> GroupFull | None:
    if not group.limits:
        return None
    created = [plan.job for plan in plans if plan.existing is None]
    for limit in group.limits:
        for lane, more in _coming(step, limit, [job for job in created if job.queue == limit.queue]):
            depth = depth_of(step, limit.queue, lane)
            if depth + more > limit.limit:
                return GroupFull(limit.queue, lane, depth, limit.limit)
    return None


def _coming(step: Step, limit: DepthLimit, jobs: list[NewJob]) -> list[tuple[str | None, int]]:
    """What a limit is about, the queue or lanes of it, and how many of these jobs would come there."""
    if not jobs:
        return []
    if limit.lane is None and not limit.each_lane:
        return [(None, len(jobs))]
    ahead = Counter(pools.lanes_ahead(step, jobs))
    return [(lane, more) for lane, more in ahead.items() if limit.each_lane or lane == limit.lane]


def depth_of(step: Step, queue: str, lane: str | None) -> int:
    """Live jobs in a queue or in one lane of it."""
    if lane is None:
        return step.state.depth(queue)
    record = step.state.lane(queue, lane)
    return 0 if record is None else record.depth


# Writing


def _insert(step: Step, new: NewJob, *, counted: bool) -> Accepted:
    """Write a new job; a record of its id that has lapsed, failed or been cancelled is replaced."""
    step.queue(new.queue)
    old = _stored(step, new)
    if old is not None and step.state.children(new.queue, new.id, 1):
        parents.resolve_one(step, (new.queue, new.id))  # the old life's children hear of its end, not of the new one's
        old = step.state.job(new.queue, new.id)
    generation = 0 if old is None else old.generation + 1
    due = step.now + new.delay if new.due is None else max(step.now, new.due)
    scope = new.key_scope
    if scope is None:
        scope = KeyScope.RESULT if new.unique_key is None else KeyScope.INCOMPLETE
    arrival = step.state.new_arrival(new.queue)
    left, parent_failed = 0, False
    if new.parents:
        left, parent_failed = parents.link(step, JobKey(new.queue, new.id), arrival, new.parents)
    job = JobRecord(
        queue=new.queue,
        id=new.id,
        task=new.task,
        payload=new.payload,
        codec=new.codec,
        metadata=dict(new.metadata),
        payload_hash=new.payload_hash,
        priority=new.priority,
        lane=new.lane,
        unique_key=new.unique_key,
        key_scope=scope,
        key_window=new.key_window,
        expires=new.expires,
        reply=() if new.reply is None else (new.reply,),
        given=new.given,
        hold=Hold.PARENTS if left or parent_failed else Hold.NONE,
        generation=generation,
        arrival=arrival,
        created=step.now,
        due=due,
        parents_left=left,
        fence=0 if old is None else old.fence,
    )
    if new.pool is not None:
        job = pools.place(step, job, new.pool)
    position: int | None = None
    if job.lane is not None:
        job, position = lanes.admit(step, job)
    job = rest(step, job)
    step.put_job(old, job)
    if job.state is JobState.SCHEDULED:
        step.topics.add("queue:" + job.queue)
    if position is not None:
        depth: int | None = position + 1
    else:
        depth = step.state.depth(new.queue) if counted else None
    if parent_failed:
        cancel_waiting(step, job, Reason.PARENT_FAILED, "a parent had failed before")
        job = replace(job, state=JobState.CANCELLED)
    return Accepted(
        status=EnqueueStatus.CREATED,
        id=job.id,
        state=job.state,
        arrival=job.arrival,
        generation=job.generation,
        position=position,
        depth=depth,
    )


def _answer_existing(step: Step, new: NewJob, job_id: str, inserted: dict[tuple[str, str], Accepted]) -> Accepted:
    """The job that was there first answers for the new one, and will tell its process too."""
    job = step.state.job(new.queue, job_id)
    if job is None:  # the first of the two ended as it came, and was kept for no time at all
        first = inserted[new.queue, job_id]
        return replace(first, status=EnqueueStatus.DUPLICATE, position=None, depth=None)
    if new.reply is not None and job.live and new.reply not in job.reply:
        after = replace(job, reply=(*job.reply, new.reply))
        step.put_job(job, after)
        job = after
    completed = job.state is JobState.SUCCEEDED and step.now < job.result_until
    return Accepted(
        status=EnqueueStatus.COMPLETED if completed else EnqueueStatus.DUPLICATE,
        id=job.id,
        state=job.state,
        arrival=job.arrival,
        generation=job.generation,
        result=job.result if completed else None,
        codec=job.codec,
    )
