"""The differential machine: sends the same commands to an engine and to the ledger, and compares the answers.

Hypothesis draws a run of rules. Each rule sends one command to the engine. The oracle applies the command to the ledger
and says whether the ledger could have given the same answer. After every rule the engine audits itself (or after every
`audit_every` rules, if an audit is slow), and at the end every record is compared. Hypothesis shrinks a failure and
prints it as a script: one line per command, in the order sent, with its answer.

An engine without `cross_queue_atomic` (S4) gets groups of one queue, without parents in another one. Its claims over
several queues have room for all jobs, because a full claim does not look at the queues behind; claims sent again name
the queues that they named before. Its clock must stand still during a command: the oracle applies a command over
several queues at one time.

The bundles remember what a careless or slow worker would remember: `leases` has every lease ever given, so most of its
tokens are stale; `fresh` has those not settled yet; `listed` has what a reaper saw, however long ago.
"""

import asyncio
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from enum import Enum
from typing import Any, ClassVar

from hypothesis import note
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, initialize, invariant, multiple, rule

from holdfast.engine import Engine
from holdfast.model import observe, operate, produce, work
from holdfast.model.command import A, Command
from holdfast.model.job import ProgressRecord
from holdfast.model.states import JobState, Reason
from holdfast.testing.differential import alphabet as abc
from holdfast.testing.differential import jobs
from holdfast.testing.differential.script import Script, duration
from holdfast.testing.oracle import Oracle


