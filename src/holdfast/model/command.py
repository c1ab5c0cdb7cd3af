"""A command is a question to an engine; its type names the type of the answer.

Every verb of the contract is one command. `Engine.perform(command)` is the only door, so anything that wants
to stand between (a span, a recorder, an injected fault) wraps one method.
"""

from typing import Generic, TypeVar

from msgspec import Struct

from holdfast.model.instants import At

A = TypeVar("A", bound="Answer")


class Answer(Struct, frozen=True, gc=False, kw_only=True):
    """What an engine says. `at` is the engine time that the verb used."""

    at: At


class Command(Struct, Generic[A], frozen=True, gc=False, kw_only=True):
    """One call of a verb."""
