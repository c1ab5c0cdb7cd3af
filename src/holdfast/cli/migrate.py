"""`holdfast migrate`: bring the store's schema up to date, or print what would do so."""

from typing import Any

import click

from holdfast.app import App
from holdfast.cli.escape import safe
from holdfast.cli.exits import say
from holdfast.cli.options import app_option, examples, json_option, url_option
from holdfast.cli.records import emit
from holdfast.cli.target import find


@click.command(
    epilog=examples(
        "holdfast migrate",
        "holdfast migrate --url env:DATABASE_URL --grant shop_app",
        "holdfast migrate --sql > holdfast.sql",
    )
)
@click.option("--grant", "roles", metavar="ROLE", multiple=True, help="Let this role of the database use the store.")
@click.option("--sql", is_flag=True, help="Print what would be done, and do nothing.")
@click.option(
    "--after",
    type=click.IntRange(min=0),
    metavar="VERSION",
    help="With --sql: all that came after this version (0: everything), without asking the store.",
)
@app_option
@url_option
@json_option
def migrate(
    target: str | None, url: str | None, roles: tuple[str, ...], sql: bool, after: int | None, as_json: bool
) -> None:
    """Bring the store's schema up to date. Safe to run twice, or from two places at once."""
    if after is not None and not sql:
        raise click.UsageError("--after goes with --sql.")
    app = find(target, url).app
    if sql:
        _print(app, app.migration_script(after=after, grant=roles), as_json=as_json)
        return
    steps = app.migrate(grant=roles)
    for kind, done in [*(("step", step) for step in steps), *(("grant", role) for role in roles)]:
        if as_json:
            emit({kind: done})
        else:
            click.echo(f"{'applied' if kind == 'step' else 'granted'}  {safe(done)}")
    if not as_json:
        click.echo(f"{safe(app.address)} is up to date.")


def _print(app: App[Any], script: str, *, as_json: bool) -> None:
    """The script alone goes to the output, so that it can be sent to a file."""
    if as_json:
        emit({"sql": script})
    elif script:
        click.echo(script, nl=False)
    else:
        say(f"{app.address} is up to date.")
