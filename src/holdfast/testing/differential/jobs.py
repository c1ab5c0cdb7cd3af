"""The jobs that the machine enqueues, by theme.

A job is drawn as a list of *traits*: one short draw each, and dropped one by one when a failure is shrunk.
Instants cannot be drawn before the machine runs, so a trait gives them as a distance from now (`due_in`,
`expires_in`), and `new_job` adds the time.

A run that could do everything would do little of anything: two jobs would hardly ever meet in one lane, with one
key, after one parent. So a run has a **theme**, which leaves out most names and traits.
"""

from collections.abc import Mapping
from typing import Any, NamedTuple

from hypothesis import strategies as st
from hypothesis.strategies import SearchStrategy

from holdfast.model.instants import HOUR, MINUTE, SECOND
from holdfast.model.job import Given, JobKey, KeyScope
from holdfast.model.produce import NewJob, Parent, PoolPlace

Trait = Mapping[str, Any]
Drawn = tuple[str, str, list[Trait]]
"""Queue, id and traits of a new job."""

QUEUES = ("q", "r")
TASKS = {"a": "t", "b": "u", "c": "t", "d": "u", "e": "t", "f": "t"}
"""Each id with the task of nearly all its jobs: with another task it would only be a conflict."""
LANES = ("x", "0")
LEASE_US = 10 * SECOND

ALL_KEYS = tuple(JobKey(queue, id) for queue in QUEUES for id in TASKS)


def after(*ids: str, queue: str = "q", any_end: bool = False) -> Trait:
    return {"parents": tuple(Parent(JobKey(queue, id), any_end) for id in ids)}


LANE: tuple[Trait, ...] = ({"lane": "x"}, {"lane": "x"}, {"lane": "0"})
ORDER: tuple[Trait, ...] = ({"priority": 5}, {"priority": -5})
TIMES: tuple[Trait, ...] = (
    *({"delay": delay} for delay in (1, SECOND, HOUR)),
    *({"due_in": distance} for distance in (-SECOND, 5 * SECOND)),
)
EXPIRES: tuple[Trait, ...] = tuple({"expires_in": distance} for distance in (-1, 0, 1, LEASE_US))
KEYS: tuple[Trait, ...] = (
    *({"unique_key": key} for key in ("k", "k", "l")),
    {"unique_key": "k", "key_scope": KeyScope.RESULT},
    {"unique_key": "k", "key_scope": KeyScope.WINDOW, "key_window": 2 * HOUR},
    {"unique_key": "k", "key_scope": KeyScope.FOREVER},
)
SCOPES: tuple[Trait, ...] = (
    {"key_scope": KeyScope.INCOMPLETE},
    {"key_scope": KeyScope.WINDOW, "key_window": MINUTE},
    {"key_scope": KeyScope.FOREVER},
)
PARENTS: tuple[Trait, ...] = (
    after("a"),
    after("b"),
    after("c"),
    after("b", any_end=True),
    after("a", queue="r", any_end=True),
    after("a", "b"),
    {"parents": (Parent(JobKey("q", "c"), any_end=True), Parent(JobKey("q", "c")))},
)
POOL: tuple[Trait, ...] = (
    {"pool": PoolPlace(2)},
    {"pool": PoolPlace(2, "k")},
    {"pool": PoolPlace(1, "k")},
    {"pool": PoolPlace(3, "l")},
)
CLOCKS: tuple[Trait, ...] = (
    {"given": Given(result_ttl=0, retention=0)},
    {"given": Given(result_ttl=HOUR, retention=0)},
    {"given": Given(result_ttl=0, retention=HOUR)},
)
POLICY: tuple[Trait, ...] = ({"given": Given(max_attempts=2, max_losses=1, timeout=MINUTE, lease_len=30 * SECOND)},)
CONTENT: tuple[Trait, ...] = (
    *({"payload_hash": hash} for hash in (b"1", b"2")),
    *({"reply": process} for process in ("p1", "p2")),
    {"task": "t"},
    {"payload": b"[1]", "metadata": {"customer": "7"}},
)


class Theme(NamedTuple):
    """What a run is about: its ids, the traits of its jobs, and the jobs it begins with."""

    name: str
    ids: str
    traits: tuple[Trait, ...]
    beginning: tuple[NewJob, ...]

    def __repr__(self) -> str:
        return self.name


def _first(ids: str, trait: Trait) -> tuple[NewJob, ...]:
    return tuple(NewJob(queue="q", id=id, task=TASKS[id], **trait) for id in ids)


THEMES = (
    Theme("leases", "abc", (*POLICY, *ORDER, *TIMES), _first("abc", {})),
    Theme("lanes", "abcde", (*LANE, *LANE, *ORDER, *TIMES, *EXPIRES), _first("abc", {"lane": "x"})),
    Theme("keys", "abcd", (*KEYS, *SCOPES, *CLOCKS, *CONTENT), _first("a", {"unique_key": "k"})),
    Theme("parents", "abcd", (*PARENTS, *CLOCKS, {"lane": "x"}), (*_first("a", {}), *_first("b", after("a")))),
    Theme("pools", "abcde", (*POOL, *POOL, *ORDER, *TIMES, *EXPIRES), _first("abc", {"pool": PoolPlace(2, "k")})),
    Theme(
        "everything",
        "abcdef",
        (*LANE, *ORDER, *TIMES, *EXPIRES, *KEYS, *SCOPES, *PARENTS, *CLOCKS, *POLICY, *CONTENT),
        _first("abc", {}),
    ),
)

queues = st.sampled_from(["q", "q", "q", "r"])


def _ids(theme: Theme) -> SearchStrategy[tuple[str, ...]]:
    return st.lists(st.sampled_from(theme.ids), min_size=1, max_size=3).map(tuple)


def _groups(theme: Theme) -> SearchStrategy[list[Drawn]]:
    traits = st.lists(st.sampled_from(theme.traits), max_size=3)
    return st.lists(st.tuples(queues, st.sampled_from(theme.ids), traits), min_size=1, max_size=4)


_IDS = {theme.name: _ids(theme) for theme in THEMES}
_GROUPS = {theme.name: _groups(theme) for theme in THEMES}

themes: SearchStrategy[Theme] = st.runner().flatmap(lambda machine: st.sampled_from(machine.themes))
some_ids: SearchStrategy[tuple[str, ...]] = st.runner().flatmap(lambda machine: _IDS[machine.theme.name])
groups: SearchStrategy[list[Drawn]] = st.runner().flatmap(lambda machine: _GROUPS[machine.theme.name])
"""Of the theme of the run under way."""


def new_job(drawn: Drawn, now: int) -> NewJob:
    queue, id, traits = drawn
    fields: dict[str, Any] = {"task": TASKS[id]}
    for trait in traits:
        fields.update(trait)
    return NewJob(queue=queue, id=id, **timed(fields, now))


def of_one_queue(drawn: list[Drawn]) -> list[Drawn]:
    """The jobs that are in the queue of the first one, without parents in another queue."""
    first = drawn[0][0]
    return [
        (queue, id, [trait for trait in traits if _is_in(queue, trait)])
        for queue, id, traits in drawn
        if queue == first
    ]


def _is_in(queue: str, trait: Trait) -> bool:
    return all(parent.job.queue == queue for parent in trait.get("parents", ()))


def timed(fields: Trait, now: int) -> dict[str, Any]:
    """The fields with every distance from now turned into an instant."""
    return {name.removesuffix("_in"): now + value if name.endswith("_in") else value for name, value in fields.items()}
