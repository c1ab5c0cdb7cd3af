"""The fast paths of an exchange on SQLite: the same answers, notifications and rows as on the general path."""

import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from random import Random
from typing import Any

import pytest
from msgspec.structs import replace
from sqlite_store import store, writer_of

from holdfast.engines.command_thread import CommandResult
from holdfast.engines.sqlite.fast_settle import is_plain
from holdfast.engines.sqlite.rows import unpack_job, unpack_queue
from holdfast.engines.sqlite.writer import Writer
from holdfast.model.command import Command
from holdfast.model.instants import SECOND, At, Instant
from holdfast.model.job import Given, JobKey, JobRecord, KeyScope, ProgressRecord
from holdfast.model.observe import Audit, Prune
from holdfast.model.operate import Cancel, Pause, Resume
from holdfast.model.produce import Enqueue, Group, NewJob, Parent, PoolPlace
from holdfast.model.states import JobState, Reason
from holdfast.model.text import ErrorInfo
from holdfast.model.work import Claim, Disown, Exchange, ExchangeAnswer, Lease, QueueClaim, Settlement, Start, TaskClaim

START_US: Instant = 2 * 10**15
"""Later than the clock of any host that runs this."""
STEP_US = SECOND
NOT_PLAIN: dict[str, dict[str, Any]] = {
    "plain": {},
    "in a lane": {"lane": "L"},
    "in a pool": {"pool": PoolPlace(2)},
    "expires later": {"expires": START_US + 1_000 * SECOND},
    "expired before its claim": {"expires": START_US + 2 * STEP_US},
    "not kept": {"given": Given(result_ttl=0, retention=0)},
    "kept for its result": {"given": Given(retention=0)},
    "own limits": {"given": Given(max_attempts=3, max_losses=2, lease_len=5 * SECOND)},
    "urgent": {"priority": 7},
    "awaited": {"reply": "p"},
    "a parent": {},
}


class SteppingClock:
    """Engine time that moves by one step per command, the same in every run."""

    def __init__(self) -> None:
        self._steps = 0

    def now(self) -> At:
        self._steps += 1
        return At(START_US + self._steps * STEP_US, 10**14 + self._steps * STEP_US)

    def earliest(self, stored: At) -> At:
        return stored

    def answered(self, at: At) -> None:
        """The next step comes anyway."""


