"""Renewals through the engine itself, for one that any thread may call and wait for."""

from collections.abc import Callable, Iterable
from typing import Any

from holdfast.engine import RenewalConnection
from holdfast.model import work
from holdfast.model.command import Command
from holdfast.model.records import WorkerRecord


class DirectRenewalConnection(RenewalConnection):
    """Needs no event loop, and nothing to close."""

    def __init__(self, perform_now: Callable[[Command[Any]], Any]) -> None:
        self._perform_now = perform_now

    def renew(self, jobs: Iterable[work.Renewal]) -> work.RenewAnswer:
        answer: work.RenewAnswer = self._perform_now(work.Renew(jobs=tuple(jobs)))
        return answer

    def heartbeat(self, worker: WorkerRecord) -> work.HeartbeatAnswer:
        answer: work.HeartbeatAnswer = self._perform_now(work.Heartbeat(worker=worker))
        return answer

    def close(self) -> None: ...
