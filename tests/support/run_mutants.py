"""For contributors: plants each bug of `code_mutants` in a copy of the source tree and runs the tests that it names.

    make mutants                              all of them
    make mutants ONLY="the gate, claim.sql"   those whose name, file or part contains one of these texts

First all named tests run on a sound copy: a test that fails there notices nothing. Then each mutant is applied to a
copy, alone, and its tests run. Two run at a time, each in a copy of its own, and all share one PostgreSQL server. The
source tree itself is never changed.

The exit code is not 0 if a mutant does not apply any more, if its tests fail on the sound copy, or if less than 95 % of
the mutants are noticed. A mutant that names a reason why no test can notice it (`equivalent`) is not run.
"""

import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from enum import StrEnum
from pathlib import Path
from queue import SimpleQueue
from typing import NamedTuple

from code_mutants import MUTANTS, PARTS, DoesNotApply, Mutant
from postgres import FAST, RUN_VARIABLE, WORKER_VARIABLE
from postgres_cluster import Cluster

ROOT = Path(__file__).parents[2]
COPIED = ("src", "tests", "tools", "docs", "examples", "benchmarks", "pyproject.toml", "README.md", "CONTRIBUTING.md")
AT_A_TIME = 2
LIMIT_S = 60.0
"""Seconds for the tests of one mutant. On the sound copy they take a few, and never half of it."""
SOUND_LIMIT_S = 1_200.0
"""Seconds for all named tests on the sound copy."""
WANTED_SHARE = 0.95
STEP_NS = 1_000_000_000
"""Between the modification times of two versions of a file: Python compares whole seconds to find stale byte code."""


class Verdict(StrEnum):
    NOTICED = "noticed"
    TIMED_OUT = "timed out"  # noticed too: on the sound copy the same tests end in time
    SURVIVED = "SURVIVED"
    EQUIVALENT = "equivalent"
    NOT_RUN = "NOT RUN"  # the tests could not be run, or the text was not found


class Result(NamedTuple):
    mutant: Mutant
    verdict: Verdict
    seconds: float = 0.0
    detail: str = ""