class Differential(RuleBasedStateMachine):
    """All verbs. `differential` makes the machine of one engine out of it."""

    make_engine: ClassVar[Callable[[], Engine]]
    themes: ClassVar[tuple[jobs.Theme, ...]]
    seen: ClassVar[Counter[str]]
    """What occurred in answers, over all runs: a run without a stale token proves nothing about stale tokens."""
    audit_every: ClassVar[int]

    fresh = Bundle("fresh")
    leases = Bundle("leases")
    listed = Bundle("listed")
    pages = Bundle("pages")

    def __init__(self) -> None:
        super().__init__()
        self.loop = asyncio.new_event_loop()
        self.engine = type(self).make_engine()
        self.oracle = Oracle()
        self.claims = 0
        self.claimed_queues: dict[str, tuple[work.QueueClaim, ...]] = {}
        """By claim id, if each queue is apart."""
        self.steps = 0
        self.sound = True
        self.loop.run_until_complete(self._open())
        self.queues_apart = not self.engine.capabilities.cross_queue_atomic
        at = self.loop.run_until_complete(self.engine.now())
        self.now = at.wall
        self.script = Script(at.wall, at.lease)

    async def _open(self) -> None:
        await self.engine.migrate()
        await self.engine.open()

    def ask(self, command: Command[A]) -> A:
        """Send a command, and let the oracle check the answer."""
        self.sound = False
        line = self.script.text(command)
        try:
            answer = self.loop.run_until_complete(self.engine.perform(command))
        except Exception:
            note(f"perform({line})  # raised")
            raise
        note(f"perform({line})  # {self.script.text(answer)}")
        self.now = answer.at.wall
        self.seen.update(kinds_in(answer))
        problem = self.oracle.accept(command, answer)
        assert problem is None, problem
        self.sound = True
        return answer

    @invariant()
    def structure_is_sound(self) -> None:
        self.steps += 1
        if self.steps % self.audit_every:
            return
        problems = self.loop.run_until_complete(self.engine.audit())
        self.sound = self.sound and not problems
        assert problems == (), "audit: " + "; ".join(problems)

    def teardown(self) -> None:
        try:
            if self.sound:
                self.ask(observe.Get(jobs=jobs.ALL_KEYS))
                self.ask(observe.Stats())
                for queue in jobs.QUEUES:
                    self.ask(observe.Lanes(queue=queue))
                self.ask(observe.Audit())
        finally:
            self.loop.run_until_complete(self.engine.close())
            self.loop.close()

    # Time

    @rule(step=abc.advances)
    def advance(self, step: int) -> None:
        note(f"engine.clock_offset += {duration(step)}")
        self.engine.clock_offset += step

    # Producing

    @initialize(theme=jobs.themes)
    def begin(self, theme: jobs.Theme) -> None:
        self.theme = theme
        self.ask(produce.Enqueue(groups=(produce.Group(theme.beginning),)))

    @rule(new=jobs.groups, limits=abc.depth_limits)
    def enqueue(self, new: list[jobs.Drawn], limits: tuple[produce.DepthLimit, ...]) -> None:
        self.ask(produce.Enqueue(groups=(self._group(new, limits),)))

    @rule(first=jobs.groups, second=jobs.groups)
    def enqueue_together(self, first: list[jobs.Drawn], second: list[jobs.Drawn]) -> None:
        self.ask(produce.Enqueue(groups=(self._group(first), self._group(second))))

    def _group(self, new: list[jobs.Drawn], limits: tuple[produce.DepthLimit, ...] = ()) -> produce.Group:
        if self.queues_apart:
            new = jobs.of_one_queue(new)
            limits = tuple(limit for limit in limits if limit.queue == new[0][0])
        return produce.Group(tuple(jobs.new_job(job, self.now) for job in new), limits)

    # Claiming

    @rule(targets=(fresh, leases), queues=abc.claim_queues, size=abc.claim_sizes, worker=abc.workers)
    def claim(self, queues: tuple[work.QueueClaim, ...], size: tuple[int, int], worker: str) -> Any:
        return multiple(*self.ask(work.Exchange(claim=self._claim(self._claim_id(), queues, size, worker))).leases)

    @rule(targets=(fresh, leases))
    def claim_all(self) -> Any:
        return self.claim(abc.EVERYTHING, (2, 2), abc.WORKERS[0])

    @rule(targets=(fresh, leases), old=leases, queues=abc.claim_queues, size=abc.claim_sizes, worker=abc.workers)
    def claim_again(
        self, old: work.Lease, queues: tuple[work.QueueClaim, ...], size: tuple[int, int], worker: str
    ) -> Any:
        claim_id = old.token.rpartition(".")[0]
        queues = self.claimed_queues.get(claim_id, queues)
        return multiple(*self.ask(work.Exchange(claim=self._claim(claim_id, queues, size, worker))).leases)

    def _claim_id(self) -> str:
        self.claims += 1
        return f"c{self.claims}"

    def _claim(
        self, claim_id: str, queues: tuple[work.QueueClaim, ...], size: tuple[int, int], worker: str
    ) -> work.Claim:
        limit, prefetch = size
        if self.queues_apart:
            self.claimed_queues[claim_id] = queues
            if len(queues) > 1:
                limit = len(jobs.ALL_KEYS) if limit and not prefetch else limit
                prefetch = len(jobs.ALL_KEYS) if prefetch else 0
        return work.Claim(claim_id=claim_id, worker=worker, queues=queues, limit=limit, prefetch=prefetch)

    # Settling

    @rule(lease=consumes(fresh), outcome=abc.outcomes)
    def settle(self, lease: work.Lease, outcome: jobs.Trait) -> None:
        self.ask(work.Exchange(settlements=(self._settlement(lease, outcome),)))

    @rule(lease=leases, outcome=abc.outcomes)
    def settle_late(self, lease: work.Lease, outcome: jobs.Trait) -> None:
        self.ask(work.Exchange(settlements=(self._settlement(lease, outcome),)))

    @rule(lease=leases)
    def start(self, lease: work.Lease) -> None:
        self.ask(work.Exchange(starts=(work.Start(lease.queue, lease.id, lease.token),)))

    @rule(
        targets=(fresh, leases),
        lease=consumes(fresh),
        outcome=abc.outcomes,
        other=leases,
        other_outcome=abc.outcomes,
        start=leases,
        queues=abc.claim_queues,
        size=abc.claim_sizes,
    )
    def exchange(
        self,
        lease: work.Lease,
        outcome: jobs.Trait,
        other: work.Lease,
        other_outcome: jobs.Trait,
        start: work.Lease,
        queues: tuple[work.QueueClaim, ...],
        size: tuple[int, int],
    ) -> Any:
        command = work.Exchange(
            settlements=(self._settlement(lease, outcome), self._settlement(other, other_outcome)),
            starts=(work.Start(start.queue, start.id, start.token),),
            claim=self._claim(self._claim_id(), queues, size, abc.WORKERS[0]),
        )
        return multiple(*self.ask(command).leases)

    def _settlement(self, lease: work.Lease | work.ExpiredLease, outcome: jobs.Trait) -> work.Settlement:
        return work.Settlement(queue=lease.queue, id=lease.id, token=lease.token, **jobs.timed(outcome, self.now))

    # Leases

    @rule(one=leases, other=leases, progress=abc.progresses)
    def renew(self, one: work.Lease, other: work.Lease, progress: ProgressRecord | None) -> None:
        self.ask(
            work.Renew(
                jobs=(
                    work.Renewal(one.queue, one.id, one.token, progress),
                    work.Renewal(other.queue, other.id, other.token),
                )
            )
        )

    @rule(
        target=listed,
        worker=abc.workers,
        limit=st.sampled_from([500, 1, 2]),
        tasks=st.sampled_from([None, ("t",), ("t", "u"), ()]),
    )
    def expired(self, worker: str, limit: int, tasks: tuple[str, ...] | None) -> Any:
        return multiple(*self.ask(work.Expired(worker=worker, limit=limit, tasks=tasks)).leases)

    @rule(lost=listed, loss=abc.losses, mistaken=st.sampled_from([0, 0, 0, -1]))
    def reap(self, lost: work.ExpiredLease, loss: jobs.Trait, mistaken: int) -> None:
        self._reap(lost, loss, lost.lease_expires + mistaken)

    @rule(lease=leases, loss=abc.losses)
    def reap_unlisted(self, lease: work.Lease, loss: jobs.Trait) -> None:
        """A reaper that uses the expiry in the lease, without listing: valid only after that time."""
        self._reap(lease, loss, lease.lease_expires)

    def _reap(self, lease: work.Lease | work.ExpiredLease, loss: jobs.Trait, expiry: int) -> None:
        self.ask(work.Exchange(settlements=(self._settlement(lease, {**loss, "listed_expiry": expiry}),)))

    @rule(lease=leases)
    def report_loss(self, lease: work.Lease) -> None:
        """An owner that lives reports that it has lost its lease, in time or after a reaper."""
        report = {"target": JobState.RETRYING, "reason": Reason.WORKER_LOST}
        self.ask(work.Exchange(settlements=(self._settlement(lease, report),)))

    @rule(lease=fresh, whole_queue=st.booleans())
    def hold(self, lease: work.Lease, whole_queue: bool) -> None:
        """The scope of a lease is paused: an assigned job is answered `hold` when it renews and when it starts."""
        self.ask(operate.Pause(queue=lease.queue, lane=None if whole_queue else lease.lane))
        self.ask(work.Renew(jobs=(work.Renewal(lease.queue, lease.id, lease.token),)))
        self.start(lease)

    @rule(lease=fresh, loss=abc.losses, disowned=st.booleans())
    def lose(self, lease: work.Lease, loss: jobs.Trait, disowned: bool) -> None:
        """A worker dies; it is disowned, or its lease expires; then a reaper settles its job."""
        if disowned:
            self.ask(work.Disown(workers=abc.WORKERS[:1], error=abc.BOOM))
        else:
            self.advance(lease.lease_len)
        for lost in self.ask(work.Expired(worker=abc.WORKERS[1])).leases:
            if lost.token == lease.token:
                self._reap(lost, loss, lost.lease_expires)

    # Operating

    @rule(queue=jobs.queues, ids=jobs.some_ids, note=st.sampled_from(["", "why"]))
    def cancel(self, queue: str, ids: tuple[str, ...], note: str) -> None:
        self.ask(operate.Cancel(queue=queue, ids=ids, note=note))

    @rule(lease=fresh)
    def cancel_leased(self, lease: work.Lease) -> None:
        """A cancel of a leased job is answered when its worker renews and when it starts."""
        self.ask(operate.Cancel(queue=lease.queue, ids=(lease.id,)))
        self.ask(work.Renew(jobs=(work.Renewal(lease.queue, lease.id, lease.token),)))
        self.start(lease)

    @rule(queue=jobs.queues, ids=jobs.some_ids, rival=jobs.some_ids)
    def come_back(self, queue: str, ids: tuple[str, ...], rival: tuple[str, ...]) -> None:
        """A job is cancelled, another one takes its key, and then the first is requeued."""
        for id in (ids[0], rival[0]):
            keyed = jobs.new_job((queue, id, [{"unique_key": "k"}]), self.now)
            self.ask(produce.Enqueue(groups=(produce.Group((keyed,)),)))
            if id == ids[0]:
                self.ask(operate.Cancel(queue=queue, ids=ids))
        self.ask(operate.Requeue(queue=queue, ids=ids))

    @rule(queue=jobs.queues, ids=jobs.some_ids, limits=abc.depth_limits)
    def requeue(self, queue: str, ids: tuple[str, ...], limits: tuple[produce.DepthLimit, ...]) -> None:
        if self.queues_apart:
            limits = tuple(limit for limit in limits if limit.queue == queue)
        self.ask(operate.Requeue(queue=queue, ids=ids, limits=limits))

    @rule(verb=st.sampled_from([operate.Trigger, operate.Delete]), queue=jobs.queues, ids=jobs.some_ids)
    def trigger_or_delete(
        self, verb: type[operate.Trigger] | type[operate.Delete], queue: str, ids: tuple[str, ...]
    ) -> None:
        self.ask(verb(queue=queue, ids=ids))

    @rule(queue=jobs.queues, ids=jobs.some_ids, fields=abc.amendments)
    def amend(self, queue: str, ids: tuple[str, ...], fields: jobs.Trait) -> None:
        self.ask(operate.Amend(queue=queue, ids=ids, **jobs.timed(fields, self.now)))

    @rule(verb=st.sampled_from([operate.Pause, operate.Resume, operate.Resume, operate.Clear]), scope=abc.scopes)
    def switch(
        self,
        verb: type[operate.Pause] | type[operate.Resume] | type[operate.Clear],
        scope: tuple[str, str | None],
    ) -> None:
        self.ask(verb(queue=scope[0], lane=scope[1]))

    @rule(command=abc.declarations)
    def declare(self, command: Command[Any]) -> None:
        """Pools and worker records."""
        self.ask(command)

    # Reading and maintenance

    @rule(queue=jobs.queues)
    def look(self, queue: str) -> None:
        self.ask(observe.Get(jobs=jobs.ALL_KEYS))
        self.ask(observe.Stats(queues=(queue,)))
        self.ask(observe.Stats())
        self.ask(observe.Lanes(queue=queue))
        self.ask(observe.Lanes(queue=queue, lanes=("x", "absent", "0")))
        self.ask(operate.Emptied(queue=queue))
        self.ask(work.Workers())

    @rule(target=pages, filters=abc.finds)
    def find(self, filters: tuple[str, JobState, jobs.Trait]) -> Any:
        queue, state, fields = filters
        return self._find(observe.Find(queue=queue, state=state, **jobs.timed(fields, self.now)))

    @rule(target=pages, page=pages)
    def find_on(self, page: tuple[observe.Find, int]) -> Any:
        find, cursor = page
        fields = {name: getattr(find, name) for name in find.__struct_fields__}
        return self._find(observe.Find(**{**fields, "cursor": cursor}))

    def _find(self, find: observe.Find) -> Any:
        cursor = self.ask(find).cursor
        return multiple() if cursor is None else multiple((find, cursor))

    @rule(limit=st.sampled_from([500, 1, 2]))
    def prune(self, limit: int) -> None:
        self.ask(observe.Prune(limit=limit))


def differential(
    make: Callable[[], Engine],
    themes: Iterable[jobs.Theme] = jobs.THEMES,
    seen: Counter[str] | None = None,
    *,
    audit_every: int = 1,
) -> type[Differential]:
    """The machine for the engines that `make` makes: each on an empty store, not opened yet."""
    fields = {
        "make_engine": staticmethod(make),
        "themes": tuple(themes),
        "seen": Counter() if seen is None else seen,
        "audit_every": audit_every,
    }
    return type("DifferentialMachine", (Differential,), fields)


def kinds_in(value: object) -> Iterator[str]:
    """The kinds of answers and the states and statuses in them."""
    if isinstance(value, Enum):
        yield f"{type(value).__name__}.{value.name}"
    elif isinstance(value, tuple):
        for item in value:
            yield from kinds_in(item)
    elif hasattr(value, "__struct_fields__"):
        yield type(value).__name__
        for name in value.__struct_fields__:
            yield from kinds_in(getattr(value, name))
