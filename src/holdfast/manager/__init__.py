"""The manager: starts worker processes, watches them and the backlog, and keeps their number between two limits."""

from holdfast.manager.manager import Manager

__all__ = ["Manager"]
