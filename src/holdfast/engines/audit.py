"""The part of the audit that every store shares: what the jobs and lanes of a queue must fulfil by themselves."""

from collections.abc import Iterable, Iterator

from holdfast.model.job import JobRecord
from holdfast.model.records import LaneRecord
from holdfast.model.states import Hold, JobState


def problems_of_queue(name: str, jobs: Iterable[JobRecord], lanes: Iterable[LaneRecord]) -> Iterator[str]:
    """Contradictions inside the records, as lines of text."""
    members: dict[str, list[JobRecord]] = {lane.lane: [] for lane in lanes}
    for job in jobs:
        for text in _job_problems(job):
            yield f"job {job.id!r} of queue {name!r} ({job.state}): {text}"
        if job.lane is not None and job.live:
            if job.lane not in members:
                yield f"lane {job.lane!r} of queue {name!r} has jobs and no record"
            members.setdefault(job.lane, []).append(job)
    for lane in lanes:
        for text in _lane_problems(lane, members[lane.lane]):
            yield f"lane {lane.lane!r} of queue {name!r}: {text}"


def _lane_problems(lane: LaneRecord, jobs: list[JobRecord]) -> Iterator[str]:
    if lane.depth != len(jobs):
        yield f"depth {lane.depth}, {len(jobs)} live jobs"
    heads = [job.id for job in jobs if not job.hold & Hold.LANE]
    if heads != ([] if lane.head is None else [lane.head]):
        yield f"head {lane.head!r}, not held by the lane: {heads}"
    if not lane.paused and any(job.hold & Hold.PAUSED for job in jobs):
        yield "holds a job by a pause it does not have"
    if lane.paused and any(job.state is JobState.QUEUED for job in jobs):
        yield "is paused and has a queued job"


def _job_problems(job: JobRecord) -> Iterator[str]:
    if job.leased != (job.token is not None) or job.leased != (job.lease_expires is not None):
        yield "a lease without a leased state, or the other way round"
    if (job.state is JobState.BLOCKED) != (job.hold != Hold.NONE):
        yield f"held by {job.hold!r}"
    if (job.parents_left > 0) != bool(job.hold & Hold.PARENTS):
        yield f"{job.parents_left} parents left, held by {job.hold!r}"
    if job.terminal != (job.finished is not None):
        yield "it has a finish time and has not ended, or it has ended without one"
    if job.attempt < 0 or job.losses < 0:
        yield f"attempt {job.attempt}, losses {job.losses}"
    if job.result is not None and job.state is not JobState.SUCCEEDED:
        yield "a result without success"
    if job.hold & Hold.LANE and job.lane is None:
        yield "held by a lane it does not have"
