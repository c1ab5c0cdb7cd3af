"""Work that is too large for one write: done in pieces of a thousand jobs, and everybody else writes in between.

Two things are: to clear a queue or lane, and to let go what waited for the end of a resize. The write that begins one
does its first piece. If something is left, it leaves a mark, a **chore**, and the writer goes on piece by piece before
it answers. While the mark of a clear stands, nothing of its queue or lane is claimed. The last piece takes it away.

A process may die between two pieces. Whoever claims or prunes and finds a mark that nobody has touched for a while does
the next piece, each time.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterable
from typing import Any

import msgspec
from msgspec.structs import replace

from holdfast.engines.ledger import pools, scopes
from holdfast.engines.ledger.step import Step
from holdfast.engines.sqlite.rows import pack
from holdfast.engines.sqlite.things import Things
from holdfast.model.instants import SECOND, At
from holdfast.model.job import JobRecord
from holdfast.model.states import Hold

PIECE = 1_000  # CL2: jobs in a piece
ABANDONED_AFTER = 10 * SECOND
ABOVE_ALL = 2**63 - 1
"""Above every arrival."""


class Chore(msgspec.Struct, frozen=True, gc=False):
    """A mark: what is left to do, and when somebody last did something of it."""

    kind: str
    """`clear` or `release`."""
    queue: str
    lane: str | None
    begun: int
    """An arrival that tells it from others of its kind. Of a release: the epoch whose jobs are let go."""
    next: int
    """A clear goes on below this arrival, a release above it."""
    touched: int

    @property
    def what(self) -> tuple[str, str]:
        return self.kind, self.queue

    @property
    def name(self) -> str:
        return msgspec.json.encode((self.kind, self.queue, self.lane, self.begun)).decode()


unpack_chore = msgspec.msgpack.Decoder(Chore).decode


class Chores(Things, ABC):
    """The part of the state that gives pieces, and keeps marks of what they leave."""

    def __init__(self) -> None:
        self._chores: dict[str, Chore] | None = None
        self.begun: list[Chore] = []
        """What the transaction under way has begun and left unfinished."""
        self.now = 0
        """The wall clock of the command under way."""

    @abstractmethod
    def flush(self) -> None: ...

    @abstractmethod
    def _read(self, rows: Iterable[Any]) -> list[JobRecord]: ...

    # Marks

    def chores(self) -> dict[str, Chore]:
        if self._chores is None:
            self._chores = {chore.name: chore for chore in self._things("chore", unpack_chore)}
        return self._chores

    def put_chore(self, chore: Chore) -> None:
        self.chores()[chore.name] = chore
        self.db.write("put_thing", "chore", chore.name, pack(chore))

    def drop_chore(self, chore: Chore) -> None:
        self.chores().pop(chore.name, None)
        self.db.write("drop_thing", "chore", chore.name)

    def abandoned(self, now: int) -> list[Chore]:
        """Of the marks that this transaction had to look at, those that nobody has touched for a while."""
        marks = self._chores or {}
        return [chore for chore in marks.values() if now - chore.touched > ABANDONED_AFTER]

    def being_cleared(self, queue: str) -> frozenset[str | None]:
        """The lanes of a queue that are being cleared, None for the whole of it."""
        return frozenset(c.lane for c in self.chores().values() if c.kind == "clear" and c.queue == queue)

    def _begin(self, chore: Chore) -> None:
        self.put_chore(chore)
        self.begun.append(chore)

    # Pieces

    def live_piece(self, queue: str, lane: str | None, below: int) -> tuple[list[JobRecord], int]:
        """Live jobs of a queue or lane below an arrival, the latest first; and where to go on, 0 at the end."""
        rows = self._live_rows(queue, lane, below, PIECE)
        return self._read(rows), rows[-1][0] if len(rows) == PIECE else 0

    def _live_rows(self, queue: str, lane: str | None, below: int, limit: int) -> list[Any]:
        self.flush()
        known = None if lane is None else self.lane(queue, lane)
        head = None if known is None else known.head
        return self.db.rows("live_jobs", self.db.known_queue(queue), below, lane, lane, head, limit)

    def epoch_piece(self, queue: str, epoch: int, above: int) -> tuple[list[JobRecord], int]:
        """Those of the next blocked jobs that wait for a size before this one; and where to go on, 0 at the end."""
        self.flush()
        rows = self.db.rows("blocked_jobs", self.db.known_queue(queue), above, PIECE)
        held = [job for job in self._read(rows) if job.hold & Hold.EPOCH and job.epoch <= epoch]
        return held, rows[-1][0] if len(rows) == PIECE else 0

    def live_jobs(self, queue: str, lane: str | None) -> list[JobRecord]:
        return self._read(self._live_rows(queue, lane, ABOVE_ALL, -1))

    def to_clear(self, queue: str, lane: str | None) -> list[JobRecord]:
        jobs, below = self.live_piece(queue, lane, ABOVE_ALL)
        if below:
            self._begin(Chore("clear", queue, lane, jobs[0].arrival, below, self.now))
        return jobs

    def held_by_epoch(self, queue: str) -> list[JobRecord]:
        pool = self.pool(queue)
        epoch = 0 if pool is None else pool.epoch
        jobs, above = self.epoch_piece(queue, epoch, 0)
        if above:
            self._begin(Chore("release", queue, None, epoch, above, self.now))
        return jobs


class Piece(msgspec.Struct, frozen=True, gc=False):
    """What a piece has done: to how many jobs, what is left, whom to wake."""

    count: int
    left: Chore | None
    topics: frozenset[str]


def do_piece(state: Chores, chore: Chore, at: At, *, ours: bool = True) -> Piece:
    """The next piece, inside the caller's write transaction. One of another's chore leaves its time as it was."""
    step = Step(state, at)
    if chore.kind == "clear":
        jobs, following = state.live_piece(chore.queue, chore.lane, chore.next)
        scopes.clear_some(step, jobs)
    else:
        jobs, following = state.epoch_piece(chore.queue, chore.begun, chore.next)
        pools.release_held(step, jobs)
    step.close()
    if not following:
        state.drop_chore(chore)
        step.topics.add("queue:" + chore.queue)  # what came meanwhile may be claimed from now on
        return Piece(len(jobs), None, frozenset(step.topics))
    left = replace(chore, next=following, touched=at.wall if ours else chore.touched)
    state.put_chore(left)
    return Piece(len(jobs), left, frozenset(step.topics))
