"""When a manager may start a child again after one has ended by itself.

The first restart comes at once. A child that ends soon after its start, or before it has started, delays the next one;
the delay doubles each time. It stays short if the child had begun to work: its jobs may have killed it, and the losses
of a job are limited. Children that were started before the last failure belong to the same incident, such as eight
children that are killed together, and count once. A child that was started after it and has worked for `HEALTHY_US`
ends the delays.
"""

from holdfast.model.instants import SECOND, Micros

HEALTHY_US: Micros = 10 * SECOND
"""A child that has worked this long works."""
FIRST_DELAY_US: Micros = SECOND // 2
LONGEST_DELAY_US: Micros = 30 * SECOND
LONGEST_DELAY_AFTER_WORK_US: Micros = SECOND


class Restarts:
    """The delays of one manager."""

    def __init__(self) -> None:
        self.failures = 0
        """Incidents in a row."""
        self.not_before: Micros = 0
        """No child is started before this time."""
        self._failed_at: Micros = 0

    def note_end(self, created_at: Micros, running_since: Micros | None, now: Micros) -> None:
        """A child has ended although it was not to stop."""
        if running_since is not None and now - running_since >= HEALTHY_US:
            self.failures = 0
            self.not_before = now
            return
        if not self.failures or created_at > self._failed_at:
            self.failures += 1
            self._failed_at = now
            longest_us = LONGEST_DELAY_US if running_since is None else LONGEST_DELAY_AFTER_WORK_US
            self.not_before = now + min(_delay_us(self.failures), longest_us)

    def note_running(self, created_at: Micros, running_since: Micros, now: Micros) -> None:
        """A child works."""
        if self.failures and created_at > self._failed_at and now - running_since >= HEALTHY_US:
            self.failures = 0

    @property
    def one_at_a_time(self) -> bool:
        """After two failures one child is started to try; the others follow when it has started."""
        return self.failures >= 2


def _delay_us(failures: int) -> Micros:
    return 0 if failures <= 1 else int(FIRST_DELAY_US * 2 ** min(failures - 2, 10))
