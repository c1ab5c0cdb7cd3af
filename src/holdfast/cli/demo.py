"""`holdfast demo`: one file, two workers, one of which will not survive."""

from importlib import import_module

import click

from holdfast.cli.options import examples


@click.command(epilog=examples("holdfast demo"))
def demo() -> int:
    """See jobs run, fail, survive a killed worker, and be counted. Its files are in build/demo."""
    code: int = import_module("holdfast.demo.__main__").main([])
    return code
