"""`holdfast pools`: look at pools, and give one another number of lanes."""

import click
from rich.text import Text

from holdfast.cli.escape import safe
from holdfast.cli.exits import NothingMatched
from holdfast.cli.options import Store, examples, on_store
from holdfast.cli.records import emit
from holdfast.cli.screen import console, number, table, text
from holdfast.cli.spans import count


@click.group(epilog=examples("holdfast pools list", "holdfast pools resize ledger 16"))
def pools() -> None:
    """Look at pools, and resize them."""


@pools.command("list", epilog=examples("holdfast pools list"))
@on_store()
def list_(store: Store) -> None:
    """Every pool: its lanes, and how many older jobs an unfinished resize waits for."""
    found = store.control.pools()
    if not found:
        raise NothingMatched("There is no pool yet.")
    if store.as_json:
        for pool in found:
            emit(pool)
        return
    rows = [[text(pool.name), number(pool.lanes), Text(str(pool.epoch)), number(pool.old_live)] for pool in found]
    console().print(table(["pool", "lanes#", "epoch#", "moving#"], rows))


@pools.command(epilog=examples("holdfast pools resize ledger 16"))
@click.argument("name", metavar="NAME")
@click.argument("lanes", metavar="N", type=click.IntRange(min=1))
@on_store()
def resize(store: Store, name: str, lanes: int) -> None:
    """Another number of lanes; each key stays in order. The store's number wins over the code's."""
    if name not in [pool.name for pool in store.control.pools()]:
        raise NothingMatched(f"There is no pool {name!r}. A pool exists from its first job on.")
    pool = store.control.resize(name, lanes)
    if store.as_json:
        emit(pool)
        return
    moving = f", {count(pool.old_live, 'job')} of the old size go first" if pool.old_live else ""
    click.echo(f"resized  pool {safe(name)}  {count(pool.lanes, 'lane')}{moving}")
