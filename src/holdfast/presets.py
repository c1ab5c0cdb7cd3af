"""Named sets of retry and lease options for a task.

    @jobs.task(**presets.long_running.options())

| preset | attempts | delay before the next attempt | lease |
|---|---|---|---|
| `immediate` | 3 | none | 30 s |
| `seconds_apart` | 4 | 1 s, doubled up to 30 s, jitter 10 % | 30 s |
| `seconds_to_minutes` | 3 | 1 s, doubled up to 17 min, jitter 10 % | 30 s |
| `unlimited` | no limit | 10 s, doubled up to 5 min | 60 s |
| `long_running` | 3 | 1 min, doubled up to 1 h | 1 h |

Each preset has the defaults of one of the five designs that Holdfast is based on. A comment says where a design gives
no number and which number stands in its place. Jitter is a fraction of the delay, and the longest delay includes it;
some of the designs add jitter after that limit.
"""

from dataclasses import dataclass

from holdfast.model.retry import Backoff, exponential, fixed


@dataclass(frozen=True, slots=True)
class Preset:
    """Options of a task. `lease` is in seconds, as in `@task`. `max_attempts` counts every run; None: no limit."""

    max_attempts: int | None
    backoff: Backoff
    lease: float

    def options(self) -> dict[str, object]:
        """As keywords for a task.

        >>> long_running.options()["max_attempts"]
        3
        """
        return {"max_attempts": self.max_attempts, "backoff": self.backoff, "lease": self.lease}


immediate = Preset(max_attempts=3, backoff=fixed(0), lease=30.0)
"""For work that fails by chance and is cheap to repeat: a failed job goes back to the queue at once.

From design 003, a queue on Redis or files with results: three attempts in all (its text calls them retries), and 30 s
until a job without a heartbeat counts as stalled.
"""

seconds_apart = Preset(max_attempts=4, backoff=exponential(initial=1, multiplier=2, max=30, jitter=0.1), lease=30.0)
"""For a caller who waits: the job has ended within seconds, whatever happens.

From design 002, a queue on PostgreSQL. Its text sets the lease to 30 s and asks for exponential back-off with jitter.
The numbers are from its code: three retries after the first run, from 1 s doubling to 30 s, up to 0.25 s of jitter.
"""

seconds_to_minutes = Preset(
    max_attempts=3, backoff=exponential(initial=1, multiplier=2, max=1024, jitter=0.1), lease=30.0
)
"""For calls to other services; with a larger `max_attempts` the delays grow to 17 minutes.

From design 000, a worker pool on durable objects. Its text doubles the delay up to the initial delay times 2 to the
10th, with 10 % of jitter, and ends a handler after 30 s. It leaves the number of attempts and the initial delay to the
user: three and one second are from the examples of that project. A pool without retries there corresponds to
`max_attempts=1` here.
"""

unlimited = Preset(max_attempts=None, backoff=exponential(initial=10, multiplier=2, max=300, jitter=0), lease=60.0)
"""For work that must be done in the end: a job never fails, it is retried every 5 minutes.

From design 001, a worker with slots. Its text starts at 10 s, doubles up to 300 s, and has neither jitter nor a last
attempt. It names no lease; its code takes one minute.
"""

long_running = Preset(max_attempts=3, backoff=exponential(initial=60, multiplier=2, max=3600, jitter=0), lease=3600.0)
"""For handlers that run for minutes or hours.

From design 004, a queue on SQLite: three attempts, a delay of one minute that doubles up to an hour, no jitter, and one
hour until a task in progress counts as stale.
"""
