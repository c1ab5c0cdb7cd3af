"""What the commands need and `Control` does not offer yet: pools, stopping a worker, and facts about the store."""

import asyncio
from dataclasses import dataclass
from typing import Any

from holdfast.app import App
from holdfast.cli.exits import NotDone, NothingMatched

CLASSES = {
    "durable": "durable (every commit synced)",
    "fast": "fast (commits survive a crash of the process, not of the machine)",
    "none": "none (nothing is synced)",
}


@dataclass(frozen=True, slots=True)
class StoreFacts:
    """Where the jobs are, and what is promised of them."""

    engine: str
    place: str
    durability: str

    @property
    def promise(self) -> str:
        return CLASSES[self.durability]


def facts_of(app: App[Any]) -> StoreFacts:
    said = app._link._options.get("durability") or app.config.durability
    durability = "none" if not app.engine.capabilities.durable else said or "durable"
    return StoreFacts(app.engine.scheme, app.place, durability)


@dataclass(frozen=True, slots=True)
class PoolStatus:
    """A pool: its lanes, and the jobs that still run by its size before."""

    name: str
    lanes: int
    epoch: int
    old_live: int


def pools(app: App[Any]) -> list[PoolStatus]:
    """Every pool, by name."""

    async def ask() -> list[PoolStatus]:
        return [PoolStatus(p.name, p.lanes, p.epoch, p.old_live) for p in (await app.engine.pools()).pools]

    return asyncio.run(ask())


def resize(app: App[Any], name: str, lanes: int) -> PoolStatus:
    """Give a pool another number of lanes."""
    if name not in [pool.name for pool in pools(app)]:
        raise NothingMatched(f"There is no pool {name!r}. A pool exists from its first job on.")
    answer = asyncio.run(app.engine.resize(name, lanes))
    pool = answer.pool
    if not answer.changed and pool.lanes != lanes:
        raise NotDone(f"Pool {name!r} still changes its size: {pool.old_live} older jobs have not ended. Try later.")
    return PoolStatus(pool.name, pool.lanes, pool.epoch, pool.old_live)


def stop_worker(app: App[Any], name: str) -> None:
    """Ask a worker to stop gently."""
    asyncio.run(app.engine.stop_worker(name))
