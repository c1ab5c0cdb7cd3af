"""A web shop with FastAPI and a worker in the same process.

    python examples/web_app.py          simulates a customer and prints the answers
    uvicorn examples.web_app:web        serves it, on the store in HOLDFAST_URL

An order is answered at once with 202; a job charges the card. A second click on the same order gets the same job. For
workers in separate processes, leave `jobs.worker()` out of the lifespan below and start
`holdfast worker examples.web_app`.
"""

import asyncio
import os
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import httpx
from fastapi import FastAPI, HTTPException

from holdfast import App, Context, GiveUp, JobNotFound, QueueFull, Retry


@dataclass
class Bank:
    """Replaces the payment provider. It is busy at the first call for an order, and refuses one order."""

    calls: list[int] = field(default_factory=list)

    async def charge(self, order: int, *, idempotency_key: str) -> str:
        self.calls.append(order)
        await asyncio.sleep(0.01)
        if order == 13:
            raise GiveUp("card expired")
        if self.calls.count(order) == 1:
            raise Retry("rate limit", delay=0.05)
        return f"receipt-{order}"


@asynccontextmanager
async def resources() -> AsyncIterator[Bank]:
    yield Bank()  # once per worker; a real one would open its connections here


jobs = App(lifespan=resources)  # the address comes from HOLDFAST_URL or holdfast.toml


@jobs.task(timeout=30, max_attempts=8, unique_key="charge:{order}", unique_for="result")
async def charge(ctx: Context[Bank], order: int) -> str:
    return await ctx.state.charge(order, idempotency_key=ctx.job.id)


@asynccontextmanager
async def lifespan(_: FastAPI) -> AsyncIterator[None]:
    async with jobs, jobs.worker(concurrency=20):
        yield


web = FastAPI(lifespan=lifespan)


@web.post("/orders/{order}/charge", status_code=202)
async def start(order: int) -> dict[str, Any]:
    try:
        handle = await charge.aenqueue(order)
    except QueueFull as full:
        raise HTTPException(503, f"{full.depth} charges are waiting") from full
    return {"job": handle.id, "new": handle.created}


@web.get("/charges/{job}")
async def charge_state(job: str) -> dict[str, Any]:
    try:
        view = await charge.handle(job).arefresh()
    except JobNotFound:
        raise HTTPException(404) from None
    return {"state": view.state, "attempt": view.attempt, "note": view.note}


async def main() -> None:
    """A customer: places orders, clicks twice, asks for the result."""
    async with (
        web.router.lifespan_context(web),  # as a server does at its start
        httpx.AsyncClient(transport=httpx.ASGITransport(app=web), base_url="http://shop") as client,
    ):
        first, second = await asyncio.gather(*(client.post("/orders/7/charge") for _ in range(2)))
        refused = await client.post("/orders/13/charge")
        print("answers:", first.status_code, second.status_code, refused.status_code)
        print("one job for two clicks:", first.json()["job"] == second.json()["job"])

        for reply in (first, refused):
            job = reply.json()["job"]
            await charge.handle(job).areport(timeout=20)
            print((await client.get(f"/charges/{job}")).json())
        print("unknown:", (await client.get("/charges/nothing")).status_code)


if __name__ == "__main__":
    os.environ.setdefault("HOLDFAST_URL", f"sqlite:///{tempfile.mkdtemp(prefix='web-app-')}/jobs.db")
    asyncio.run(main())

# It prints:
#   answers: 202 202 202
#   one job for two clicks: True
#   {'state': 'succeeded', 'attempt': 2, 'note': ''}
#   {'state': 'failed', 'attempt': 1, 'note': 'card expired'}
#   unknown: 404
