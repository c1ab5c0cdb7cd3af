"""Parents: jobs that come after other jobs.

An edge stands from the child's enqueue until its parent has ended. A parent that ends releases its children,
or, having failed or been cancelled, takes down those that wanted its success, and they in turn theirs. One
step resolves at most a thousand edges; what is left is found again through `ended_parents` and resolved by
later exchanges and prunes, in any order and by anybody, with the same result.
"""

from msgspec.structs import replace

from holdfast.engines.ledger.ends import cancel_waiting
from holdfast.engines.ledger.state import Name
from holdfast.engines.ledger.step import Step, rest
from holdfast.model.job import JobKey, JobRecord
from holdfast.model.limits import MOST_RESOLVED
from holdfast.model.produce import Parent
from holdfast.model.records import Edge
from holdfast.model.states import TERMINAL, Hold, JobState, Reason


def link(step: Step, child: JobKey, arrival: int, parents: tuple[Parent, ...]) -> tuple[int, bool]:
    """Draw the edges to parents that have not ended; answer their number, and whether one has failed already."""
    left, failed = 0, False
    seen = set()
    for parent in parents:
        name = (parent.job.queue, parent.job.id)
        job = step.state.job(*name)
        if name in seen:
            continue
        seen.add(name)
        if job is not None and job.state not in TERMINAL:
            step.put(None, Edge(parent.job, child, arrival, parent.any_end))
            left += 1
        elif not parent.any_end and (job is None or job.state is not JobState.SUCCEEDED):
            failed = True  # not there: it was in this group, ended as it came, and was kept for no time at all
    return left, failed


def resolve(step: Step, budget: int = MOST_RESOLVED) -> None:
    """Let ended parents go on to their children, and those that this ends to theirs."""
    while budget > 0 and (name := step.state.ended_parents()) is not None:
        budget -= resolve_one(step, name, budget)


def resolve_one(step: Step, name: Name, budget: int | None = None) -> int:
    """Resolve the edges of one ended parent; the parent goes, if only they kept it. Answers how many."""
    parent = step.state.job(*name)
    assert parent is not None
    edges = sorted(step.state.children(*name, budget), key=lambda edge: edge.child)
    for edge in edges:
        step.put(edge, None)
        _tell(step, parent, edge)
    if parent.kept_until <= step.now and not step.state.children(*name, 1):
        step.drop_job(parent)
    return len(edges)


def _tell(step: Step, parent: JobRecord, edge: Edge) -> None:
    child = step.state.job(edge.child.queue, edge.child.id)
    if child is None or child.arrival != edge.arrival or not child.hold & Hold.PARENTS:
        return
    if parent.state is not JobState.SUCCEEDED and not edge.any_end:
        note = f"{parent.id} {parent.state}"
        cancel_waiting(step, child, Reason.PARENT_FAILED, note)
        return
    left = child.parents_left - 1
    hold = child.hold if left else child.hold & ~Hold.PARENTS
    step.put_job(child, rest(step, replace(child, parents_left=left, hold=hold)))
