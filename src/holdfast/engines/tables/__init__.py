"""The store of the rules in plain Python: dictionaries and heaps. The memory engine and the oracle use it."""

from holdfast.engines.tables.tables import Tables

__all__ = ["Tables"]
