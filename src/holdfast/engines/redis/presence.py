"""Which workers have ended, on any host: those whose channel has no subscriber any more (WK3).

Each worker is subscribed to a channel of its own, over the connection of its process's notifier. When the process ends,
however it ends, its kernel closes the connection, and the server drops the subscription. The other workers ask the
server every 1.5 seconds which workers have none; of many workers some ask, drawn by lot.

A living worker loses its subscription too when its connection is cut. Its notifier connects again at once. So a worker
has ended if it had no subscriber twice, at least a second apart, and sent no heartbeat in between.

After an outage of the server or of the network all workers look silent. So a look counts only if this process was
subscribed at the same server all the time, if the server is the same run as before and started more than ten seconds
ago, and if ten seconds have passed since this process had to connect again or could not look.

A host that loses its power or its network closes no connection: there the leases have to expire, or the server's
`tcp-keepalive` ends the connection.
"""

from collections.abc import Awaitable, Callable
from typing import Any, NamedTuple

from msgspec import Struct

from holdfast.engines.redis.notifier import ChannelNotifier
from holdfast.model.command import Answer, Command
from holdfast.model.instants import SECOND, Instant, Micros, Seconds
from holdfast.model.work import Disown, Heartbeat
from holdfast.runtime import Runtime

BETWEEN_LOOKS_S: Seconds = 1.0
"""A worker that is subscribed again within this time loses nothing."""
GRACE_S: Seconds = 10.0
"""After an outage the workers have this long to subscribe again."""
MIN_UPTIME_S = 10
"""The same after a start of the server."""
WATCHERS = 16
"""About so many processes look all the time. A look at 1,000 workers takes 1.3 ms of the server: if each of them
looked, that would be most of its time."""
TURN_S: Seconds = 60.0
"""For this long a process looks all the time, or does not. Then it draws again."""
RARE_LOOK_S: Seconds = 15.0
"""A process that does not look all the time looks this often, to learn how many workers there are."""
SLOW_LOOK_S: Seconds = 1.0
"""A look that takes longer may have waited for the end of an outage."""


class SubscribedHeartbeat(Heartbeat, frozen=True, gc=False, kw_only=True):
    """A heartbeat that says whether the worker is subscribed to its channel."""

    session: bool


class SilentWorker(Struct, frozen=True, gc=False):
    worker: str
    seen: Instant
    """The time of its last heartbeat."""


class DisownUnsubscribedAnswer(Answer, frozen=True, gc=False, kw_only=True):
    leases: tuple[tuple[str, int], ...] = ()
    """The workers that have ended, and how many leases of each expire now."""
    silent: tuple[tuple[str, Instant], ...] = ()
    """The other workers without a subscriber, each with the time of its last heartbeat."""
    run_id: str
    """Empty: this user may not read it."""
    is_subscribed: bool
    """False: this process is not subscribed at the server that has answered."""
    sessions: int
    """The number of workers that a look counts the subscribers of."""


class DisownUnsubscribed(Command[DisownUnsubscribedAnswer], frozen=True, gc=False, kw_only=True):
    """Disown and forget the workers in `ended` that are still silent. See `lua/presence.lua`."""

    ended: tuple[SilentWorker, ...]
    run_id: str
    """The run of the server at which they were silent before."""
    prefix: str
    """The first part of the names of the workers' channels."""
    own_channel: str
    """A channel to which this process is subscribed."""
    sharded: bool
    min_uptime_s: int
    """Since its start the server must have run for longer."""


Perform = Callable[[Command[Any]], Awaitable[Any]]


class FirstLook(NamedTuple):
    """When a worker was silent for the first time, on the monotonic clock, and its last heartbeat then."""

    at_s: float
    seen: Instant


class Presence:
    """Which workers of the store were silent at the last look of this process."""

    def __init__(
        self, perform: Perform, notifier: ChannelNotifier, runtime: Runtime, *, queues_apart: bool = False
    ) -> None:
        """`queues_apart`: the leases are not where the workers are, so they expire in a second step."""
        self._perform = perform
        self._queues_apart = queues_apart
        self._notifier = notifier
        self._runtime = runtime
        self._run_id = ""
        self._silent: dict[str, FirstLook] = {}
        self._not_before_s = 0.0
        """A worker that was silent before this time may only not be back yet."""
        self._turn_ends_s = self._next_look_s = 0.0
        self._watches = True

    async def disown_silent(self, watched_us: Micros) -> dict[str, int] | None:
        """See `Engine.disown_silent`. None: the server does not say which run it is."""
        notifier, began_s = self._notifier, self._now_s()
        if not self._watches and began_s < self._next_look_s:
            return {}
        watch = notifier.watch
        if watch is None:
            self._silent = {}
            return {}
        not_before_s = max(
            self._not_before_s,
            began_s - watched_us / SECOND,
            watch.since_s if watch.is_first else watch.since_s + GRACE_S,
        )
        ended = tuple(
            SilentWorker(worker, look.seen)
            for worker, look in self._silent.items()
            if look.at_s >= not_before_s and began_s - look.at_s >= BETWEEN_LOOKS_S
        )
        try:
            answer: DisownUnsubscribedAnswer = await self._perform(
                DisownUnsubscribed(
                    ended=ended,
                    run_id=self._run_id,
                    prefix=notifier.worker_prefix,
                    own_channel=notifier.own_channel,
                    sharded=notifier.sharded,
                    min_uptime_s=MIN_UPTIME_S,
                )
            )
        except BaseException:  # also if the caller did not wait any longer
            self._note_outage()
            raise
        if not answer.run_id:
            return None
        self._note(answer, not_before_s, took_s=self._now_s() - began_s)
        leases = dict(answer.leases)
        if self._queues_apart:
            for worker in leases:
                leases[worker] = len((await self._perform(Disown(workers=(worker,)))).leases)
        return leases

    def _note(self, answer: DisownUnsubscribedAnswer, not_before_s: float, took_s: float) -> None:
        if took_s > SLOW_LOOK_S or not answer.is_subscribed or (self._run_id and answer.run_id != self._run_id):
            self._note_outage()
        self._run_id = answer.run_id
        now_s, before = self._now_s(), self._silent
        if now_s >= self._turn_ends_s:
            self._turn_ends_s = now_s + TURN_S
            self._watches = self._runtime.random() * answer.sessions < WATCHERS
        self._next_look_s = now_s + RARE_LOOK_S
        self._silent = {}
        for worker, seen in answer.silent:
            first = before.get(worker)
            if first is None or first.seen != seen or first.at_s < not_before_s:
                first = FirstLook(now_s, seen)
            self._silent[worker] = first

    def _note_outage(self) -> None:
        self._silent = {}
        self._not_before_s = self._now_s() + GRACE_S

    def _now_s(self) -> float:
        return self._runtime.monotonic() / SECOND
