"""Parents: jobs that wait for other jobs to end.

An edge exists from the child's enqueue until its parent has ended. A parent that succeeds releases its children. One
that fails or is cancelled cancels the children that wait for its success, and these cancel theirs. One step resolves a
bounded number of edges; the rest is found through `ended_parents` by later commands.
"""

from msgspec.structs import replace

from holdfast.engines.ledger.ends import cancel_waiting
from holdfast.engines.ledger.state import Name
from holdfast.engines.ledger.step import Step, as_waiting
from holdfast.model.job import JobKey, JobRecord
from holdfast.model.limits import MOST_RESOLVED
from holdfast.model.produce import Parent
from holdfast.model.records import Edge
from holdfast.model.states import TERMINAL, Hold, JobState, Reason


def link(step: Step, child: JobKey, arrival: int, parents: tuple[Parent, ...]) -> tuple[int, bool]:
    """Write edges to the parents that have not ended; the answer is their number, and whether a parent has failed."""
    left, failed = 0, False
    seen = set()
    for parent in parents:
        name = (parent.job.queue, parent.job.id)
        job = step.state.job(*name)
        if name in seen:
            continue
        seen.add(name)
        # P2: an ended parent needs no edge. P4: the others are counted.
        if job is not None and job.state not in TERMINAL:
            step.put(None, Edge(parent.job, child, arrival, parent.any_end))
            left += 1
        elif not parent.any_end and (job is None or job.state is not JobState.SUCCEEDED):
            # P3: it failed or was cancelled. No record: it was cancelled in this group, and its lifetimes are 0.
            failed = True
    return left, failed


def resolve(step: Step, budget: int = MOST_RESOLVED) -> None:
    """Resolve the edges of ended parents, and those of the children that this ends."""
    # P6: at most a number per step; later commands resolve the rest.
    while budget > 0 and (name := step.state.ended_parents()) is not None:
        budget -= resolve_one(step, name, budget)


def resolve_one(step: Step, name: Name, budget: int | None = None) -> int:
    """Resolve edges of one ended parent; the answer is their number. The parent is deleted if only they kept it."""
    parent = step.state.job(*name)
    assert parent is not None
    edges = sorted(step.state.children(*name, budget), key=lambda edge: edge.child)
    for edge in edges:
        step.put(edge, None)
        resolve_edge(step, parent, edge)
    # P8: the last edge is resolved.
    if parent.kept_until <= step.now and not step.state.children(*name, 1):
        step.drop_job(parent)
    return len(edges)


def resolve_edge(step: Step, parent: JobRecord, edge: Edge) -> None:
    # P9: an edge does not apply to a later job of that id.
    child = step.state.job(edge.child.queue, edge.child.id)
    if child is None or child.arrival != edge.arrival or not child.hold & Hold.PARENTS:
        return
    # P5: an end without success cancels the child, unless the edge accepts any end.
    if parent.state is not JobState.SUCCEEDED and not edge.any_end:
        note = f"{parent.id} {parent.state}"
        cancel_waiting(step, child, Reason.PARENT_FAILED, note)
        return
    # P4: the hold ends with the last parent.
    left = child.parents_left - 1
    hold = child.hold if left else child.hold & ~Hold.PARENTS
    step.put_job(child, as_waiting(step, replace(child, parents_left=left, hold=hold)))
