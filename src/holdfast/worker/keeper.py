"""The keeper: a thread that renews the leases of this process and sends its heartbeat.

A lease expires (after 30 seconds by default) unless it is renewed, and a handler may block the event loop for longer.
So the keeper has a thread and a connection of its own (`engine.renewal_connection()`): a blocked loop does not stop
renewals. Two things still can. Code that holds the GIL without a break, such as a C extension, stops every thread; the
worker notices that afterwards (`stalls.py`). And on SQLite a transaction that holds the only write lock makes renewals
wait; the loop watcher takes the lock back from a handler that keeps it for too long.

A worker that cannot renew must not claim: the jobs would be lost again and again. So the keeper connects before the
first claim, and `problem` says why renewals fail or take too long. While there is a problem the worker claims nothing,
and the keeper tries a heartbeat every half second.

Each lease is renewed when a third of it has passed, all that are due in one call. A lease whose handler has reported
progress is renewed once a second, because renewals carry the progress. The answers (lost, cancel, hold,
stop) are passed on to the event loop. While calls are so slow that a heartbeat in between would make a renewal late, no
heartbeat is sent.

If renewals fail, an attempt must stop before its lease expires, because another worker may take the job then. `fence`
finds these attempts. The loop watcher calls it from its own thread, because the keeper's thread may be stuck in the
call that does not return. `fence` skips an attempt that has ended: its outcome is still sent.
"""

import logging
from collections.abc import Callable
from typing import TypeVar

from holdfast.context import AbortReason
from holdfast.engine import Engine, RenewalConnection
from holdfast.errors import EngineError
from holdfast.model.instants import SECOND, Instant, Micros, Seconds
from holdfast.model.records import WorkerRecord
from holdfast.model.work import Renewal, RenewStatus
from holdfast.runtime import Runtime
from holdfast.service import back_off
from holdfast.worker.attempt import LeasedAttempt, fence_age, renewal_age
from holdfast.worker.slots import Slots

HEARTBEAT_US: Micros = 5 * SECOND
"""The worker's record is written this often. Operators count a worker as dead after three missed heartbeats."""
BUSY_HEARTBEAT_US: Micros = SECOND
"""While the number of busy slots changes, the record is written this often, so that operators see the number."""
PROGRESS_US: Micros = SECOND
"""A new progress is sent when the last renewal is this old: at most one write a second for each job that reports."""
MAX_PAUSE_US: Micros = SECOND // 2
"""The keeper checks at least this often: a new lease can come at any time and may be only two seconds long."""
BUSY_PAUSE_S: Seconds = 0.1
"""Pause before a lease is renewed again whose job another transaction has locked."""
MAX_RENEWALS_PER_CALL = 1_000
"""Leases in one call, so that a call stays short."""

_logger = logging.getLogger("holdfast.keeper")

NOT_CONNECTED = "the keeper has not connected yet"

A = TypeVar("A")

OnStatus = Callable[[LeasedAttempt, RenewStatus], None]
"""Called in the keeper's thread with every renewal answer that is not plain `held`."""


