"""`holdfast migrate`: bring the store's schema up to date, or print the SQL that does so."""

from typing import Any

import click

from holdfast.app import App
from holdfast.cli.exits import print_message
from holdfast.cli.format import safe
from holdfast.cli.json_output import print_json
from holdfast.cli.options import app_option, examples, json_option, url_option
from holdfast.cli.target import find


@click.command(
    epilog=examples(
        "holdfast migrate",
        "holdfast migrate --url env:DATABASE_URL --grant shop_app",
        "holdfast migrate --sql > holdfast.sql",
    )
)
@click.option(
    "--grant", "roles", metavar="ROLE", multiple=True, help="Allow this role of the database to use the store."
)
@click.option("--sql", is_flag=True, help="Print the SQL and change nothing.")
@click.option(
    "--after",
    type=click.IntRange(min=0),
    metavar="VERSION",
    help="With --sql: print everything after this version (0: everything), without a connection.",
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
        _print_script(app, app.migration_script(after=after, grant=roles), as_json=as_json)
        return
    steps = app.migrate(grant=roles)
    for kind, name in [*(("step", step) for step in steps), *(("grant", role) for role in roles)]:
        if as_json:
            print_json({kind: name})
        else:
            click.echo(f"{'applied' if kind == 'step' else 'granted'}  {safe(name)}")
    if not as_json:
        click.echo(f"{safe(app.address)} is up to date.")


def _print_script(app: App[Any], script: str, *, as_json: bool) -> None:
    """Only the script goes to standard output, so that it can be redirected to a file."""
    if as_json:
        print_json({"sql": script})
    elif script:
        click.echo(script, nl=False)
    else:
        print_message(f"{app.address} is up to date.")
