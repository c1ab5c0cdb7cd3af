"""The children of a manager: this service starts, replaces, stops and kills them. It does not use the store.

A child counts from its start to the end of its process. One that starts slowly counts as if it worked, and one that
finishes its last jobs still counts, so there are never more than `max`; only a child that has a successor already does
not count. That is a child that recycles itself, and one that is replaced in a roll over: there the successor starts,
and the old child stops when the new one works.
"""

import asyncio
import logging
import os
from collections import deque
from collections.abc import Callable, Mapping

from holdfast.manager.child import Child, ChildStarter, ChildState
from holdfast.manager.restarts import Restarts
from holdfast.manager.scaling import ChildCounts, SizeLimits, children_to_start, children_to_stop
from holdfast.model.instants import SECOND, Micros, Seconds
from holdfast.model.text import shown
from holdfast.process_death import end_text
from holdfast.runtime import Runtime
from holdfast.service import Service

MAX_PAUSE_S: Seconds = 1.0
"""Between two checks of the children; each event also causes one."""
POLL_S: Seconds = 0.1
"""Between two checks where the end of a process causes no event (no pidfd)."""
KILL_MARGIN_S: Seconds = 15.0
"""A child is killed this long after its grace: a worker needs some seconds to release its jobs."""
ABANDON_S: Seconds = 10.0
"""A child that has been killed and is still there after this time hangs in the kernel; it is left alone."""
DRAIN_S: Seconds = 86_400.0
"""On the way down and in a roll over a child may finish jobs of this length."""
MAX_START_FAILURES = 3
"""If no child has ever started, the manager ends after this many tries."""
SLOW_START_US: Micros = 60 * SECOND
"""After this time the manager logs that a child has not started yet."""
OUTPUT_US: Micros = SECOND // 2
"""How long to wait for the last lines of a child before its end is reported."""
UNREACHABLE_STORE = 3
"""The exit code of a worker that cannot reach its store: it may be able to later."""

_logger = logging.getLogger("holdfast.manager")


