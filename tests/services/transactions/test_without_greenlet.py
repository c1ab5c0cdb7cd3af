"""Sync sessions of SQLAlchemy where greenlet is not installed: only its async half needs greenlet."""

import subprocess
import sys
from pathlib import Path

import pytest

WITHOUT_GREENLET = """
import sys

class NoGreenlet:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] == "greenlet":
            raise ModuleNotFoundError("No module named 'greenlet'", name="greenlet")

sys.meta_path.insert(0, NoGreenlet())
"""

PROGRAM = """
from holdfast import App, Context
from sqlalchemy import create_engine
from sqlalchemy.orm import scoped_session, sessionmaker

engine = create_engine(f"sqlite:///{sys.argv[1]}")
jobs = App(f"sqlite:///{sys.argv[1]}", durability="none")
Sessions = sessionmaker(engine)

@jobs.task(transaction=Sessions)
def ship(ctx: Context, order: str) -> str:
    session = ctx.tx
    return f"shipped {order}"
"""

USES = {
    "a session": "with Sessions.begin() as given: ship.using(transaction=given).enqueue('1')",
    "a scoped session": "given = scoped_session(Sessions); ship.using(transaction=given).enqueue('1'); given.commit()",
    "a connection": "with engine.begin() as given: ship.using(transaction=given).enqueue('1')",
    "the session of a task": "ship.enqueue('1')",
}


@pytest.mark.parametrize("use", USES)
def test_a_sync_session_needs_no_greenlet(tmp_path: Path, use: str) -> None:
    program = [
        WITHOUT_GREENLET,
        PROGRAM,
        USES[use],
        "jobs.worker(until_empty=True).run()",
        "print(jobs.control.status('default').succeeded, 'greenlet' in sys.modules)",
    ]
    ran = subprocess.run(
        [sys.executable, "-c", "\n".join(program), str(tmp_path / "shop.db")],
        check=False,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert ran.stdout.strip() == "1 False", ran.stderr