class Keeper:
    """Renews leases and sends heartbeats. A test may call `run_once` instead of starting the thread."""

    def __init__(
        self,
        runtime: Runtime,
        engine: Engine,
        slots: Slots,
        *,
        record: Callable[[], WorkerRecord],
        on_status: OnStatus,
        on_stop_requested: Callable[[], None],
        on_recovered: Callable[[], None] = lambda: None,
        on_store_error: Callable[[EngineError], None] | None = None,
        on_progress: Callable[[LeasedAttempt, Instant], None] = lambda attempt, at: None,
        shortest_lease_us: Micros = 30 * SECOND,
    ) -> None:
        """`on_recovered` is called in the keeper's thread when a call has succeeded after one that failed or was slow.

        `on_store_error` is called there when a call has failed, and logs it. None: the keeper does that itself.
        `on_progress` is called there when the `sent_progress` of an attempt is stored.
        `shortest_lease_us`: of the tasks of this worker.
        """
        self._runtime = runtime
        self._engine = engine
        self._slots = slots
        self._record = record
        self._on_status = on_status
        self._on_stop_requested = on_stop_requested
        self._on_recovered = on_recovered
        self._on_store_error = on_store_error
        self._on_progress = on_progress
        self._logged_elsewhere = False
        """The last problem was an error of the store, which another part of the worker logs."""
        self.max_call_us = fence_age(shortest_lease_us) - renewal_age(shortest_lease_us)
        """A call that takes longer comes too late for the shortest lease."""
        self._call_sent_at: Micros | None = None
        """When the call in flight was sent, on the monotonic clock."""
        self._call_us: Micros = 0
        """How long the last call took."""
        self._problem: str | None = None
        self._connection: RenewalConnection | None = None
        self._wake = runtime.event()
        self._renew_all = False
        self._ended = runtime.event()
        self._ended.set()
        self._stopping = False
        self._failures = 0
        self._met_busy = False
        self._sent_busy = 0
        """The number of busy slots in the last heartbeat."""
        self._heartbeat_at = runtime.boot()  # the keeper's own first one: the worker's session may depend on it

    def start(self) -> None:
        """Start the thread. Until its first heartbeat has been answered, that is the `problem`."""
        self._problem = NOT_CONNECTED
        self._ended.clear()
        self._runtime.thread(self._work, name="holdfast keeper")

    @property
    def problem(self) -> str | None:
        """Why leases cannot be renewed in time. None: they can. Call from any thread."""
        sent_at = self._call_sent_at
        if sent_at is not None:
            waited_us = self._runtime.monotonic() - sent_at
            if waited_us > self.max_call_us:
                return f"a renewal has been in flight for {waited_us / SECOND:.1f} s"
        return self._problem

    def renew_now(self) -> None:
        """The worker was notified: renew and send the heartbeat now; the answers say why. Call from any thread."""
        self._renew_all = True
        self._wake.set()

    def stop(self) -> None:
        """Ask the thread to end; `wait_ended` waits for it."""
        self._stopping = True
        self._wake.set()

    def wait_ended(self, seconds: Seconds) -> bool:
        return self._ended.wait(seconds)

    def _work(self) -> None:
        try:
            while not self._stopping:
                pause = self.run_once()
                self._wake.wait(pause)
                self._wake.clear()
        finally:
            self._close()
            self._ended.set()

    def run_once(self) -> Seconds:
        """Renew what is due and send the heartbeat if it is due; return the pause until the next run. Never raises."""
        renew_all, self._renew_all = self._renew_all, False
        try:
            self._renew(renew_all)
            self._send_heartbeat(renew_all)
        except Exception as error:
            self._failures += 1
            self._logged_elsewhere = self._on_store_error is not None and isinstance(error, EngineError)
            self._note_problem(f"renewals fail: {error}")
            if self._on_store_error is not None and isinstance(error, EngineError):
                self._on_store_error(error)
            self._renew_all = renew_all or self._renew_all
            if self._failures > 1:  # the first failure may be over soon, and a new connection may be impossible
                self._close()
            return min(back_off(self._failures), MAX_PAUSE_US / SECOND)
        self._failures = 0
        return self._seconds_to_next()

    def _note_problem(self, problem: str | None) -> None:
        before, self._problem = self._problem, problem
        if problem is not None:
            self._heartbeat_at = self._runtime.boot()  # the next one shows whether the problem is over
            first = before is None or self._failures == 1
            _logger.log(
                self._log_level if first else logging.DEBUG,
                "Leases cannot be kept, so no job is claimed until they can: %s",
                problem,
            )
        elif before is not None:
            if before is not NOT_CONNECTED:
                _logger.log(self._log_level, "Leases can be renewed again; jobs are claimed again.")
            self._on_recovered()

    @property
    def _log_level(self) -> int:
        return logging.INFO if self._logged_elsewhere else logging.WARNING

    def _call(self, call: Callable[[RenewalConnection], A]) -> A:
        sent_at = self._call_sent_at = self._runtime.monotonic()  # the sleep of a host is no slow call
        try:
            answer = call(self._open_connection())
        finally:
            self._call_sent_at = None
        took_us = self._call_us = self._runtime.monotonic() - sent_at
        slow = took_us > self.max_call_us
        if slow:
            self._logged_elsewhere = False
        self._note_problem(f"the last renewal took {took_us / SECOND:.1f} s" if slow else None)
        return answer

    # Renewing

    def _renew(self, everything: bool) -> None:
        now = self._runtime.boot()
        self._met_busy = False
        due = [
            attempt for attempt in list(self._slots.attempts.values()) if self._wants_renewal(attempt, now, everything)
        ]
        for start in range(0, len(due), MAX_RENEWALS_PER_CALL):
            self._renew_some(due[start : start + MAX_RENEWALS_PER_CALL])

    def _wants_renewal(self, attempt: LeasedAttempt, now: Micros, everything: bool) -> bool:
        if not attempt.renewable:
            return False  # its lease may expire
        # Renew those due within the next sixth of the lease too: one call instead of many.
        lease_us = attempt.lease.lease_len
        if attempt.progress is not attempt.sent_progress and now - attempt.renewed_at >= PROGRESS_US:
            return True
        return everything or now - attempt.renewed_at >= renewal_age(lease_us) - lease_us // 6

    def _renew_some(self, attempts: list[LeasedAttempt]) -> None:
        progress = [attempt.progress for attempt in attempts]
        renewals = [
            Renewal(
                attempt.lease.queue,
                attempt.lease.id,
                attempt.lease.token,
                None if latest is attempt.sent_progress else latest,
            )
            for attempt, latest in zip(attempts, progress, strict=True)
        ]
        sent_at = self._runtime.boot()
        answer = self._call(lambda connection: connection.renew(renewals))
        for attempt, latest, result in zip(attempts, progress, answer.jobs, strict=True):
            if result.status is RenewStatus.BUSY:
                self._met_busy = True  # T9: the lease runs on as it was, and the fence counts from its last renewal
                continue
            if result.status is not RenewStatus.LOST:
                attempt.renewed_at = sent_at
                if latest is not attempt.sent_progress:
                    attempt.sent_progress = latest
                    self._on_progress(attempt, answer.at.wall)
            if result.status is not RenewStatus.HELD:
                self._on_status(attempt, result.status)

    def _seconds_to_next(self) -> Seconds:
        now = self._runtime.boot()
        next_at = now + MAX_PAUSE_US
        if not self._heartbeat_gives_way():
            next_at = min(next_at, self._heartbeat_at)
        for attempt in list(self._slots.attempts.values()):
            if attempt.renewable:
                next_at = min(next_at, attempt.renewed_at + renewal_age(attempt.lease.lease_len))
        busy_us = round(BUSY_PAUSE_S * SECOND) if self._met_busy else 0
        return max(next_at - now, busy_us, 0 if self._problem is None else MAX_PAUSE_US) / SECOND

    # The heartbeat

    def _send_heartbeat(self, renew_all: bool) -> None:
        now = self._runtime.boot()
        is_due = now >= self._heartbeat_at or self._is_busy_changed(now)
        if renew_all or (is_due and not self._heartbeat_gives_way()):
            busy = self._slots.busy
            stop = self._call(lambda connection: connection.heartbeat(self._record())).stop
            self._sent_busy = busy
            if self._problem is None:
                self._heartbeat_at = now + HEARTBEAT_US
            if stop:
                self._on_stop_requested()

    def _heartbeat_gives_way(self) -> bool:
        """True if two calls one after the other take as long as the time between two renewals of a lease."""
        attempts = list(self._slots.attempts.values())
        return any(one.renewable and self._call_us >= renewal_age(one.lease.lease_len) // 2 for one in attempts)

    def _is_busy_changed(self, now: Micros) -> bool:
        """True if the stored number of busy slots is old and wrong."""
        sent_at = self._heartbeat_at - HEARTBEAT_US
        return self._slots.busy != self._sent_busy and now - sent_at >= BUSY_HEARTBEAT_US

    # The connection

    def _open_connection(self) -> RenewalConnection:
        if self._connection is None:
            self._connection = self._engine.renewal_connection()
        return self._connection

    def _close(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            try:
                connection.close()
            except Exception:
                _logger.debug("The renewal connection could not be closed.", exc_info=True)

    # Fencing

    def fence(self) -> list[LeasedAttempt]:
        """Mark and return the attempts whose leases could not be renewed in time: they must stop."""
        now = self._runtime.boot()
        return [
            attempt
            for attempt in list(self._slots.attempts.values())
            if now - attempt.renewed_at >= fence_age(attempt.lease.lease_len)
            and attempt.mark(AbortReason.OWNERSHIP_LOST)
        ]
