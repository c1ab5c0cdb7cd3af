"""Probes: they wait for what should happen, and say what they saw when it does not."""

import asyncio

import pytest

from holdfast.engine import Subscription
from holdfast.testing import Probe, until


class ScriptedSubscription(Subscription):
    """A subscription that is notified of these topics in turn, and then waits until its timeout."""

    def __init__(self, *rings: str) -> None:
        self._rings = list(rings)

    async def wait(self, timeout: float | None = None) -> frozenset[str]:
        if self._rings:
            return frozenset({self._rings.pop(0)})
        await asyncio.wait([asyncio.get_running_loop().create_future()], timeout=timeout)
        return frozenset()

    def close(self) -> None: ...


async def test_until_looks_after_every_notification() -> None:
    looks: list[int] = []

    async def look() -> int:
        looks.append(len(looks))
        return looks[-1]

    assert (await until(ScriptedSubscription("a", "b", "c"), look, holds=lambda seen: seen == 2)) == 2
    assert looks == [0, 1, 2]


async def test_until_needs_no_notification_when_it_holds_already() -> None:
    async def look() -> str:
        return "there"

    assert (await until(ScriptedSubscription(), look)) == "there"


async def test_until_says_what_it_waited_for_and_what_it_saw() -> None:
    async def look() -> str:
        return "queued"

    with pytest.raises(AssertionError, match=r"for job a to end\. Last seen: 'queued'\. Notifications: queue:q\."):
        await until(
            ScriptedSubscription("queue:q"), look, holds=lambda seen: seen == "ended", what="job a to end", timeout=0.01
        )


async def test_a_probe_records_calls_in_order_and_wakes_who_waits() -> None:
    probe = Probe[str]("the handler")

    async def caller() -> None:
        for value in ("one", "two", "three"):
            probe(value)
            await asyncio.sleep(0)

    calls, _ = await asyncio.gather(probe.calls(2), caller())
    assert probe.seen == ["one", "two", "three"]
    assert calls == ["one", "two"]


async def test_a_probe_that_is_not_called_says_how_often_it_was() -> None:
    probe = Probe[str]("the handler")
    probe("one")
    with pytest.raises(AssertionError, match=r"the handler to be called 2 times\. It was called 1 times: \['one'\]"):
        await probe.calls(2, timeout=0.01)
