"""From where on a claim looks for ready jobs.

An index keeps what was claimed until vacuum takes it out, and vacuum takes out nothing that somebody's old snapshot
may still see. One client that leaves a transaction open is enough: every claim then walks over everything claimed
since, and the rate falls and falls. So, when a walk has met many entries that lead nowhere, the next claims of this
caller begin at the first job of the claim before. What became ready behind that meanwhile (a higher priority, a retry,
a release) is found by a walk from the beginning every now and then, and whenever a claim came back short.

In normal times, with few such entries, every claim is a walk from the beginning, and the order is exact.
"""

from holdfast.model.instants import MILLISECOND
from holdfast.model.work import Claim, ExchangeAnswer

MANY = 5_000
"""Entries met in vain, from which on it pays to begin further on."""
SELDOM = 250 * MILLISECOND
COST = 6
"""Microseconds between walks from the beginning, per entry met in vain: a twentieth of the time goes into them."""

Floor = tuple[int, int, int]


class Floors:
    """Per queue, for one engine object. A race between two claims costs a walk at most."""

    def __init__(self) -> None:
        self._floors: dict[str, Floor] = {}
        self._whole_at: dict[str, int] = {}
        """When to walk from the beginning again."""

    def of(self, claim: Claim | None, now: int) -> dict[str, Floor]:
        """The floors that a claim may be given. Shares per task need every walk to be whole."""
        if claim is None or not self._floors:
            return {}
        return {
            wanted.queue: floor
            for wanted in claim.queues
            if (floor := self._floors.get(wanted.queue)) is not None
            and now < self._whole_at[wanted.queue]
            and all(task.limit is None for task in wanted.tasks)
        }

    def learn(self, claim: Claim, used: dict[str, Floor], answer: ExchangeAnswer, walked: int, now: int) -> None:
        """What an answer shows. `used` are the floors it was given, `now` any clock that runs evenly."""
        vain = walked - len(answer.leases)
        if not self._floors and vain < MANY:
            return
        firsts: dict[str, Floor] = {}
        for lease in answer.leases:
            firsts.setdefault(lease.queue, (-lease.priority, lease.due, lease.arrival))
        for wanted in claim.queues:
            name = wanted.queue
            if name in used:
                if name in firsts:
                    self._floors[name] = firsts[name]
            elif vain < MANY or name not in firsts:
                self._floors.pop(name, None)
            else:
                self._floors[name] = firsts[name]
                self._whole_at[name] = now + max(SELDOM, COST * vain)
