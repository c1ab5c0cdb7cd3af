"""What to write here for the names that other systems have, and for options in the wrong place."""

from collections.abc import Collection
from difflib import get_close_matches

_ATTEMPTS = "Use `max_attempts`, which counts the first run too: 3 retries are max_attempts=4."
_BACKOFF = "Use `backoff`: seconds, a list of seconds, or exponential(...)."
_CONTEXT = "Annotate the first parameter with `Context`; the worker passes it."
_DELAY = "Use task.using(delay=...).enqueue(...)."
_AT = "Use task.using(at=...).enqueue(...), with a datetime that has a time zone."
_LATE = "It is always so: a job ends after its handler has returned, and runs again if its worker is lost."
_TIMEOUT = "Use `timeout`."
_PARENTS = "There are no chains yet. Let the handler of the first job enqueue the next: docs/guides/chaining.md."
_SCHEDULE = "There are no schedules yet. Call enqueue from cron, or from a timer of yours."
_ID = "Use task.using(id=...).enqueue(...)."

OTHER_NAMES = {
    "_defer_by": _DELAY,
    "_defer_until": _AT,
    "_job_id": _ID,
    "ack_late": _LATE,
    "acks_late": _LATE,
    "actor_name": "Use `name`.",
    "after": _PARENTS,
    "autoretry_for": "Use `retry_on`.",
    "bind": _CONTEXT,
    "countdown": _DELAY,
    "cron": _SCHEDULE,
    "debounce": "Use `unique_key`.",
    "default_retry_delay": _BACKOFF,
    "defer_by": _DELAY,
    "defer_until": _AT,
    "depends_on": _PARENTS,
    "dont_autoretry_for": "Use `give_up_on`.",
    "enqueue_in": _DELAY,
    "eta": _AT,
    "failure_ttl": "Use `failed_retention`.",
    "ignore_result": "Use result_ttl=0.",
    "job_id": _ID,
    "job_timeout": _TIMEOUT,
    "keep_result": "Use `result_ttl`.",
    "lane_limit": "It is a setting of the queue: `lane_max_depth`.",
    "lock": "Use `lane`: the jobs of a lane run one after the other.",
    "max_backoff": _BACKOFF,
    "max_retries": _ATTEMPTS,
    "max_tries": "Use `max_attempts`.",
    "min_backoff": _BACKOFF,
    "pass_context": _CONTEXT,
    "queue_name": "Use `queue`.",
    "queueing_lock": "Use `unique_key`.",
    "rate_limit": "There are no limits of rate. `concurrency` limits the attempts in parallel, per worker.",
    "reject_on_worker_lost": "Use `max_losses`.",
    "result_expires": "Use `result_ttl`.",
    "retries": _ATTEMPTS,
    "retry": "Use `max_attempts` and `backoff`.",
    "retry_backoff": _BACKOFF,
    "retry_backoff_max": _BACKOFF,
    "retry_delay": _BACKOFF,
    "retry_jitter": _BACKOFF,
    "retry_kwargs": "Use `max_attempts` and `backoff`.",
    "retry_on_error": "Use `retry_on`.",
    "retry_when": "Use `retry_on`.",
    "run_at": _AT,
    "run_every": _SCHEDULE,
    "schedule": _SCHEDULE,
    "schedule_at": _AT,
    "schedule_in": _DELAY,
    "serializer": "Use `codec`.",
    "soft_time_limit": _TIMEOUT,
    "store_results": "Use result_ttl=0 to keep none.",
    "tags": "Use task.using(metadata={...}).enqueue(...).",
    "task_id": _ID,
    "task_name": "Use `name`.",
    "throws": "Use `give_up_on`.",
    "time_limit": _TIMEOUT,
    "tries": "Use `max_attempts`.",
}
"""Options of Celery, RQ, Huey, Dramatiq, Procrastinate, arq and Taskiq, and what to write instead."""


def advice_on_option(
    option: str, options: Collection[str], *, of_task: Collection[str], of_job: Collection[str]
) -> str:
    """What to write instead of an unknown option, as a sentence; empty if nothing is near.

    `options` are those that may be given here, `of_task` those of the decorator, `of_job` those of `using`.
    """
    if option in of_job:
        return f"It is an option of one job: task.using({option}=...).enqueue(...)."
    if option in of_task:
        return "It is an option of the task: give it to the decorator, @jobs.task(...)."
    if option in OTHER_NAMES:
        return OTHER_NAMES[option]
    near = get_close_matches(option, options, n=1)
    return f"Did you mean `{near[0]}`?" if near else ""


def advice_on_argument(name: str, parameters: Collection[str], of_job: Collection[str]) -> str:
    """What to write instead of an argument that the function does not take."""
    if name in of_job:
        return f"It is an option of the job: task.using({name}=...).enqueue(...)."
    near = get_close_matches(name, parameters, n=1)
    return f"Did you mean `{near[0]}`?" if near else OTHER_NAMES.get(name, "")
