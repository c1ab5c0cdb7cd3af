"""Enqueue: each group of jobs is accepted whole or refused whole.

A group is decided before anything is written: first every job is looked up (is its id taken, is its key taken), then
the depth limits are checked, and only then are the new jobs inserted. So a refusal leaves no trace.
"""

from collections import Counter
from typing import NamedTuple

from msgspec.structs import replace

from holdfast.engines.ledger import lanes, parents, pools
from holdfast.engines.ledger.ends import cancel_waiting
from holdfast.engines.ledger.state import State
from holdfast.engines.ledger.step import Step, as_waiting
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
    # E1: groups are decided in order, and each gets its own answer.
    groups = tuple(enqueue_group(step, group) for group in command.groups)
    parents.resolve(step)
    return EnqueueAnswer(at=step.at, groups=groups)


class Plan(NamedTuple):
    """The decision on one job of a group: it is inserted, or the existing job of that id answers for it."""

    job: NewJob
    existing: str | None


def enqueue_group(step: Step, group: Group) -> GroupAnswer:
    # E1, E2: ids, keys and parents of all jobs first, then the limits, then the writes.
    plans = _plan(step, group)
    if not isinstance(plans, list):
        return plans
    created = [plan.job for plan in plans if plan.existing is None]
    chosen = pools.choose_lanes(step, created, group.limits)
    full = check_limits(step, group, created, chosen)
    if full is not None:
        return full
    # E5: a limit on lanes makes no depth of the queue exact.
    limited = {limit.queue for limit in group.limits if limit.lane is None and not limit.each_lane}
    answers: list[Accepted] = []
    inserted: dict[tuple[str, str], Accepted] = {}
    for plan in plans:
        if plan.existing is None:
            lane = chosen.get((plan.job.queue, plan.job.id))
            answer = insert_job(step, plan.job, lane, counted=plan.job.queue in limited)
            inserted[plan.job.queue, plan.job.id] = answer
        else:
            answer = answer_existing(step, plan.job, plan.existing, inserted)
        answers.append(answer)
    return GroupAccepted(tuple(answers))


# Deciding


class Planned(NamedTuple):
    """The jobs of a group that will be inserted, so far."""

    ids: dict[tuple[str, str], NewJob]
    keys: dict[tuple[str, str, str], str]


def _plan(step: Step, group: Group) -> list[Plan] | GroupConflict | GroupOrphan:
    plans: list[Plan] = []
    planned = Planned({}, {})
    for job in group.jobs:
        existing = existing_id(step, job, planned)
        if isinstance(existing, GroupConflict | GroupOrphan):
            return existing
        if existing is None:
            planned.ids[job.queue, job.id] = job
            if job.unique_key is not None:
                planned.keys[job.queue, job.task, job.unique_key] = job.id
        plans.append(Plan(job, existing))
    return plans


def existing_id(step: Step, job: NewJob, planned: Planned) -> str | GroupConflict | GroupOrphan | None:
    """The id of the job that answers for a new one; None: it is to be inserted."""
    # S1, D1: the id is looked at before the key. E3: inside a group the first of two wins.
    name = (job.queue, job.id)
    twin = planned.ids.get(name)
    if twin is not None:
        return GroupConflict(JobKey(*name)) if _differs(job, twin.task, twin.payload_hash) else job.id
    # E9: in `_record`. D9: a duplicate of another task or payload is a conflict.
    record = _record(step, job)
    # D8: with a key, the scope governs the key, and the id is taken until the result lapses.
    if record is not None and is_taken(record, record.id_until, step.now):
        return GroupConflict(JobKey(*name)) if _differs(job, record.task, record.payload_hash) else job.id
    if job.unique_key is not None:
        key = (job.queue, job.task, job.unique_key)
        holder = planned.keys.get(key)
        if holder is None:
            holder = key_holder(step.state, job.queue, job.task, job.unique_key, step.now)
            if holder is not None and (job.queue, holder) in planned.ids:
                holder = None  # this group replaces that job, and frees its key
        if holder is not None:
            return holder
    # P1: a parent exists, or stands earlier in the group.
    for parent in job.parents:
        parent_name = (parent.job.queue, parent.job.id)
        if parent_name not in planned.ids and step.state.job(*parent_name) is None:
            return GroupOrphan(parent.job)
    return None


def _record(step: Step, job: NewJob) -> JobRecord | None:
    # E9: a store that enforces unique names need not look a fresh id up.
    state = step.state
    return state.job_of_fresh_id(job.queue, job.id) if job.fresh_id else state.job(job.queue, job.id)


def _differs(job: NewJob, task: str, payload_hash: bytes) -> bool:
    """True if the same id stands for another call."""
    # D9: another task, or another payload where both have a hash.
    return job.task != task or bool(job.payload_hash and payload_hash and job.payload_hash != payload_hash)


def is_taken(job: JobRecord, until: int, now: int) -> bool:
    """True if this record keeps its id or key, so that a new job is a duplicate. `until`: when it expires."""
    # D3, D7: a live job keeps it; a succeeded one until that instant; a failed or cancelled one does not.
    return job.state in LIVE or (job.state is JobState.SUCCEEDED and now < until)


