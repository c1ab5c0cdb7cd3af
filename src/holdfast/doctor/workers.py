"""Checks of the workers, by their records."""

from collections.abc import Iterator, Sequence

from holdfast.model.findings import NOTIFICATIONS, PROCESS_RECORDS, START_WORKER, WORKERS, WRITES, Finding
from holdfast.model.instants import Instant
from holdfast.model.records import WorkerRecord
from holdfast.operate.overview import StoreOverview
from holdfast.operate.words import names


def check_workers(overview: StoreOverview) -> Iterator[Finding]:
    troubles = [finding for finding in overview.troubles if finding.check == WORKERS.name]
    yield from troubles
    alive = [worker.name for worker in overview.workers if worker.alive and not worker.is_manager]
    if not alive and any(queue.depth for queue in overview.queues):
        yield WORKERS.problem("No worker is alive, and jobs wait.", f"Start one: {START_WORKER}")
    elif not alive:
        yield WORKERS.note("No worker is alive. No job waits.", f"Start one: {START_WORKER}")
    elif not troubles:
        yield WORKERS.ok(f"{len(alive)} alive: {names(alive)}.")


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
