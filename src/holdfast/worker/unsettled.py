"""Attempts that have ended and are not settled yet. They are settled in batches of a limited size."""

from collections import deque

from holdfast.model.check import MAX_SETTLEMENTS
from holdfast.worker.attempt import LeasedAttempt

MAX_RESULT_BYTES = 1024 * 1024
"""Results in one batch, so that one exchange stays short."""


class UnsettledAttempts:
    """First in, first out. A batch has at most 500 settlements and 1 MiB of results, but at least one settlement."""

    def __init__(self) -> None:
        self._waiting: deque[LeasedAttempt] = deque()
        self._bytes = 0

    def __len__(self) -> int:
        return len(self._waiting)

    def put(self, attempt: LeasedAttempt) -> None:
        self._waiting.append(attempt)
        settlement = attempt.settlement
        if settlement is not None and settlement.result is not None:
            self._bytes += len(settlement.result)

    def next_batch(self) -> list[LeasedAttempt]:
        waiting = self._waiting
        if len(waiting) <= MAX_SETTLEMENTS and self._bytes <= MAX_RESULT_BYTES:
            batch = list(waiting)
            waiting.clear()
            self._bytes = 0
            return batch
        batch, bytes_left = [], MAX_RESULT_BYTES
        while waiting and len(batch) < MAX_SETTLEMENTS:
            bytes_left -= _size(waiting[0])
            if batch and bytes_left < 0:
                break
            batch.append(waiting.popleft())
            self._bytes -= _size(batch[-1])
        return batch

    def put_back(self, batch: list[LeasedAttempt]) -> None:
        """The exchange was cancelled. Its batch is sent again before the others; the engine recognises it."""
        self._waiting.extendleft(reversed(batch))
        self._bytes += sum(map(_size, batch))


def _size(attempt: LeasedAttempt) -> int:
    settlement = attempt.settlement
    return 0 if settlement is None or settlement.result is None else len(settlement.result)
