"""An App that runs the kinds that end their process, in processes of their own."""

from typing import Any

from holdfast import App, Context, kinds

jobs: App[Any] = App("memory://")


@jobs.task(isolate="process", backoff=0, max_attempts=3, aliases=["crash_before"])
def crash(ctx: Context, kind: str, key: str) -> Any:
    return kinds.run_crashing(ctx, kind, key)
