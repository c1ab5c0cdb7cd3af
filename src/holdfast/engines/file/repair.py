"""Repair."""

from holdfast.engines.file.records import Records


def repair(records: Records) -> None:
    """Make the records agree with each other."""