def key_holder(state: State, queue: str, task: str, unique_key: str, now: int) -> str | None:
    """The id of the job that keeps this key, so that a new job is a duplicate. None: the key is free."""
    # S1, D10: a live holder, or a succeeded one until its `key_until`.
    job = state.key_taker(queue, task, unique_key)
    return job.id if job is not None and is_taken(job, job.key_until, now) else None


def check_limits(
    step: Step, group: Group, created: list[NewJob], chosen: dict[tuple[str, str], str]
) -> GroupFull | None:
    """The first limit that the group would exceed. `chosen`: the lanes of jobs that go to a pool."""
    # E6, E7: in the order given, when every job is planned and none is written. E8: in `_additions`.
    for limit in group.limits:
        for lane, more in _additions(limit, [job for job in created if job.queue == limit.queue], chosen):
            depth = depth_of(step, limit.queue, lane)
            if depth + more > limit.limit:
                return GroupFull(limit.queue, lane, depth, limit.limit)
    return None


def _additions(
    limit: DepthLimit, jobs: list[NewJob], chosen: dict[tuple[str, str], str]
) -> list[tuple[str | None, int]]:
    """How many of these jobs would be added to the queue, or to each lane, that the limit is about."""
    if not jobs:
        return []
    if limit.lane is None and not limit.each_lane:
        return [(None, len(jobs))]
    # E8: in the lane that a job names or that was chosen for it; E7: lanes in the order of the group.
    named: list[str] = []
    for job in jobs:
        lane = job.lane if job.pool is None else chosen[job.queue, job.id]
        if lane is not None:
            named.append(lane)
    return [(lane, more) for lane, more in Counter(named).items() if limit.each_lane or lane == limit.lane]


def depth_of(step: Step, queue: str, lane: str | None) -> int:
    """Live jobs in a queue or in one lane of it."""
    return step.state.depth(queue) if lane is None else lanes.lane_depth(step, queue, lane)


# Writing


def record_of(step: Step, new: NewJob, old: JobRecord | None, arrival: int, hold: Hold, parents_left: int) -> JobRecord:
    """The record of a new job, before it has a lane."""
    # E4: a due time in the past counts as now.
    due = step.now + new.delay if new.due is None else max(step.now, new.due)
    # D11: the default scope.
    scope = new.key_scope
    if scope is None:
        scope = KeyScope.RESULT if new.unique_key is None else KeyScope.INCOMPLETE
    return JobRecord(
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
        hold=hold,
        # D4: a replacement counts its generation and its fence on.
        generation=0 if old is None else old.generation + 1,
        arrival=arrival,
        created=step.now,
        due=due,
        parents_left=parents_left,
        fence=0 if old is None else old.fence,
    )


def insert_job(step: Step, new: NewJob, chosen: str | None, *, counted: bool) -> Accepted:
    """Write a new job in place of the record that has its id, if there is one. `chosen`: its lane in its pool."""
    # D2, D4, D7: no record keeps that id.
    step.queue(new.queue)
    old = _record(step, new)
    if old is not None and step.state.children(new.queue, new.id, 1):
        # P7: the children get the end of the old job, not that of the new one.
        parents.resolve_one(step, (new.queue, new.id))
        old = step.state.job(new.queue, new.id)
    arrival = step.state.new_arrival(new.queue)
    left, parent_failed = 0, False
    if new.parents:
        left, parent_failed = parents.link(step, JobKey(new.queue, new.id), arrival, new.parents)
    hold = Hold.PARENTS if left or parent_failed else Hold.NONE
    job = record_of(step, new, old, arrival, hold, left)
    if new.pool is not None and chosen is not None:
        job = pools.place(step, job, new.pool, chosen)
    position: int | None = None
    if job.lane is not None:
        job, position = lanes.admit(step, job)
    job = as_waiting(step, job)
    step.put_job(old, job)
    if job.state is JobState.SCHEDULED:
        # N1: workers that wait look again when the job is due.
        step.topics.add("queue:" + job.queue)
    # E5: in a lane its depth, elsewhere that of the queue if the group has a limit on it.
    if position is not None:
        depth: int | None = position + 1
    else:
        depth = step.state.depth(new.queue) if counted else None
    if parent_failed:
        # P3: created, and cancelled at once.
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
        lane=job.lane,
    )


def answer_existing(step: Step, new: NewJob, job_id: str, inserted: dict[tuple[str, str], Accepted]) -> Accepted:
    """The job that was there first answers for the new one."""
    # E3: a duplicate is answered, not failed.
    job = step.state.job(new.queue, job_id)
    if job is None:  # the first of the two was cancelled when it was inserted, and its lifetimes are 0
        first = inserted[new.queue, job_id]
        return replace(first, status=EnqueueStatus.DUPLICATE, position=None, depth=None)
    if new.reply is not None and job.live and new.reply not in job.reply:
        # D12: the second caller is notified too.
        after = replace(job, reply=(*job.reply, new.reply))
        step.put_job(job, after)
        job = after
    # D5, D6: completed while the result is kept, duplicate after that.
    completed = job.state is JobState.SUCCEEDED and step.now < job.result_until
    return Accepted(
        status=EnqueueStatus.COMPLETED if completed else EnqueueStatus.DUPLICATE,
        id=job.id,
        state=job.state,
        arrival=job.arrival,
        generation=job.generation,
        result=job.result if completed else None,
        codec=job.codec,
        lane=job.lane,
    )
