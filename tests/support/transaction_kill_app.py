"""The app of the transaction kill tests: a handler leaves a row of the user's and a note, and ends its job with them.

Run as a program it reads numbers, and forks a worker for each. That works until nothing is due, and kills itself at the
n-th line that is run after a handler has begun: of the handler, and of everything that ends its transaction and settles
its job. For 0 it is not killed, and the lines are counted. It answers how the worker ended, and how many lines it ran.
"""

import os
import signal
import sys
import threading
from types import FrameType
from typing import Any

from sqlalchemy import text
from user_transactions import Store

from holdfast import App, Context, fixed

store = Store(
    os.environ["KILL_KIND"], os.environ["KILL_URL"], os.environ["KILL_PLACE"], os.environ["KILL_NAMESPACE"], make=False
)
jobs: App[Any] = store.app()
sessions = store.sessions()
INSERT = f"INSERT INTO {store.table} VALUES "
MARK = "?" if store.kind == "sqlite" else "%s"
OPTIONS: dict[str, Any] = {"max_attempts": None, "max_losses": 1_000, "backoff": fixed(0)}
if store.kind == "postgres":
    OPTIONS["lease"] = 2  # nobody there knows that a process is gone, so the lease has to run out

WATCHED = (
    "transaction_kill_app.py",
    "holdfast/worker/transaction.py",
    "holdfast/worker/open_transaction.py",
    "holdfast/worker/execute.py",
    "holdfast/worker/exchange.py",
    "holdfast/worker/resend.py",
    "holdfast/engines/sqlite/own_transaction.py",
    "holdfast/engines/sqlite/user_transactions.py",
    "holdfast/engines/sqlite/writer.py",
    "holdfast/engines/postgres/user_transactions.py",
    "holdfast/engines/postgres/engine.py",
)


class Steps:
    """Lines that have been run since a handler began."""

    def __init__(self, fatal: int) -> None:
        self.fatal = fatal
        self.count = 0
        self.counting = False

    def trace(self, frame: FrameType, what: str, _: object) -> Any:
        if not frame.f_code.co_filename.endswith(WATCHED):
            return None
        if what == "line" and self.counting:
            self.count += 1
            if self.count == self.fatal:
                os.kill(os.getpid(), signal.SIGKILL)
        return self.trace


steps = Steps(0)


@jobs.task(**OPTIONS)
def note(order: str) -> None: ...


@jobs.task(transaction=True, **OPTIONS)
def plain(ctx: Context, order: str) -> str:
    steps.counting = True
    ctx.tx.execute(f"{INSERT}({MARK})", (order,))
    note.using(id=f"note-{order}", transaction=ctx.tx).enqueue(order)
    return f"done {order}"


@jobs.task(transaction=True, **OPTIONS)
async def awaited(ctx: Context, order: str) -> str:
    steps.counting = True
    connection = await ctx.tx
    if store.kind == "sqlite":
        connection.execute(f"{INSERT}(?)", (order,))
    else:
        await connection.execute(f"{INSERT}($1)", order)
    await note.using(id=f"note-{order}", transaction=connection).aenqueue(order)
    return f"done {order}"


@jobs.task(transaction=sessions, **OPTIONS)
def session(ctx: Context, order: str) -> str:
    steps.counting = True
    ctx.tx.execute(text(f"{INSERT}(:order)"), {"order": order})
    note.using(id=f"note-{order}", transaction=ctx.tx).enqueue(order)
    return f"done {order}"


@jobs.task(**OPTIONS)
def by_hand(ctx: Context, order: str) -> None:
    steps.counting = True
    with sessions.begin() as mine:
        mine.execute(text(f"{INSERT}(:order)"), {"order": order})
        note.using(id=f"note-{order}", transaction=mine).enqueue(order)
        ctx.complete(f"done {order}", transaction=mine)


def live(fatal: int, tell: int) -> None:
    """A worker's life, in a process of its own."""
    steps.fatal = fatal
    threading.settrace(steps.trace)
    sys.settrace(steps.trace)
    jobs.worker(concurrency=1, until_empty=True).run()
    sys.settrace(None)
    os.write(tell, str(steps.count).encode())


def fork(fatal: int) -> tuple[int, int]:
    """How a worker with this fatal line ended, and how many lines it counted."""
    hear, tell = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            live(fatal, tell)
            os._exit(0)
        finally:
            os._exit(1)
    os.close(tell)
    _, status = os.waitpid(pid, 0)
    said = os.read(hear, 100)
    os.close(hear)
    return os.waitstatus_to_exitcode(status), int(said or 0)


if __name__ == "__main__":
    for line in sys.stdin:
        print(*fork(int(line)), flush=True)
