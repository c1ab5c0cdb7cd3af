"""Checks of the workers, by their records."""

from collections.abc import Iterator, Sequence

from holdfast.doctor.words import jobs, names
from holdfast.model.findings import NOTIFICATIONS, PROCESS_RECORDS, STALLS, START_WORKER, WORKERS, WRITES, Finding
from holdfast.model.instants import SECOND, Instant
from holdfast.model.records import WorkerRecord


def check_workers(
    workers: Sequence[WorkerRecord], ended: frozenset[str], now: Instant, *, has_jobs: bool
) -> Iterator[Finding]:
    """`ended`: workers whose process has certainly ended. `has_jobs`: some jobs have not ended."""
    live = [worker for worker in workers if worker.is_alive(now) and worker.worker not in ended]
    alive = [worker for worker in live if not worker.is_manager]
    short = [manager for manager in live if len(manager.children) < manager.min_children]
    for manager in short:
        yield WORKERS.warning(
            f"Manager {manager.worker} has {len(manager.children)} workers, and should have {manager.min_children} at "
            "least: it has just started, or its workers end again and again.",
            "Look into its log.",
        )
    gone = [worker for worker in workers if worker.worker in ended]
    silent = [worker for worker in workers if not worker.is_alive(now) and worker.worker not in ended]
    for kind, group in (("has ended without a stop", gone), ("has sent no heartbeat", silent)):
        for worker in group:
            age_s = (now - worker.seen) / SECOND
            place = f"on {worker.host or 'an unknown host'}, pid {worker.pid}"
            text = f"Worker {worker.worker} ({place}) {kind}; it was last seen {age_s:.0f} s ago"
            if worker.busy:
                yield WORKERS.warning(
                    f"{text}, with {jobs(worker.busy)} running. A live worker takes them over: at once if it is on "
                    "the same host, else when their leases have run out.",
                    "Look into its log, and see that a worker is alive.",
                )
            else:
                yield WORKERS.note(
                    f"{text}, with no job running.", "Its record is removed an hour after its last heartbeat."
                )
    if not alive and has_jobs:
        yield WORKERS.problem("No worker is alive, and jobs wait.", f"Start one: {START_WORKER}")
    elif not alive:
        yield WORKERS.note("No worker is alive. No job waits.", f"Start one: {START_WORKER}")
    elif not gone and not silent and not short:
        yield WORKERS.ok(f"{len(alive)} alive: {names(worker.worker for worker in alive)}.")


def check_stalls(workers: Sequence[WorkerRecord], now: Instant) -> Iterator[Finding]:
    stalled = [worker for worker in workers if worker.stalling_tasks and worker.is_alive(now)]
    for worker in stalled:
        yield STALLS.warning(
            f"On worker {worker.worker} code of these tasks held the GIL so long that no lease could be renewed: "
            f"{names(worker.stalling_tasks)}. It is most often a C extension. That worker runs their jobs alone now.",
            'Give the task `isolate="process"`, or release the GIL in that code.',
        )
    if not stalled and workers:
        yield STALLS.ok("No live worker has noticed code that holds the GIL for long.")


def check_process_records(
    workers: Sequence[WorkerRecord], own_host: str, known: frozenset[str] | None, now: Instant
) -> Iterator[Finding]:
    """`known`: the processes of this host whose records this process can see. None: it cannot look."""
    here = [worker for worker in workers if worker.host == own_host and worker.is_alive(now)]
    if known is None:
        yield PROCESS_RECORDS.warning(
            "This process cannot see the records of other processes on this host, so it cannot notice at once when one "
            "ends.",
            "Set XDG_RUNTIME_DIR to a folder of this user that can be written, with a short path.",
        )
        return
    unseen = [worker for worker in here if not worker.process or worker.process not in known]
    if unseen:
        yield PROCESS_RECORDS.warning(
            f"These workers run on this host, and their records are not in the folder that this process uses: "
            f"{names(worker.worker for worker in unseen)}. If one of them is killed, its jobs wait for their leases, "
            "and on a store in files notifications between them and this process are lost.",
            "Give all processes the same user and XDG_RUNTIME_DIR, or the same /tmp: PrivateTmp of systemd and "
            "containers each have their own.",
        )
    elif here:
        yield PROCESS_RECORDS.ok("This process sees the records of all live workers on this host.")


def check_notifications(*, push: bool, poll_s: float) -> Finding:
    if push:
        return NOTIFICATIONS.ok(f"Workers are notified of new jobs. They also poll every {poll_s:g} s.")
    return NOTIFICATIONS.note(
        "Notifications do not arrive, so processes poll. A job waits up to a quarter of a second.",
        "The finding about the proxy, or the setting `notify`, says why.",
    )


def check_writes(blocked_by: str) -> Finding:
    if blocked_by:
        return WRITES.problem(
            f"No process can write. {blocked_by}", "End or continue the process that is named. Heartbeats wait, too."
        )
    return WRITES.ok("Nothing keeps processes from writing.")
