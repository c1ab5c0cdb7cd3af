"""`holdfast workers`: who works here, and asking one to stop."""

import click

from holdfast.cli.escape import safe
from holdfast.cli.exits import NotDone, NothingMatched
from holdfast.cli.options import Store, examples, on_store
from holdfast.cli.records import emit
from holdfast.cli.screen import console
from holdfast.cli.status import worker_table


@click.group(epilog=examples("holdfast workers list", "holdfast workers stop web-1-7f3c09ab"))
def workers() -> None:
    """See the workers, and stop one."""


@workers.command("list", epilog=examples("holdfast workers list", "holdfast workers list --json"))
@on_store()
def list_(store: Store) -> None:
    """Every worker that has been heard of lately."""
    found = store.control.workers()
    if not found:
        raise NothingMatched("There is no worker.")
    if store.as_json:
        for worker in found:
            emit(worker)
    else:
        console().print(worker_table(found, store.now))


@workers.command(epilog=examples("holdfast workers stop web-1-7f3c09ab"))
@click.argument("name", metavar="NAME")
@on_store()
def stop(store: Store, name: str) -> None:
    """Ask a worker to stop gently. The beginning of its name is enough where no other begins like it."""
    known = [worker.name for worker in store.control.workers()]
    alike = [name] if name in known else [one for one in known if one.startswith(name)]
    if not alike:
        raise NothingMatched(f"There is no worker {name!r}.")
    if len(alike) > 1:
        raise NotDone(
            "\n".join([f"{len(alike)} workers have a name like {name!r}. Name one:", *(f"  {a}" for a in alike)])
        )
    store.control.stop_worker(alike[0])
    if store.as_json:
        emit({"name": alike[0], "stopping": True})
    else:
        click.echo(f"stopping  {safe(alike[0])}  it was asked to; it finishes what it runs first")
