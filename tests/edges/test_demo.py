"""The demo does what it says, and would say so if it did not."""

import subprocess
import sys
from pathlib import Path

import pytest

from holdfast.demo.screen import Screen
from holdfast.demo.steps import Demo, DemoFailed


def test_the_demo_comes_out_as_promised(tmp_path: Path) -> None:
    demo = subprocess.run(
        [sys.executable, "-m", "holdfast.demo", str(tmp_path / "demo")],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert demo.returncode == 0, demo.stdout + demo.stderr
    for line in (
        "accepted   5,000",
        "0 out of order",
        "37 jobs reaped, finished by demo-1",
        "a late answer in demo-2's name was refused   lost",
        "→ 41.80",
        "created, then completed",
        "requeue invoice-666",
        "accepted 5,039   finished 5,039   lost 0   completed twice 0   compared id by id",
        "retried 232   worker lost 37   dead letters 1, then 0",
    ):
        assert line in demo.stdout, demo.stdout
    assert "\x1b" not in demo.stdout  # no terminal, no colours


async def test_the_demo_fails_when_a_job_is_missing(tmp_path: Path) -> None:
    demo = Demo(tmp_path, Screen())

    async with demo.jobs:
        handle = await demo.jobs.registry["price"].using(id="x").aenqueue("x")
        demo.accepted = [handle.id, "never-enqueued"]
        with pytest.raises((DemoFailed, KeyError)):
            await demo.compare()
