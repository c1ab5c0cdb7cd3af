"""A command is a request to an engine, as a value; its type names the type of the answer.

Every verb of the contract is one command, and `Engine.perform(command)` runs all of them. So code that intercepts calls
(a tracer, a recorder, an injected fault) wraps one method.
"""

from typing import Generic, TypeVar

from msgspec import Struct

from holdfast.model.instants import At

A = TypeVar("A", bound="Answer")


class Answer(Struct, frozen=True, gc=False, kw_only=True):
    """The answer of an engine. `at` is the engine time at which the verb took effect."""

    at: At


class Command(Struct, Generic[A], frozen=True, gc=False, kw_only=True):
    """One call of a verb."""