def enqueue(kind: str) -> Enqueue:
    """Twelve jobs in two queues, of three tasks. Every third one is of this kind, the others are plain."""
    jobs = [
        NewJob(
            queue="qr"[number % 2],
            id=f"{number:02d}",
            task="tuv"[number // 2 % 3],
            payload=b"%d" % number,
            **(NOT_PLAIN[kind] if number % 3 == 0 else {}),
        )
        for number in range(12)
    ]
    if kind == "a parent":
        jobs.append(NewJob(queue="q", id="child", task="t", parents=(Parent(JobKey("q", "00")),)))
    return Enqueue(groups=tuple(Group((job,)) for job in jobs))


def claim(number: int, limit: int, per_queue: int | None = None) -> Claim:
    tasks = tuple(TaskClaim(task=task, lease_len=(30 + n) * SECOND, max_attempts=9 + n) for n, task in enumerate("tuv"))
    queues = tuple(QueueClaim(queue, tasks, per_queue) for queue in "qr")
    return Claim(claim_id=f"c{number}", worker="w", queues=queues, limit=limit)


def success(lease: Lease, **options: Any) -> Settlement:
    done = JobState.SUCCEEDED
    return Settlement(queue=lease.queue, id=lease.id, token=lease.token, target=done, result=b"1", **options)


def retry(lease: Lease) -> Settlement:
    target, reason, error = JobState.RETRYING, Reason.ERROR, ErrorInfo("E", "message", "trace")
    return Settlement(queue=lease.queue, id=lease.id, token=lease.token, target=target, reason=reason, error=error)


class Store:
    """A store under the stepping clock. Keeps what it answered and notified."""

    def __init__(self, path: Path, *, fast_paths: bool) -> None:
        self.path = path
        self.engine = store(path, durability="none", fast_paths=fast_paths)
        self.engine.open_now()
        writer_of(self.engine)._clock = SteppingClock()  # type: ignore[assignment]
        self.results: list[CommandResult] = []

    @property
    def writer(self) -> Writer:
        return writer_of(self.engine)

    def run(self, *commands: Command[Any]) -> list[Any]:
        results = self.writer.run(commands)
        assert [result.error for result in results] == [None] * len(commands)
        self.results += results
        return [result.answer for result in results]

    def close(self) -> list[Any]:
        """All that it has answered, notified and stored."""
        (audit,) = self.run(Audit())
        assert audit.problems == ()
        self.engine.close_now()
        with closing(sqlite3.connect(self.path)) as db:
            jobs = [(*row[:-1], unpack_job(row[-1])) for row in db.execute("SELECT * FROM holdfast_job")]
            queues = [(name, unpack_queue(body)) for name, body in db.execute("SELECT name, body FROM holdfast_queue")]
            counts = db.execute("SELECT q, state, n FROM holdfast_count WHERE n <> 0").fetchall()
            others = [
                db.execute(f"SELECT * FROM holdfast_{name}").fetchall() for name in ("lane", "edge", "small_record")
            ]
        return [self.results, jobs, queues, counts, others]


def work(store: Store, kind: str) -> None:
    """Exchanges with outcomes of several kinds, in one transaction and in several."""
    store.run(enqueue(kind))
    (first,) = store.run(Exchange(claim=claim(1, 7)))
    plain, other = first.leases[:3], first.leases[3:]
    store.run(Cancel(queue=other[0].queue, ids=(other[0].id,)))
    settlements = (
        success(plain[0]),
        success(plain[0]),  # sent twice
        retry(other[0]),
        success(plain[1], result_ttl=SECOND, retention=2 * SECOND),
        success(other[1], progress=ProgressRecord(1.0, "done")),
        Settlement(queue="q", id=other[2].id, token="of another claim", target=JobState.SUCCEEDED),
        Settlement(queue="q", id="of no job", token="x", target=JobState.SUCCEEDED),
        success(plain[2], note="noted", reason=Reason.RELEASED),
        retry(other[2]),
    )
    (second,) = store.run(Exchange(settlements=settlements, claim=claim(2, 3)))
    store.run(
        Exchange(settlements=tuple(map(success, (*second.leases, *other[3:])))),
        Exchange(claim=claim(3, 4)),
        Exchange(claim=claim(3, 4)),  # sent again
        Disown(workers=("w",), error=ErrorInfo("Killed", "signal 9", "")),
    )
    (last,) = store.run(Exchange(claim=claim(4, 100, per_queue=1)))
    leases = [*store.results[-4].answer.leases, *last.leases]
    while leases:
        store.run(Exchange(settlements=tuple(map(success, leases))))
        (answer,) = store.run(Exchange(claim=claim(len(store.results), 2)))
        leases = list(answer.leases)


def same_outcome(folder: Path, work: Callable[[Store], None]) -> list[Any]:
    """Do the work on a store with the fast paths and on one without them, and compare the two."""
    outcomes = []
    for fast_paths in (True, False):
        for file in folder.glob("x.db*"):
            file.unlink()
        one = Store(folder / "x.db", fast_paths=fast_paths)
        work(one)
        outcomes.append(one.close())
    for fast, general in zip(*outcomes, strict=True):
        assert fast == general
    return outcomes[0]


@pytest.mark.parametrize("kind", NOT_PLAIN)
def test_both_paths_settle_and_claim_alike(tmp_path: Path, kind: str) -> None:
    outcome = same_outcome(tmp_path, lambda one: work(one, kind))
    states = [job.state for *_, job in outcome[1]]
    assert states.count(JobState.SUCCEEDED) > 6


@pytest.mark.parametrize(
    ("job", "settlement"),
    [
        ({"lane": "L"}, {}),
        ({"epoch": 1}, {}),
        ({"last_error": ErrorInfo("E", "message", "trace")}, {}),
        ({"expires": START_US}, {}),
        ({"state": JobState.ASSIGNED}, {}),
        ({}, {"progress": ProgressRecord(0.5)}),
        ({}, {"listed_expiry": START_US}),
        ({}, {"refund": True}),
        ({}, {"loss": True}),
        ({}, {"target": JobState.FAILED}),
    ],
)
def test_a_success_is_plain_only_if_it_changes_its_own_job_alone(job: Any, settlement: Any) -> None:
    running = JobRecord(queue="q", id="a", state=JobState.RUNNING)
    done = Settlement(queue="q", id="a", token="c.0", target=JobState.SUCCEEDED)
    assert is_plain(running, done)
    assert not is_plain(replace(running, **job), replace(done, **settlement))


@pytest.mark.parametrize(
    ("options", "queue_options"),
    [
        ({"limit": 0}, {}),
        ({"limit": 6}, {}),  # as many as the first queue has
        ({"limit": 2, "prefetch": 3}, {}),
        ({}, {"limit": 2}),
        ({}, {"tasks": (TaskClaim(task="u", lease_len=SECOND, limit=1), TaskClaim(task="t", lease_len=SECOND))}),
        ({}, {"tasks": ()}),
    ],
)
def test_both_paths_take_as_many_jobs(tmp_path: Path, options: Any, queue_options: Any) -> None:
    whole = claim(1, 20)
    queues = tuple(replace(queue, **queue_options) for queue in whole.queues)
    exchange = Exchange(claim=replace(whole, **{"queues": queues, **options}))
    # The cancels read the leases of the same transaction.
    cancels = [Cancel(queue="qr"[number % 2], ids=(f"{number:02d}",)) for number in range(4)]

    def take_and_cancel(one: Store) -> None:
        one.run(enqueue("in a lane"))
        one.run(exchange, *cancels)

    same_outcome(tmp_path, take_and_cancel)


def test_a_claim_that_reads_several_pages_of_a_task_keeps_the_order(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("holdfast.engines.sqlite.ready_jobs.MAX_READY_ROWS", 2)
    one = Store(tmp_path / "x.db", fast_paths=True)
    one.run(enqueue("urgent"))
    (answer,) = one.run(Exchange(claim=claim(1, 100)))
    order = [(lease.queue, -lease.priority, lease.due, lease.arrival) for lease in answer.leases]
    assert len(order) == 12
    assert order == sorted(order)
    one.close()


# Random work


class RandomWork:
    """Commands made from a seed and the leases so far. Two jobs of three, and most outcomes, are plain."""

    def __init__(self, seed: int) -> None:
        self._seed = seed

    def __call__(self, one: Store) -> None:
        self._random = Random(self._seed)
        self._names: list[JobKey] = []
        self._leases: list[Lease] = []
        self._claims = 0
        for _ in range(self._random.randrange(6, 16)):
            for answer in one.run(*(self._command() for _ in range(self._random.choice((1, 1, 2, 3))))):
                if isinstance(answer, ExchangeAnswer):
                    self._leases += answer.leases

    def _is(self, probability: float) -> bool:
        return self._random.random() < probability

    def _command(self) -> Command[Any]:
        pick = self._random.random()
        if pick < 0.3 or not self._names:
            return Enqueue(groups=tuple(Group((self._job(),)) for _ in range(self._random.randrange(1, 9))))
        if pick < 0.88:
            return self._exchange()
        if pick < 0.92:
            name = self._random.choice(self._names)
            return Cancel(queue=name.queue, ids=(name.id,))
        if pick < 0.95:
            return Disown(workers=("w",), error=ErrorInfo("Killed", "signal 9", ""))
        return Prune() if pick < 0.97 else self._random.choice((Pause, Resume))(queue="q", lane=None)

    def _job(self) -> NewJob:
        choice = self._random.choice
        options: dict[str, Any] = {}
        for option, values in JOB_OPTIONS.items():
            if self._is(0.05):
                options[option] = choice(values)
        if self._names and self._is(0.05):
            options["parents"] = (Parent(choice(self._names)),)
        job = NewJob(queue=choice("qr"), id=f"{len(self._names):03d}", task=choice("tuv"), payload=b"1", **options)
        self._names.append(JobKey(job.queue, job.id))
        return job

    def _exchange(self) -> Exchange:
        choice, recent = self._random.choice, self._leases[-20:]
        settlements = tuple(self._settlement(lease) for lease in recent for _ in range(choice((0, 1, 1, 1, 2))))
        starts = tuple(Start(lease.queue, lease.id, lease.token) for lease in recent if self._is(0.1))
        self._claims += self._is(0.9)  # else it is sent again
        tasks = tuple(
            TaskClaim(task=task, lease_len=choice((2, 30)) * SECOND, limit=1 if self._is(0.05) else None)
            for task in self._random.sample("tuv", self._random.randrange(1, 4))
        )
        queues = tuple(QueueClaim(queue, tasks, 2 if self._is(0.05) else None) for queue in choice(("q", "qr", "rq")))
        limit, prefetch = choice((0, 1, 3, 8)), choice((0, 0, 0, 2))
        wanted = Claim(claim_id=f"c{self._claims}", worker="w", queues=queues, limit=limit, prefetch=prefetch)
        return Exchange(settlements=settlements, starts=starts, claim=wanted if self._is(0.8) else None)

    def _settlement(self, lease: Lease) -> Settlement:
        targets = (JobState.RETRYING, JobState.FAILED, JobState.CANCELLED, JobState.SCHEDULED, JobState.QUEUED)
        target = self._random.choice(targets) if self._is(0.2) else JobState.SUCCEEDED
        options = {name: value for name, value in SETTLEMENT_OPTIONS.items() if self._is(0.05)}
        return Settlement(queue=lease.queue, id=lease.id, token=lease.token, target=target, **options)


JOB_OPTIONS: dict[str, tuple[Any, ...]] = {
    "lane": ("L", "M"),
    "pool": (PoolPlace(1), PoolPlace(2)),
    "expires": (START_US + 9 * STEP_US, START_US + 99 * STEP_US),
    "priority": (-3, 5),
    "reply": ("p",),
    "due": (START_US + 5 * STEP_US, START_US + 15 * STEP_US),
    "given": (Given(result_ttl=0, retention=0), Given(retention=0), Given(max_attempts=2, lease_len=3 * SECOND)),
    "unique_key": ("k",),
    "key_scope": tuple(KeyScope),
    "key_window": (SECOND, 100 * SECOND),
}
SETTLEMENT_OPTIONS: dict[str, Any] = {
    "error": ErrorInfo("E", "message", "trace"),
    "reason": Reason.WORKER_LOST,
    "note": "noted",
    "progress": ProgressRecord(0.5, "half"),
    "result": b"1",
    "result_ttl": 0,
    "retention": 0,
    "refund": True,
    "loss": True,
    "listed_expiry": START_US,
}


@pytest.mark.parametrize("seed", range(20))
def test_both_paths_do_random_work_alike(tmp_path: Path, seed: int) -> None:
    same_outcome(tmp_path, RandomWork(seed))


@pytest.mark.long
def test_both_paths_do_much_random_work_alike(tmp_path: Path) -> None:
    for seed in range(1_000, 1_600):
        same_outcome(tmp_path, RandomWork(seed))