class Children(Service):
    """All children of one manager."""

    name = "children"

    def __init__(
        self,
        runtime: Runtime,
        starter: ChildStarter,
        limits: SizeLimits,
        *,
        grace_s: Seconds,
        on_lost: Callable[[Child], None],
        on_changed: Callable[[], None],
        on_failure: Callable[[], None],
    ) -> None:
        """`on_lost`: a child has ended and may have left leases. `on_changed`: a child has started or ended.

        `on_failure`: no child can start; `failure` says why.
        """
        super().__init__(runtime)
        self._starter = starter
        self._limits = limits
        self._grace_s = grace_s
        self._on_lost = on_lost
        self._on_changed = on_changed
        self._on_failure = on_failure
        self._loop = asyncio.get_running_loop()
        self.size = limits.min
        """How many there should be."""
        self.busy: Mapping[str, int] = {}
        """Jobs that each worker runs, as of its last heartbeat, for the choice of the one that stops."""
        self.alive: list[Child] = []
        self.failure = ""
        self.killed = 0
        """Children that did not stop in time and were killed."""
        self._is_stopping = False
        self._has_started_any = False
        self._restarts = Restarts()
        self._to_roll: deque[Child] = deque()
        self._rolled: Child | None = None
        """The old child that finishes its jobs before the next one is replaced."""
        self._rolled_until: Micros = 0
        self._unreported: list[tuple[Child, int | None, Micros]] = []
        self._slow: set[int] = set()
        self._reaps_orphans = os.getpid() == 1

    # For the manager

    def counts(self) -> ChildCounts:
        return ChildCounts(
            starting=sum(child.state is ChildState.STARTING and not _is_extra(child) for child in self.alive),
            running=sum(child.state is ChildState.RUNNING for child in self.alive),
            stopping=sum(child.state is ChildState.STOPPING and not child.is_replaced for child in self.alive),
        )

    def worker_names(self) -> tuple[str, ...]:
        return tuple(child.worker for child in self.alive if child.worker)

    def roll_over(self) -> None:
        """Replace every child by a new one, one after the other. Also one that starts now: its code may be older."""
        if not self._is_stopping:
            self._to_roll = deque(child for child in self.alive if child.is_active)
            _logger.info("Roll over: %d children are replaced, one after the other.", len(self._to_roll))
            self.wake()

    def stop(self, grace_s: Seconds) -> None:
        """Start no more children, and stop all within this time."""
        self._is_stopping = True
        self._to_roll.clear()
        for child in self.alive:
            self._request_stop(child, grace_s)
        self.wake()

    def abandon(self) -> None:
        """Close all channels: what still runs reads their end, and stops by itself."""
        for child in self.alive:
            self._forget(child)
        self.alive.clear()

    # One look at all children

    async def tick(self) -> float | None:
        now = self.runtime.monotonic()
        for child in list(self.alive):
            self._receive(child, now)
            if child.check_end() and child.end is not None:
                self._note_end(child, child.end.exit_code, now)
        if self._reaps_orphans:
            self._reap_orphans()
        self._report_ends(now)
        self._kill_late(now)
        if not self._is_stopping:
            self._continue_roll_over(now)
            self._stop_surplus()
            self._start_missing(now)
            self._warn_about_slow_starts(now)
        return self._pause_s(now)

    def _pause_s(self, now: Micros) -> Seconds:
        ends = [child.kill_at for child in self.alive if child.kill_at is not None]
        ends += [until for _, _, until in self._unreported]
        if self._restarts.not_before > now:
            ends.append(self._restarts.not_before)
        pause_s = min([MAX_PAUSE_S, *((end - now) / SECOND for end in ends)])
        if self._unreported or any(child.pidfd is None for child in self.alive):
            pause_s = min(pause_s, POLL_S)
        return max(pause_s, 0.01)

    def _receive(self, child: Child, now: Micros) -> None:
        before = child.state, child.worker
        if child.receive(now):
            self._loop.add_reader(child.channel_fd, self._on_readable, child.channel_fd)
        if child.running_since is not None:
            self._restarts.note_running(child.created_at, child.running_since, now)
        if before == (child.state, child.worker):
            return
        if child.worker and not before[1]:
            self._has_started_any = True
            _logger.info("Child %s works, pid %d.", child, child.process.pid)
        if child.stop_reason and not child.is_requested_to_stop:
            _logger.info("Child %s stops: %s.", child, shown(child.stop_reason))
        self._on_changed()

    # Starting

    def _start_missing(self, now: Micros) -> None:
        missing = children_to_start(self._limits, self.size, self.counts())
        if not missing or now < self._restarts.not_before:
            return
        if self._restarts.one_at_a_time:
            missing = min(missing, 0 if self.counts().starting else 1)
        for _ in range(missing):
            self._start(None)

    def _start(self, predecessor: Child | None) -> Child:
        child = self._starter.start()
        child.predecessor = predecessor
        self.alive.append(child)
        self._loop.add_reader(child.channel_fd, self._on_readable, child.channel_fd)
        if child.pidfd is not None:
            self._loop.add_reader(child.pidfd, self._on_readable, child.pidfd)
        _logger.debug("Child %s starts.", child)
        return child

    def _on_readable(self, fd: int) -> None:
        self._loop.remove_reader(fd)  # else it would be reported again and again until the next look
        self.wake()

    def _warn_about_slow_starts(self, now: Micros) -> None:
        for child in self.alive:
            is_slow = child.state is ChildState.STARTING and now - child.created_at >= SLOW_START_US
            if is_slow and child.number not in self._slow:
                self._slow.add(child.number)
                _logger.warning("Child %s has not started within %d s.", child, SLOW_START_US // SECOND)

    # Stopping

    def _stop_surplus(self) -> None:
        surplus = children_to_stop(self.size, self.counts())
        candidates = [child for child in self.alive if child.is_active and not _is_extra(child)]
        candidates.sort(key=lambda child: (child.worker != "", self.busy.get(child.worker, 0), -child.number))
        for child in candidates[:surplus]:
            _logger.info("Child %s stops when its jobs have ended: there are more children than needed.", child)
            self._request_stop(child, DRAIN_S)

    def _request_stop(self, child: Child, grace_s: Seconds) -> None:
        kill_at = self.runtime.monotonic() + round((grace_s + KILL_MARGIN_S) * SECOND)
        child.request_stop(grace_s, kill_at)

    def _kill_late(self, now: Micros) -> None:
        for child in list(self.alive):
            if child.kill_at is None or now < child.kill_at:
                continue
            if child.was_killed:
                _logger.error("Child %s was killed and is still there; it is left alone.", child)
                self.alive.remove(child)
                self._forget(child)
                self._on_changed()
            else:
                _logger.error("Child %s did not stop in time and is killed.", child)
                self.killed += 1
                child.kill()
                child.kill_at = now + round(ABANDON_S * SECOND)

    # Roll over

    def _continue_roll_over(self, now: Micros) -> None:
        successor = next((child for child in self.alive if child.predecessor is not None), None)
        if successor is not None:
            old = successor.predecessor
            if old is not None and old.is_active and old in self.alive:
                if successor.state is ChildState.STARTING:
                    return
                old.is_replaced = True
                self._request_stop(old, DRAIN_S)
                self._rolled, self._rolled_until = old, now + round(self._grace_s * SECOND)
                _logger.info("Child %s takes the place of child %s.", successor, old)
            successor.predecessor = None
        if self._rolled is not None:
            if self._rolled in self.alive and now < self._rolled_until:
                return
            self._rolled = None
        while self._to_roll:
            old = self._to_roll.popleft()
            if old in self.alive and old.is_active:
                self._start(old)
                return

    # The end of a child

    def _note_end(self, child: Child, code: int | None, now: Micros) -> None:
        self._receive(child, now)  # what it sent before its end
        self.alive.remove(child)
        self._forget(child)
        self._on_changed()
        if not child.has_stopped:
            self._on_lost(child)
        if child.is_requested_to_stop or (child.is_replaced and child.has_stopped):
            _logger.info("Child %s %s.", child, "has stopped" if child.has_stopped else end_text(code))
            return
        if self._is_stopping:
            return
        self._restarts.note_end(child.created_at, child.running_since, now)
        self._unreported.append((child, code, now + OUTPUT_US))
        if child.predecessor is not None:
            self._to_roll.clear()

    def _forget(self, child: Child) -> None:
        for fd in (child.channel_fd, child.pidfd):
            if fd is not None and fd >= 0:
                self._loop.remove_reader(fd)
        child.close()

    def _report_ends(self, now: Micros) -> None:
        for entry in list(self._unreported):
            child, code, until = entry
            if not child.tail.has_ended() and now < until:
                continue
            self._unreported.remove(entry)
            self._report_end(child, code, now)

    def _report_end(self, child: Child, code: int | None, now: Micros) -> None:
        delay_s = max(0, self._restarts.not_before - now) / SECOND
        when = f"in {delay_s:.1f} s" if delay_s else "now"
        if child.worker:
            _logger.warning("Child %s %s. Another one starts %s.", child, end_text(code), when)
            return
        lines = "".join(f"\n    {shown(line[:1_000])}" for line in child.tail.lines) or " It has printed nothing."
        text = f"Child {child} could not start: it {end_text(code)}. Its last lines:{lines}"
        if child.predecessor is not None:
            _logger.error("%s\nThe roll over has ended. The children that are left work on.", text)
            return
        can_retry = self._has_started_any or self._restarts.failures < MAX_START_FAILURES or code == UNREACHABLE_STORE
        if can_retry:
            _logger.error("%s\nThe next try comes %s.", text, when)
        elif not self.failure:
            self.failure = f"No child could start, in {self._restarts.failures} tries. {text}"
            self._on_failure()

    def _reap_orphans(self) -> None:
        """As process 1: remove processes that have ended and whose parents have ended before."""
        own = {child.process.pid for child in self.alive}
        while True:
            try:
                ended = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
            except ChildProcessError:
                return
            if ended is None or ended.si_pid in own:
                return  # `tick` asks for the status of its own children
            os.waitpid(ended.si_pid, os.WNOHANG)


def _is_extra(child: Child) -> bool:
    """True while it starts and the child that it replaces still works."""
    return child.state is ChildState.STARTING and child.predecessor is not None and child.predecessor.is_active
