"""`make bench-backlog`: one drain of each size of backlog, with each kind of statistics, on a fresh store.

The planner of a database decides by its statistics, and a plan that is good at one size may be bad at the next: a claim
once took ten times as long with 22,500 to 45,000 queued jobs, on a table that had not been analysed yet. So no size and
no kind of statistics may fall out of line. A drain below half of one of its neighbours (the next sizes with the same
statistics, the other statistics at the same size) is repeated once. If it is below half again, the program ends with 1.
The share of the bare loop has a bar, which is printed.

Redis has no planner: there the cost of a claimed job with a million queued ones is compared with that of a thousand.

`python -m benchmarks.backlog sqlite` measures one engine.
"""

import asyncio
import sqlite3
import sys
import tempfile
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import asyncpg

from benchmarks import quick, redis
from benchmarks.limits import postgres_loop, sqlite_loop
from benchmarks.measure import RAW, build, fill, finish, start
from benchmarks.postgres import Stores

SIZES = (1_000, 10_000, 25_000, 40_000, 100_000, 200_000)
"""Jobs that are queued when the worker starts."""
FILLED_WITH = {"none": "never analysed", "empty": "analysed while empty", "fresh": "analysed when full"}
NEARLY_DRAINED = "drained"
"""Analysed when full, as `fresh`, and then the last fifth of the jobs."""
FEWEST_LAST = 2_000
"""Jobs. Fewer end in a few bursts, and their rate says little: a smaller backlog has no such figure."""
KINDS = (*FILLED_WITH, NEARLY_DRAINED)
LOWEST_SHARE = 0.5
"""Of a neighbour's rate. Below it a drain fell out of line; noise on the machines we have is less."""
BARS = {"postgres": 0.50, "sqlite": 0.22}
"""Shares of the bare loop."""

Drain = tuple[int, str]
Rates = dict[Drain, float]


def main(engines: list[str]) -> int:
    failed = 0
    with tempfile.TemporaryDirectory(dir=build()) as folder, Stores() as stores:
        for engine, drains, bare in (
            ("postgres", lambda size, kind: on_postgres(stores, size, kind), lambda size: bare_postgres(stores, size)),
            ("sqlite", lambda size, kind: on_sqlite(Path(folder), size, kind), lambda s: bare_sqlite(Path(folder), s)),
        ):
            if not engines or engine in engines:
                failed += measure(engine, drains, bare)
    if not engines or "redis" in engines:
        failed += measure_redis()
    return 1 if failed else 0


def measure(engine: str, drains: Callable[[int, str], tuple[float, float]], bare: Callable[[int], float]) -> int:
    """Measure and print one engine; return how many drains fell out of line."""
    print(f"{engine}, jobs/s and their share of the bare loop (bar: {BARS[engine]:.2f})")
    print(f"{'queued':>9} {'bare':>9}" + "".join(f" {kind:>16}" for kind in KINDS), flush=True)
    rates: Rates = {}
    limits = {}
    for size in SIZES:
        limits[size] = bare(size)
        for kind in FILLED_WITH:
            rates |= drained(drains, size, kind)
        print(row(engine, size, limits[size], rates), flush=True)
    for size, kind in sorted({(size, filled_as(kind)) for size, kind in out_of_line(rates)}):
        for drain, rate in drained(drains, size, kind).items():
            print(f"again: {size:,} queued, statistics {drain[1]}: {rate:,.0f} jobs/s", flush=True)
            rates[drain] = max(rates[drain], rate)
    found = out_of_line(rates)
    for size, kind in found:
        print(f"OUT OF LINE: {size:,} queued, statistics {kind}: below half of a neighbour")
    low = [drain for drain, rate in rates.items() if rate / limits[drain[0]] < BARS[engine]]
    print(f"bar {'NOT MET' if low else 'met'} in {len(low) or len(rates)} of {len(rates)} drains\n", flush=True)
    return len(found)


def measure_redis() -> int:
    """Measure and print Redis; return how many figures grow with the backlog."""
    with redis.Stores() as stores:
        figures = redis.flatness(stores)
    quick.show(figures)
    return sum(not quick.BARS[name].met(figure) for name, figure in figures.items() if name in quick.BARS)


