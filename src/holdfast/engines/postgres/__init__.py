"""The PostgreSQL engine: many hosts, one database. Its rules run in the server; see `sql/` and `wire.py`."""

from holdfast.engines.postgres.engine import PostgresEngine

__all__ = ["PostgresEngine"]
