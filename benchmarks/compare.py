"""`python -m benchmarks.compare OLD NEW [measure …]`: two checkouts on one machine, each with its own `.venv`.

Each measure of `make bench-quick` runs five times with the package of each checkout, old and new in turn, because the
speed of a machine drifts within minutes. The programs that measure are those of the checkout in which this one runs, so
both packages do the same work. The table shows both medians and marks a key that is worse by more than 15 %.
"""

import json
import subprocess
import sys
from pathlib import Path
from statistics import median

from benchmarks.measure import ROOT, build

ROUNDS = 5
WORSE_FROM = 0.15
"""A share of the old median. Smaller differences are noise on the machines we have."""
LOWER_IS_BETTER = ("_ms", "_mb", "_mb_20k", "_mb_200k", "cpu_us_per_job", "after_quiet_to_idle", "time_to_one")
PROGRAM = """
import sys
from benchmarks import measure
alternate = measure.alternate
measure.alternate = lambda ours, bare, pairs=1: alternate(ours, bare, 1)  # the rounds are counted by this program
from benchmarks import quick
quick.main(sys.argv[1:])
"""
MEASURES = (
    "sqlite_drain",
    "sqlite_drain_tasks",
    "memory_drain",
    "sqlite_enqueue",
    "sqlite_latency",
    "postgres_drain",
    "postgres_drain_many",
    "postgres_drain_tasks",
    "postgres_take_out",
    "postgres_workers",
    "postgres_enqueue",
    "postgres_latency",
    "sqlite_growth",
)
"""All but `postgres_old_snapshot`, which takes long and has a bar of its own, and `huey_enqueue`, which has a peer."""


def run(checkout: Path, measure: str) -> dict[str, float]:
    written = build() / "bench.json"
    written.unlink(missing_ok=True)
    subprocess.run([checkout / ".venv/bin/python", "-c", PROGRAM, measure], cwd=ROOT, check=True, capture_output=True)
    figures: dict[str, float] = json.loads(written.read_text())
    return figures


def main(old: Path, new: Path, measures: tuple[str, ...]) -> int:
    worse = 0
    for measure in measures:
        before: dict[str, list[float]] = {}
        after: dict[str, list[float]] = {}
        for _ in range(ROUNDS):
            for checkout, figures in ((old, before), (new, after)):
                for key, value in run(checkout, measure).items():
                    figures.setdefault(key, []).append(value)
        for key in sorted(before.keys() & after.keys()):
            worse += show(key, median(before[key]), median(after[key]))
    return worse


def show(key: str, old: float, new: float) -> bool:
    """Print one key; True if it is worse."""
    change = (new - old) / old if old else 0.0
    loss = change if key.endswith(LOWER_IS_BETTER) else -change
    is_worse = loss > WORSE_FROM and "bare" not in key.removesuffix("ratio_to_bare")
    print(f"{key:<52} {old:>12,.2f} {new:>12,.2f} {change:>+8.1%}{'   WORSE' if is_worse else ''}", flush=True)
    return is_worse


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]).resolve(), Path(sys.argv[2]).resolve(), tuple(sys.argv[3:]) or MEASURES) > 0)