def row(engine: str, size: int, limit: float, rates: Rates) -> str:
    cells = ""
    for rate in (rates.get((size, kind)) for kind in KINDS):
        if rate is None:
            cells += f" {'-':>9}       "
        else:
            cells += f" {rate:>9,.0f} {rate / limit:5.2f}{'*' if rate / limit < BARS[engine] else ' '}"
    return f"{size:>9,} {limit:>9,.0f}{cells}"


def out_of_line(rates: Rates) -> list[Drain]:
    """The drains below half of one of their neighbours."""
    return [drain for drain, rate in rates.items() if rate < LOWEST_SHARE * max(neighbours(rates, drain), default=0)]


def neighbours(rates: Rates, drain: Drain) -> list[float]:
    size, kind = drain
    sizes = sorted({other for other, _ in rates})
    place = sizes.index(size)
    beside = (*sizes[max(place - 1, 0) : place], *sizes[place + 1 : place + 2])
    near = [(other, kind) for other in beside] + [(size, other) for _, other in rates if other != kind]
    return [rates[other] for other in near if other in rates]


def filled_as(kind: str) -> str:
    """The statistics a store is filled with to measure this kind."""
    return "fresh" if kind == NEARLY_DRAINED else kind


def drained(drains: Callable[[int, str], tuple[float, float]], size: int, kind: str) -> Rates:
    whole, last = drains(size, kind)
    with_last = kind == "fresh" and size > FEWEST_LAST
    return {(size, kind): whole} | ({(size, NEARLY_DRAINED): last} if with_last else {})


# PostgreSQL


def on_postgres(stores: Stores, size: int, kind: str) -> tuple[float, float]:
    url = stores.fresh()
    fill(url, 0)
    asyncio.run(_execute(url, AUTOVACUUM_OFF, *(["ANALYZE"] if kind == "empty" else [])))
    fill(url, size, "counted")
    asyncio.run(_execute(url, *(["VACUUM ANALYZE"] if kind == "fresh" else []), "CHECKPOINT"))
    rates = worker_rates(url, size)
    stores.drop(url)
    return rates


AUTOVACUUM_OFF = """
DO $$
DECLARE name regclass;
BEGIN
    FOR name IN
        SELECT c.oid FROM pg_class AS c JOIN pg_namespace AS n ON n.oid = c.relnamespace
        WHERE c.relkind = 'r' AND n.nspname NOT LIKE 'pg\\_%' AND n.nspname <> 'information_schema'
    LOOP
        EXECUTE format('ALTER TABLE %s SET (autovacuum_enabled = off)', name);
    END LOOP;
END $$
"""


async def _execute(url: str, *statements: str) -> None:
    connection = await asyncpg.connect(url)
    for statement in statements:
        await connection.execute(statement)
    await connection.close()


def bare_postgres(stores: Stores, size: int) -> float:
    url = stores.fresh()
    rate = postgres_loop.drain(url, size, RAW)
    stores.drop(url)
    return rate


# SQLite has statistics only where an operator ran ANALYZE.


def on_sqlite(folder: Path, size: int, kind: str) -> tuple[float, float]:
    path = folder / f"{kind}-{size}.db"
    url = f"sqlite:///{path}"
    fill(url, 0)
    if kind == "empty":
        _analyse(path)
    fill(url, size, "counted")
    if kind == "fresh":
        _analyse(path)
    rates = worker_rates(url, size)
    _remove(path)
    return rates


def _analyse(path: Path) -> None:
    with closing(sqlite3.connect(path)) as db:
        db.execute("ANALYZE")


def bare_sqlite(folder: Path, size: int) -> float:
    path = folder / f"bare-{size}.db"
    rate = sqlite_loop.drain(path, size, RAW)
    _remove(path)
    return rate


def _remove(path: Path) -> None:
    for file in path.parent.glob(f"{path.name}*"):
        if file.is_file():
            file.unlink()


def worker_rates(url: str, size: int) -> tuple[float, float]:
    """Of the whole drain, and of its last fifth."""
    last_jobs = min(size, max(size // 5, FEWEST_LAST))
    whole, last = map(float, finish(start("drain_counted", url, last_jobs)).split())
    return whole, last


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
