"""The defaults of the five designs Holdfast grew from, by number, for people who come from one of them.

    @jobs.task(**presets.seed_004.options())

Each says how often a job is run, how long it waits between runs, and for how long a worker owns it. Where a design
gives no number, the comment says what was taken in its place. Jitter is a share of the delay here, and the longest
delay holds after it; some of the designs added theirs on top.
"""

from dataclasses import dataclass

from holdfast.model.retry import Backoff, exponential, fixed


@dataclass(frozen=True, slots=True)
class Preset:
    """What one design does by default. `lease` is in seconds, as `@task` takes it; `max_attempts` counts all runs."""

    max_attempts: int | None
    backoff: Backoff
    lease: float

    def options(self) -> dict[str, object]:
        """As keywords for a task.

        >>> seed_004.options()["max_attempts"]
        3
        """
        return {"max_attempts": self.max_attempts, "backoff": self.backoff, "lease": self.lease}


seed_000 = Preset(max_attempts=3, backoff=exponential(initial=1, multiplier=2, max=1024, jitter=0.1), lease=30.0)
"""Worker pool on durable objects.

The text doubles the delay unless told otherwise, stops growing at the initial delay times 2 to the 10th, and spreads by
ten percent either way; an object's handler is ended after 30 s. How often, and after how long at first, is left to its
user: three runs and one second are what the project's own examples say. A pool declared without retrying dead-letters
at the first failure: give `max_attempts=1` for that.
"""

seed_001 = Preset(max_attempts=None, backoff=exponential(initial=10, multiplier=2, max=300, jitter=0), lease=60.0)
"""Worker with slots.

The text starts at 10 s, doubles, and stays at 300 s; it has no jitter and no last attempt. It names no lease; its code
takes one minute and renews at half of it.
"""

seed_002 = Preset(max_attempts=4, backoff=exponential(initial=1, multiplier=2, max=30, jitter=0.1), lease=30.0)
"""Queue and workers on PostgreSQL.

The text sets the lease to 30 s and promises exponential back-off with jitter up to a number of retries. The numbers are
in its code: three retries after the first run, from 1 s doubling to 30 s, up to a quarter of a second of jitter.
"""

seed_003 = Preset(max_attempts=3, backoff=fixed(0), lease=30.0)
"""Queue on Redis or files with results.

The text gives three attempts in all, though it calls them retries, and 30 s until a silent job counts as stalled. A
failed job goes back to the queue at once.
"""

seed_004 = Preset(max_attempts=3, backoff=exponential(initial=60, multiplier=2, max=3600, jitter=0), lease=3600.0)
"""Queue on SQLite.

The text gives three attempts, a minute doubling to at most an hour, no jitter, and one hour until a task in progress
counts as stale.
"""
