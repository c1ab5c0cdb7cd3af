"""What a worker says of itself when it starts.

holdfast 0.1.0 · worker ada-7f3c09ab · app jobs:jobs
store    sqlite  /home/you/shop/jobs.db   created · durable (every commit synced)
tasks    flaky  resize
queues   default · 10 slots · lease 30 s
ready    Ctrl-C stops gently, twice stops now
"""

from collections.abc import Mapping
from typing import Any

import holdfast
from holdfast.app import App
from holdfast.cli.escape import safe
from holdfast.cli.facts import facts_of
from holdfast.cli.spans import setting
from holdfast.model.instants import SECOND
from holdfast.telemetry.events import WorkerStarted


def banner(app: App[Any], name: str, started: WorkerStarted, limits: Mapping[str, int | None], *, created: bool) -> str:
    facts = facts_of(app)
    new = "created · " if created else ""
    lines = [
        f"holdfast {holdfast.__version__} · worker {started.worker} · app {name}",
        f"store    {facts.engine}  {facts.place}   {new}{facts.promise}",
        f"tasks    {'  '.join(started.tasks) or 'none: declare some with @jobs.task'}",
        f"queues   {_queues(started, limits)} · {started.slots} slots{_lease(app)}",
        "ready    Ctrl-C stops gently, twice stops now",
    ]
    return "".join(f"{safe(line)}\n" for line in lines)


def _queues(started: WorkerStarted, limits: Mapping[str, int | None]) -> str:
    named = [f"{queue}:{limit}" if (limit := limits.get(queue)) else queue for queue in started.queues]
    return "  ".join(named) or "none"


def _lease(app: App[Any]) -> str:
    lengths = sorted({task.policy.lease for task in app.registry.values() if not task.policy.remote})
    if not lengths:
        return ""
    low, high = (setting(length / SECOND) for length in (lengths[0], lengths[-1]))
    return f" · lease {low}" if low == high else f" · leases {low} to {high}"
