"""The tasks of the demo, and the worker processes that run them."""

from pathlib import Path
from typing import Any

from holdfast.app import App
from holdfast.context import Context
from holdfast.errors import GiveUp
from holdfast.kinds import KINDS, behave
from holdfast.model.retry import exponential

CUSTOMERS = ("alice", "bob", "carol", "dave", "erin", "frank", "grace", "heidi")
CARD = "card-renewed"
"""A file in the folder of the store: once it exists, invoices can be paid."""


def make(url: str, folder: Path) -> "App[Any]":
    """The App of the demo, on this store."""
    jobs: App[Any] = App(url)

    @jobs.task(name="order", backoff=exponential(initial=0.2, jitter=0))
    async def order(ctx: Context, kind: str, key: str) -> str:
        return str(behave(KINDS[kind], key, attempt=ctx.attempt))

    @jobs.task(name="deliver", lane="{customer}")
    async def deliver(customer: str, number: int) -> str:
        return f"{customer} #{number}"

    @jobs.task(name="render", max_attempts=5)
    async def render(ctx: Context, key: str) -> str:
        if ctx.attempt == 1:
            await jobs.runtime.sleep(60)  # long enough to be killed in the middle of it
        return str(behave(KINDS["quick"], key, attempt=ctx.attempt))

    @jobs.task(name="invoice")
    async def invoice(number: int) -> str:
        if not jobs.runtime.fs.exists(folder / CARD):
            raise GiveUp("card expired")
        return f"invoice {number} paid"

    @jobs.task(name="price")
    async def price(basket: str) -> float:
        return 41.80

    @jobs.task(name="charge")
    async def charge(number: int) -> str:
        return f"receipt-{number}"

    return jobs


def work(url: str, folder: Path, name: str) -> None:
    """Run one worker process until it is stopped."""
    make(url, folder).worker(concurrency=50, name=name, signals=True).run()
