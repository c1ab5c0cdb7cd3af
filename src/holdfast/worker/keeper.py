"""The keeper: keeps leases alive from a thread and a connection that no handler can starve.

A lease lives 30 seconds unless it is renewed, and user code may block the event loop for longer than that. So renewals
go from a thread of their own through `engine.renewal_connection()`, all that are due in one batch, each at a third of
its lease. The same thread writes the worker's record. What the answers say (lost, cancel, hold, stop) is carried to the
loop.

If renewals fail, the attempts must stop before their leases run out, since someone else may take the jobs then. That is
`fence`; it is called from the watcher's thread, because this one may be stuck in the very call that does not return.
An attempt that has ended is left alone: its outcome came while the lease was good, and is still sent.
"""

import logging
from collections.abc import Callable

from holdfast.context import AbortReason
from holdfast.engine import Engine, RenewalConnection
from holdfast.model.instants import SECOND
from holdfast.model.records import WorkerRecord
from holdfast.model.work import Renewal, RenewStatus
from holdfast.runtime import Runtime
from holdfast.service import back_off
from holdfast.worker.attempt import LeasedAttempt, fence_age, renewal_age
from holdfast.worker.slots import Slots

HEARTBEAT_US = 5 * SECOND
MAX_PAUSE_US = SECOND // 2
"""A lease may be as short as two seconds, and one can be claimed at any time: look at least this often."""
MAX_RENEWALS_PER_CALL = 1_000

_logger = logging.getLogger("holdfast.keeper")

Deliver = Callable[[LeasedAttempt, RenewStatus], None]


class Keeper:
    """Renews and beats. `round` may be called by a test in place of the thread."""

    def __init__(
        self,
        runtime: Runtime,
        engine: Engine,
        slots: Slots,
        *,
        record: Callable[[], WorkerRecord],
        deliver: Deliver,
        on_stop_requested: Callable[[], None],
    ) -> None:
        self._runtime = runtime
        self._engine = engine
        self._slots = slots
        self._record = record
        self._deliver = deliver
        self._on_stop_requested = on_stop_requested
        self._connection: RenewalConnection | None = None
        self._wake = runtime.event()
        self._renew_all = False
        self._ended = runtime.event()
        self._ended.set()
        self._stopping = False
        self._failures = 0
        self._heartbeat_at = runtime.boot() + HEARTBEAT_US  # the first one is the worker's own, as it starts

    def start(self) -> None:
        self._ended.clear()
        self._runtime.thread(self._work, name="holdfast keeper")

    def renew_now(self) -> None:
        """Someone rang this worker's bell: renew and beat now, to hear why. From any thread."""
        self._renew_all = True
        self._wake.set()

    def stop(self) -> None:
        """Ask the thread to end; `wait_ended` waits for it."""
        self._stopping = True
        self._wake.set()

    def wait_ended(self, seconds: float) -> bool:
        return self._ended.wait(seconds)

    def _work(self) -> None:
        try:
            while not self._stopping:
                rest = self.run_once()
                self._wake.wait(rest)
                self._wake.clear()
        finally:
            self._close()
            self._ended.set()

    def run_once(self) -> float:
        """Renew and beat what is due; answer the seconds until the next round. Survives whatever the engine does."""
        renew_all, self._renew_all = self._renew_all, False
        try:
            self._renew(renew_all)
            self._send_heartbeat(renew_all)
        except Exception as error:
            self._failures += 1
            pause = min(back_off(self._failures), MAX_PAUSE_US / SECOND)
            _logger.warning("Leases could not be renewed: %s Next try in %.1f s.", error, pause)
            self._renew_all = renew_all or self._renew_all
            self._close()
            return pause
        self._failures = 0
        return self._seconds_to_next()

    # Renewing

    def _renew(self, everything: bool) -> None:
        now = self._runtime.boot()
        due = [
            attempt for attempt in list(self._slots.attempts.values()) if self._wants_renewal(attempt, now, everything)
        ]
        for start in range(0, len(due), MAX_RENEWALS_PER_CALL):
            self._renew_some(due[start : start + MAX_RENEWALS_PER_CALL])

    def _wants_renewal(self, attempt: LeasedAttempt, now: int, everything: bool) -> bool:
        if not attempt.renewable:
            return False  # let it run out
        # Those due within the next sixth come along: one batch instead of many.
        lease = attempt.lease.lease_len
        return everything or now - attempt.renewed_at >= renewal_age(lease) - lease // 6

    def _renew_some(self, attempts: list[LeasedAttempt]) -> None:
        progress = [attempt.progress for attempt in attempts]
        renewals = [
            Renewal(
                attempt.lease.queue,
                attempt.lease.id,
                attempt.lease.token,
                None if said is attempt.sent_progress else said,
            )
            for attempt, said in zip(attempts, progress, strict=True)
        ]
        sent = self._runtime.boot()
        answer = self._open_connection().renew(renewals)
        for attempt, said, renewed in zip(attempts, progress, answer.jobs, strict=True):
            if renewed.status is not RenewStatus.LOST:
                attempt.renewed_at = sent
                attempt.sent_progress = said
            if renewed.status is not RenewStatus.HELD:
                self._deliver(attempt, renewed.status)

    def _seconds_to_next(self) -> float:
        now = self._runtime.boot()
        next_at = min(self._heartbeat_at, now + MAX_PAUSE_US)
        for attempt in list(self._slots.attempts.values()):
            if attempt.renewable:
                next_at = min(next_at, attempt.renewed_at + renewal_age(attempt.lease.lease_len))
        return max(0.0, (next_at - now) / SECOND)

    # Beating

    def _send_heartbeat(self, renew_all: bool) -> None:
        now = self._runtime.boot()
        if renew_all or now >= self._heartbeat_at:
            self._heartbeat_at = now + HEARTBEAT_US
            if self._open_connection().heartbeat(self._record()).stop:
                self._on_stop_requested()

    # The line

    def _open_connection(self) -> RenewalConnection:
        if self._connection is None:
            self._connection = self._engine.renewal_connection()
        return self._connection

    def _close(self) -> None:
        line, self._connection = self._connection, None
        if line is not None:
            try:
                line.close()
            except Exception:
                _logger.debug("The renewal connection could not be closed.", exc_info=True)

    # Fencing

    def fence(self) -> list[LeasedAttempt]:
        """Attempts whose leases could not be renewed in time: they are marked here, and have to stop."""
        now = self._runtime.boot()
        return [
            attempt
            for attempt in list(self._slots.attempts.values())
            if now - attempt.renewed_at >= fence_age(attempt.lease.lease_len)
            and attempt.mark(AbortReason.OWNERSHIP_LOST)
        ]
