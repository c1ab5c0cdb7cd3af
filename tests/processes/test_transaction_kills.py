"""Workers that are killed at every step of ending a job inside a transaction: the effects are there exactly once.

A step is a line of code, of the handler or of what ends its transaction and settles its job. Of the lines between the
handler's first one and the next claim, so many are chosen, and for each a worker is killed right there.
"""

import asyncio
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any, Self

import pytest
from user_transactions import STORES, Store

from holdfast import App

PROGRAM = Path(__file__).parents[1] / "support" / "transaction_kill_app.py"
FORMS = ("plain", "awaited", "session", "by_hand")


class WorkerForks:
    """A process with all modules loaded. It forks workers that kill themselves."""

    def __init__(self, store: Store) -> None:
        environment = {
            **os.environ,
            "KILL_KIND": store.kind,
            "KILL_URL": store.url,
            "KILL_PLACE": store.place,
            "KILL_NAMESPACE": store.namespace,
            "HOLDFAST_WORKER_REAP_INTERVAL": "0.2",  # seconds: the jobs of a killed worker run again soon
        }
        self._process = subprocess.Popen(
            [sys.executable, str(PROGRAM)],
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def worker(self, fatal: int) -> tuple[int, int]:
        """One worker, until nothing is due or the fatal line comes (0: none is): its exit code and its lines."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(f"{fatal}\n")
        self._process.stdin.flush()
        code, lines = self._process.stdout.readline().split()
        assert int(code) in (0, -signal.SIGKILL), code
        return int(code), int(lines)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.communicate()


@pytest.fixture(params=STORES)
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Any:
    if request.param == "sqlite":
        found = Store("sqlite", f"sqlite:///{tmp_path}/shop.db", f"{tmp_path}/shop.db")
    else:
        url, namespace = request.getfixturevalue("postgres_store")()
        found = Store("postgres", url, url, namespace)
    yield found
    found.close()


def ended(jobs: "App[Any]") -> int:
    return jobs.control.status("default").succeeded


def storm(store: Store, kills: int) -> None:
    jobs = store.app()
    orders: list[str] = []
    killed: list[str] = []
    after_the_commit: list[str] = []

    def order(form: str, number: int) -> str:
        orders.append(f"{form}-{number}")
        jobs.client.task(form).using(id=orders[-1]).enqueue(orders[-1])
        return orders[-1]

    def lines_of(form: str) -> int:
        order(form, 0)
        return nursery.worker(0)[1]

    with jobs, WorkerForks(store) as nursery:
        lines = {form: lines_of(form) for form in FORMS}  # while nobody has left anything behind
        each = kills // len(FORMS)
        for form in FORMS:
            for number in range(each):
                name, before = order(form, number + 1), ended(jobs)
                if nursery.worker(1 + number * lines[form] // each)[0]:
                    killed.append(name)
                    after_the_commit += [name] if ended(jobs) > before else []
        while jobs.control.status("default").depth:
            nursery.worker(0)
        for name in orders:
            assert jobs.client.handle(name).result(timeout=60) == f"done {name}"
            assert jobs.client.handle(f"note-{name}").report(timeout=60).outcome == "succeeded"
        assert asyncio.run(jobs.engine.audit()) == ()
    assert store.effects() == dict.fromkeys(orders, 1), "effects that are missing, or there twice"
    assert len(killed) > kills // 2, "hardly anybody was killed: this proved nothing"
    assert 0 < len(after_the_commit) < len(killed), "nobody was killed on one side of the commit"
    print(f"{len(killed)} kills, {len(after_the_commit)} of them after the commit, {len(orders)} orders")


def test_effects_are_there_once_wherever_the_worker_is_killed(store: Store) -> None:
    storm(store, kills=20)


@pytest.mark.chaos
def test_effects_are_there_once_after_two_hundred_kills(store: Store) -> None:
    storm(store, kills=200)
