"""Concurrent calls in an order that depends only on a seed: the same seed repeats the same order."""

import asyncio
import hashlib
import types
from collections.abc import Coroutine, Generator, Sequence
from typing import Any, TypeVar

T = TypeVar("T")


class Dice:
    """Pseudorandom numbers from a seed."""

    def __init__(self, seed: object) -> None:
        self._seed = seed
        self._throws = 0

    def below(self, count: int) -> int:
        """A number from 0 to count - 1."""
        self._throws += 1
        digest = hashlib.blake2b(f"{self._seed}/{self._throws}".encode(), digest_size=8).digest()
        return int.from_bytes(digest, "big") % count

    def shuffled(self, items: Sequence[T]) -> list[T]:
        left = list(items)
        return [left.pop(self.below(len(left))) for _ in items]


@types.coroutine
def pass_turns(count: int) -> Generator[None, None, None]:
    """Let the other tasks of the loop run this many times."""
    for _ in range(count):
        yield


async def overlapping(dice: Dice, *calls: Coroutine[Any, Any, Any]) -> None:
    """Run all calls concurrently, in an order and with delays that the dice decide; return when all have ended."""

    async def staggered(call: Coroutine[Any, Any, Any], turns: int) -> None:
        await pass_turns(turns)
        await call

    await asyncio.gather(*(staggered(call, dice.below(4)) for call in dice.shuffled(calls)))