class Copy:
    """A copy of the source tree, in which one mutant at a time is planted."""

    def __init__(self, folder: Path, number: int, run: str) -> None:
        self.root = folder / f"copy{number}"
        self._environment = {
            **os.environ,
            "PYTHONPATH": os.pathsep.join([str(self.root / "src"), str(self.root / "tests" / "support")]),
            RUN_VARIABLE: run,  # so all of them find one server
            WORKER_VARIABLE: f"gw{number}",  # and each has a database of its own there
        }
        self._environment.pop("PYTEST_ADDOPTS", None)
        self._modified_ns = time.time_ns()
        for name in COPIED:
            source = ROOT / name
            if source.is_dir():
                shutil.copytree(source, self.root / name, ignore=shutil.ignore_patterns("__pycache__", "*.db*"))
            elif source.exists():
                self.root.mkdir(parents=True, exist_ok=True)
                shutil.copy2(source, self.root / name)

    @contextmanager
    def planted(self, mutant: Mutant) -> Iterator[None]:
        path = mutant.path(self.root)
        sound = path.read_text(encoding="utf-8")
        self._write(path, mutant.applied(sound))
        try:
            self._stamp_rules(path)
            yield
        finally:
            self._write(path, sound)
            self._stamp_rules(path)

    def _write(self, path: Path, text: str) -> None:
        path.write_text(text, encoding="utf-8")
        self._modified_ns += STEP_NS
        os.utime(path, ns=(self._modified_ns, self._modified_ns))

    def _stamp_rules(self, path: Path) -> None:
        """Else a test would notice the checksum of the rules instead of what they do."""
        if path.parent.name == "rules":
            stamp = [sys.executable, str(self.root / "tests" / "support" / "stamp_rules.py")]
            subprocess.run(stamp, cwd=self.root, env=self._environment, capture_output=True, check=True)

    def pytest(self, tests: Iterable[str], limit_s: float, *options: str) -> tuple[int | None, str]:
        """The exit code (None: it took too long) and the output."""
        command = [sys.executable, "-m", "pytest", "-q", "--tb=short", "-p", "no:cacheprovider", *options, *tests]
        with tempfile.TemporaryFile("w+", encoding="utf-8", errors="replace") as output:
            process = subprocess.Popen(
                command,
                cwd=self.root,
                env=self._environment,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
            try:
                code: int | None = process.wait(limit_s)
            except subprocess.TimeoutExpired:
                code = None
            except BaseException:
                _end(process)
                raise
            if code is None:
                _end(process)
            output.seek(0)
            return code, output.read()

    def judge(self, mutant: Mutant) -> Result:
        began_s = time.monotonic()
        try:
            with self.planted(mutant):
                code, output = self.pytest(mutant.tests, LIMIT_S, "-x")
        except DoesNotApply as error:
            return Result(mutant, Verdict.NOT_RUN, detail=str(error))
        seconds = time.monotonic() - began_s
        match code:
            case None:
                return Result(mutant, Verdict.TIMED_OUT, seconds)
            case 0:
                return Result(mutant, Verdict.SURVIVED, seconds)
            case 1:
                return Result(mutant, Verdict.NOTICED, seconds, "".join(_failures(output)[:1]))
            case _:
                return Result(mutant, Verdict.NOT_RUN, seconds, output[-1_000:])


def _end(process: "subprocess.Popen[bytes]") -> None:
    """End the process and those that it started: it leads a session of its own."""
    with suppress(ProcessLookupError):
        os.killpg(process.pid, 9)
    process.wait()


def _failures(output: str) -> list[str]:
    """The tests that pytest lists as failed."""
    lines = [line for line in output.splitlines() if line.startswith(("FAILED tests/", "ERROR tests/"))]
    return [line.split(" - ")[0].partition(" ")[2] for line in lines]


def chosen(only: str) -> list[Mutant]:
    """The mutants whose part, name or file contains one of the texts, which commas separate; without texts all."""
    texts = [text.strip() for text in only.split(",") if text.strip()]
    return [
        mutant
        for part, mutants in PARTS.items()
        for mutant in mutants
        if not texts or any(text in f"{part}: {mutant.name} ({mutant.file})" for text in texts)
    ]


def main(only: str) -> int:
    mutants = chosen(only)
    if not mutants:
        print(f"No mutant has this in its part, name or file: {only}")
        return 2
    # A shell that starts this in the background lets it ignore Ctrl-C, and so would every process of the tests.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    run = f"mutants{os.getpid()}"
    cluster = Cluster.of_run(run, FAST)
    try:
        with tempfile.TemporaryDirectory(prefix="holdfast-mutants-") as folder:
            copies = [Copy(Path(folder), number, run) for number in range(AT_A_TIME)]
            failing = failing_tests(copies[0], mutants)
            if failing is None:
                return 1
            results = judge_all(copies, mutants, failing)
    finally:
        cluster.leave(last=True)
    return report(results)


def failing_tests(copy: Copy, mutants: list[Mutant]) -> set[str] | None:
    """The tests that fail without any mutant, so that they would notice nothing. None: they could not be run."""
    tests = sorted({test for mutant in mutants if not mutant.equivalent for test in mutant.tests})
    if not tests:
        return set()
    began_s = time.monotonic()
    code, output = copy.pytest(tests, SOUND_LIMIT_S, "-n", str(AT_A_TIME), "--dist", "loadfile")
    print(f"the tests on a sound copy: {time.monotonic() - began_s:.0f} s", flush=True)
    if code != 0:
        print(output[-10_000:], flush=True)
    return set(_failures(output)) if code in (0, 1) else None


def judge_all(copies: list[Copy], mutants: list[Mutant], failing: set[str]) -> list[Result]:
    free: SimpleQueue[Copy] = SimpleQueue()
    for copy in copies:
        free.put(copy)
    done = 0

    def judge(mutant: Mutant) -> Result:
        nonlocal done
        unsound = [test for test in failing if test.startswith(mutant.tests)]
        if mutant.equivalent:
            result = Result(mutant, Verdict.EQUIVALENT, detail=mutant.equivalent)
        elif unsound:
            result = Result(mutant, Verdict.NOT_RUN, detail=f"{unsound[0]} fails without it")
        else:
            copy = free.get()
            try:
                result = copy.judge(mutant)
            finally:
                free.put(copy)
        done += 1
        print(f"{done:4}/{len(mutants)}  {result.verdict:<10}  {result.seconds:5.1f} s  {mutant.name}", flush=True)
        return result

    with ThreadPoolExecutor(len(copies)) as threads:
        return list(threads.map(judge, mutants))


def report(results: list[Result]) -> int:
    print(f"\n{'file':<36}  {'verdict':<10}  mutant; the test that noticed it, or why none can")
    for result in results:
        print(f"{result.mutant.file:<36}  {result.verdict:<10}  {result.mutant.name}")
        if result.detail:
            print(f"{'':<50}{result.detail}")
        if result.verdict is Verdict.SURVIVED:
            print(f"{'':<50}{result.mutant.why}")
    count = {verdict: sum(result.verdict is verdict for result in results) for verdict in Verdict}
    noticed = count[Verdict.NOTICED] + count[Verdict.TIMED_OUT]
    share = noticed / len(results)
    print(
        f"\n{len(results)} mutants: {noticed} noticed ({share:.1%}), of these {count[Verdict.TIMED_OUT]} timed out; "
        f"{count[Verdict.SURVIVED]} survived, {count[Verdict.EQUIVALENT]} equivalent, {count[Verdict.NOT_RUN]} not run"
    )
    if count[Verdict.NOT_RUN]:
        print("Repair the mutants that could not be run.")
        return 1
    if len(results) < len(MUTANTS):  # a selection
        return 1 if count[Verdict.SURVIVED] else 0
    if share < WANTED_SHARE:
        print(f"Too few are noticed: at least {WANTED_SHARE:.0%} must be.")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(" ".join(sys.argv[1:])))
