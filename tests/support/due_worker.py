"""A worker that runs what is due and stops at once, for tests that look at retrying or snoozed jobs afterwards."""

from collections.abc import Callable

from holdfast.worker import Worker


class DueWorker(Worker):
    """It stops when a claim has found nothing. `until_empty` would wait for jobs that are retrying."""

    async def _work(self, on_ready: Callable[[], object]) -> None:
        def ready() -> None:
            assert self._services is not None
            assert self._stop_request is not None
            self._services.exchanger.on_idle = self._stop_request.request
            on_ready()

        await super()._work(ready)
