"""`holdfast migrate`: bring the store's schema up to date."""

import click

from holdfast.cli.escape import safe
from holdfast.cli.options import app_option, examples, json_option, url_option
from holdfast.cli.records import emit
from holdfast.cli.target import find


@click.command(epilog=examples("holdfast migrate", "holdfast migrate --url env:DATABASE_URL"))
@app_option
@url_option
@json_option
def migrate(target: str | None, url: str | None, as_json: bool) -> None:
    """Bring the store's schema up to date. Safe to run twice, or from two places at once."""
    app = find(target, url).app
    steps = app.migrate()
    for step in steps:
        if as_json:
            emit({"step": step})
        else:
            click.echo(f"applied  {safe(step)}")
    if not as_json:
        click.echo(f"{safe(app.place)} is up to date.")
