"""Checks of the App's tasks against the settings of workers and the time that the store takes to answer."""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from holdfast.config import WorkerSettings
from holdfast.declare.policy import TaskPolicy
from holdfast.model.findings import GRACE, INTERVALS, LEASE, TIMEOUT, Finding
from holdfast.model.instants import MINUTE, SECOND, Micros
from holdfast.operate.words import names

ROUND_TRIPS_PER_LEASE = 5
"""A lease is renewed when a third of it has passed. One lost answer and a second try must fit into the rest."""
LONG_LEASE_US: Micros = 10 * MINUTE
"""Only another host waits for a lease: a process that ends is noticed at once by the other processes of its host."""
LONG_POLL_S = 60.0
"""A lost notification delays a job by this much."""


class ExaminedTask(NamedTuple):
    """What the checks need to know of a task."""

    policy: TaskPolicy
    is_async: bool

    @property
    def can_be_stopped(self) -> bool:
        """A coroutine is cancelled, and a process is killed. A thread goes on."""
        return self.is_async or self.policy.isolate is not None

    @property
    def name(self) -> str:
        return self.policy.name


def check_tasks(tasks: Sequence[ExaminedTask], worker: WorkerSettings) -> Iterator[Finding]:
    """Without the store."""
    if not tasks:
        return
    yield _timeouts(tasks)
    yield _grace(tasks, worker.grace)
    yield from _long_leases(tasks)
    yield from _intervals(tasks, worker)


def _timeouts(tasks: Sequence[ExaminedTask]) -> Finding:
    late = [task.name for task in tasks if task.policy.timeout is not None and not task.can_be_stopped]
    if late:
        return TIMEOUT.warning(
            f"These tasks have a timeout and are plain functions, whose threads cannot be stopped: {names(late)}. "
            "After the timeout `ctx.aborted` is true, and the function keeps its slot until it returns.",
            'Give them `isolate="process"`, make them async, or let them look at `ctx.aborted`.',
        )
    return TIMEOUT.ok("Every task with a timeout can be stopped.")


def _grace(tasks: Sequence[ExaminedTask], grace_s: float) -> Finding:
    longer = [task for task in tasks if task.policy.timeout is not None and task.policy.timeout > grace_s * SECOND]
    if longer:
        longest_s = max(task.policy.timeout or 0 for task in longer) / SECOND
        return GRACE.warning(
            f"A worker that is stopped waits {grace_s:g} s, and handlers of these tasks may run longer: "
            f"{names(task.name for task in longer)}. They are aborted, and their jobs begin again.",
            f"Set `[worker] grace` to {longest_s:g} s, and the stop timeout of systemd, Docker or Kubernetes above "
            "it, or shorten the timeouts.",
        )
    return GRACE.ok(f"A worker that is stopped waits {grace_s:g} s; no timeout is longer.")


def _long_leases(tasks: Sequence[ExaminedTask]) -> Iterator[Finding]:
    long = [task for task in tasks if task.policy.lease > LONG_LEASE_US]
    if long:
        longest_s = max(task.policy.lease for task in long) / SECOND
        yield LEASE.note(
            f"If a host fails, the jobs of these tasks wait up to {longest_s:g} s until others may run them: "
            f"{names(task.name for task in long)}.",
            "A lease need not be as long as a handler runs: workers renew it. 30 s is enough for most.",
        )


def _intervals(tasks: Sequence[ExaminedTask], worker: WorkerSettings) -> Iterator[Finding]:
    shortest_s = min(task.policy.lease for task in tasks) / SECOND
    found = False
    if worker.poll_interval > LONG_POLL_S:
        found = True
        yield INTERVALS.warning(
            f"`[worker] poll_interval` is {worker.poll_interval:g} s. If a notification is lost, a job waits that "
            "long.",
            "Set it to some seconds: a poll that finds nothing is cheap.",
        )
    if worker.reap_interval > shortest_s:
        found = True
        yield INTERVALS.warning(
            f"`[worker] reap_interval` is {worker.reap_interval:g} s, and the shortest lease {shortest_s:g} s. Jobs "
            "of a host that has failed wait for both.",
            "Set reap_interval below the shortest lease.",
        )
    if not found:
        yield INTERVALS.ok(
            f"Workers poll every {worker.poll_interval:g} s and look for expired leases every "
            f"{worker.reap_interval:g} s."
        )


def check_leases(tasks: Sequence[ExaminedTask], round_trip_us: Micros) -> Finding:
    """Against the time that the store takes to answer."""
    answer = f"The store answers in {round_trip_us / 1000:.1f} ms"
    short = [task for task in tasks if task.policy.lease < ROUND_TRIPS_PER_LEASE * round_trip_us]
    if short:
        shortest_s = min(task.policy.lease for task in short) / SECOND
        return LEASE.warning(
            f"{answer}, and these tasks have leases of less than five times that, down to {shortest_s:g} s: "
            f"{names(task.name for task in short)}. A renewal may come too late, and the job then runs twice.",
            f"Set their `lease` to {2 * ROUND_TRIPS_PER_LEASE * round_trip_us / SECOND:.0f} s or more, or bring the "
            "worker nearer to the store.",
        )
    return LEASE.ok(f"{answer}; every lease is long enough for that.")
