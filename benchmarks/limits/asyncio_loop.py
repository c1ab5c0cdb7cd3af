"""Bare asyncio dispatch: a semaphore of 100, one task per job, nothing to do."""

import asyncio
import time

SLOTS = 100


async def nothing(slots: asyncio.Semaphore) -> None:
    slots.release()


async def dispatch(jobs: int) -> float:
    slots = asyncio.Semaphore(SLOTS)
    tasks = set()
    began = time.perf_counter()
    for _ in range(jobs):
        await slots.acquire()
        task = asyncio.create_task(nothing(slots))
        tasks.add(task)
        task.add_done_callback(tasks.discard)
    while tasks:
        await asyncio.sleep(0)
    return jobs / (time.perf_counter() - began)


def drain(jobs: int) -> float:
    """Jobs per second."""
    return asyncio.run(dispatch(jobs))
