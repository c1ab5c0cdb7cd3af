"""The SQLite engine. Start with `engine.py`."""

from holdfast.engines.sqlite.engine import SqliteEngine

__all__ = ["SqliteEngine"]
