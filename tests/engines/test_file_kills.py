"""SIGKILL before and inside every file operation, on the real file system."""

import subprocess
import sys
from pathlib import Path

import pytest
from file_scenarios import SCENARIOS, Scenario

PROGRAM = Path(__file__).parents[1] / "support" / "kill_at_call.py"


def kill(scenario: Scenario, folder: Path, first: int, step: int, timeout_s: float) -> int:
    """How many kills the store has survived."""
    command = [sys.executable, str(PROGRAM), str(folder), scenario.name, str(first), str(step)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=timeout_s, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    *problems, kills = done.stdout.splitlines()
    assert problems == [], done.stderr
    return int(kills)


BY_NAME = pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda scenario: scenario.name)


STEPS = {"exchanging": 11, "rotation": 31, "two processes with rotation": 101}
"""Scenarios of the short form, and the number of calls between two kills."""


@pytest.mark.parametrize("name", STEPS)
def test_a_store_survives_kills_at_some_of_the_calls(name: str, tmp_path: Path) -> None:
    scenario = next(scenario for scenario in SCENARIOS if scenario.name == name)
    assert kill(scenario, tmp_path, 3, STEPS[name], 120) > 2


@pytest.mark.chaos
@BY_NAME
def test_a_store_survives_a_kill_at_every_call(scenario: Scenario, tmp_path: Path) -> None:
    print(scenario.name, kill(scenario, tmp_path, 1, 1, 1_500), "kills")
