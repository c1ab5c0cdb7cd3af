"""Asking before something cannot be taken back."""

import sys

import click

from holdfast.cli.escape import safe
from holdfast.cli.exits import NotDone


def confirm(what: str, *, yes: bool) -> None:
    """Say what is about to happen and ask. Without a terminal to ask on, `--yes` has to be there."""
    if yes:
        return
    if not sys.stdin.isatty():
        raise click.UsageError(f"{safe(what)} Add --yes to do it: there is no terminal to ask on.")
    if not click.confirm(f"{safe(what)} Go on?", err=True):
        raise NotDone("Nothing was done.")
