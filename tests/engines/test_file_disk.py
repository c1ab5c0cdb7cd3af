"""The disk under a file store: it is full, or it is copied while processes write. No acknowledged job is lost."""

import errno
import logging
import os
import shutil
import stat
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest
from file_engine import file_store, read_ids, runner_of
from intercepted_files import Call, InterceptedFiles
from opened_engine import opened_engine
from small_disk import SmallDisk, runtime_on
from sqlite_store import a_claim, job, success

from holdfast.engines.file.compact import compact_store
from holdfast.engines.file.engine import FileEngine
from holdfast.engines.file.runner import LEAST_RESERVE_BYTES, MOST_RESERVE_BYTES
from holdfast.engines.reserve import REFILL_INTERVAL_US
from holdfast.errors import HoldfastError, StorageFull
from holdfast.files import Files
from holdfast.model.job import JobKey
from holdfast.model.limits import MOST_RESOLVED
from holdfast.model.produce import Enqueue, Group, NewJob, Parent
from holdfast.model.work import Exchange, SettleStatus
from holdfast.runtime import SystemRuntime

MIB = 1024 * 1024


def is_again_due(*engines: object) -> None:
    """As if the pause before the next try to fill the reserve were over."""
    for engine in engines:
        runner_of(engine)._reserve._refill_at_us -= REFILL_INTERVAL_US  # type: ignore[arg-type]


# --- A full disk ---


async def test_a_full_disk_refuses_jobs_as_storage_full_and_nothing_is_written(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "jobs"
    disk = SmallDisk(tmp_path, 8 * MIB)
    async with opened_engine(file_store(path, runtime=runtime_on(disk))) as engine:
        await engine.enqueue(job("before"))
        disk.fill()
        for _ in range(3):
            with pytest.raises(StorageFull, match="Nothing was written"):
                await engine.enqueue(job("refused"))
        assert sum("the disk is full" in message for message in caplog.messages) == 1
        assert (await engine.stats()).queues[0].depth == 1
        disk.clear()
        is_again_due(engine)
        await engine.enqueue(job("after"))
        assert (path / "holdfast" / "reserve").stat().st_size >= LEAST_RESERVE_BYTES
        assert await engine.audit() == ()
    assert read_ids(path) == {"before", "after"}


async def test_jobs_are_still_claimed_renewed_and_settled_while_the_disk_is_full(tmp_path: Path) -> None:
    path = tmp_path / "jobs"
    disk = SmallDisk(tmp_path, 16 * MIB)
    async with opened_engine(file_store(path, runtime=runtime_on(disk))) as engine:
        await engine.enqueue(Group(tuple(NewJob(queue="q", id=f"{number}", task="t") for number in range(500))))
        disk.fill()
        with pytest.raises(StorageFull):
            await engine.enqueue(job("refused"))
        settled = 0
        while leases := (await engine.claim(a_claim("w", settled, limit=20))).leases:
            answer = await engine.settle(*map(success, leases))
            assert set(answer.settled) == {SettleStatus.APPLIED}
            settled += len(leases)
            is_again_due(engine)
            with pytest.raises(StorageFull):
                await engine.enqueue(job("refused"))
        assert settled == 500
        assert await engine.audit() == ()
    assert len(read_ids(path)) == 500


async def test_one_batch_with_an_enqueue_and_a_settlement_is_divided_on_a_full_disk(tmp_path: Path) -> None:
    path = tmp_path / "jobs"
    disk = SmallDisk(tmp_path, 8 * MIB)
    async with opened_engine(file_store(path, runtime=runtime_on(disk))) as engine:
        await engine.enqueue(job("a"))
        (lease,) = (await engine.claim(a_claim("w"))).leases
        disk.fill()
        refused, applied = runner_of(engine).run(
            [Enqueue(groups=(job("refused"),)), Exchange(settlements=(success(lease),))]
        )
        assert isinstance(refused.error, StorageFull)
        assert applied.answer.settled == (SettleStatus.APPLIED,)
        assert await engine.audit() == ()


async def test_no_process_enqueues_while_the_reserve_is_in_use(tmp_path: Path) -> None:
    path = tmp_path / "jobs"
    disk = SmallDisk(tmp_path, 8 * MIB)
    async with (
        opened_engine(file_store(path, runtime=runtime_on(disk))) as engine,
        opened_engine(file_store(path, runtime=runtime_on(disk))) as other,
    ):
        await engine.enqueue(job("before"))
        await other.enqueue(job("too"))
        disk.fill()
        with pytest.raises(StorageFull):
            await engine.enqueue(job("refused"))
        with pytest.raises(StorageFull):  # the space of the reserve is free now, and is not for new jobs
            await other.enqueue(job("refused"))
        leases = (await other.claim(a_claim("w"))).leases
        assert (await engine.settle(*map(success, leases))).settled == (SettleStatus.APPLIED,) * 2
        disk.clear()
        is_again_due(engine, other)
        await other.enqueue(job("after"))
        await engine.enqueue(job("then"))
        assert await engine.audit() == await other.audit() == ()
    assert read_ids(path) == {"before", "too", "after", "then"}


async def test_no_snapshot_takes_the_space_of_the_reserve(tmp_path: Path) -> None:
    path = tmp_path / "jobs"
    disk = SmallDisk(tmp_path, 16 * MIB)
    async with opened_engine(file_store(path, runtime=runtime_on(disk), segment_bytes=65_536)) as engine:
        await engine.enqueue(Group(tuple(NewJob(queue="q", id=f"{number}", task="t") for number in range(300))))
        disk.fill()
        with pytest.raises(StorageFull):
            await engine.enqueue(job("refused"))
        before = {found.name for found in (path / "holdfast").glob("*.snapshot")}
        for number in range(10):
            leases = (await engine.claim(a_claim("w", number, limit=30))).leases
            await engine.settle(*map(success, leases))
        assert {found.name for found in (path / "holdfast").glob("*.snapshot")} == before
        assert (await engine.stats()).queues[0].depth == 0


async def test_a_disk_without_free_inodes_is_reported_once_and_not_with_every_write(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(call: Call) -> None:
        if call.verb == "create":
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    def segments() -> int:
        return len(list((tmp_path / "jobs" / "holdfast").glob("*.journal")))

    runtime = SystemRuntime()
    runtime.fs = disk = InterceptedFiles(Files(), tmp_path)
    async with opened_engine(file_store(tmp_path / "jobs", runtime=runtime, segment_bytes=65_536)) as engine:
        disk.before = fail
        for number in range(10):
            await engine.enqueue(job(f"{number}", payload=bytes(20_000)))
        assert sum("could not go on in a new file" in message for message in caplog.messages) == 1
        assert segments() == 1
        disk.before = lambda call: None
        runner_of(engine)._compaction._next_try_us = 0  # as if the pause were over
        await engine.enqueue(job("after"))
        assert segments() == 2


async def test_the_reserve_grows_with_the_jobs_that_wait_up_to_a_limit(tmp_path: Path) -> None:
    path = tmp_path / "jobs"
    async with opened_engine(file_store(path, durability="none")) as engine:
        reserve = path / "holdfast" / "reserve"
        await engine.enqueue(job("first"))
        assert LEAST_RESERVE_BYTES <= reserve.stat().st_size < 2 * LEAST_RESERVE_BYTES
        for batch in range(30):
            jobs = tuple(NewJob(queue="q", id=f"{batch}-{number}", task="t") for number in range(1_000))
            await engine.enqueue(Group(jobs))
        runner_of(engine)._reserve._transactions = 10**9
        await engine.enqueue(job("last"))
        assert reserve.stat().st_size == MOST_RESERVE_BYTES
        assert reserve.stat().st_blocks * 512 >= MOST_RESERVE_BYTES  # it occupies the space


ON_TMPFS = """
import os, sys, time
from pathlib import Path
sys.path.insert(0, sys.argv[2])
from file_engine import file_store, read_ids
from sqlite_store import a_claim, job, success
from holdfast.errors import StorageFull
from holdfast.model.produce import Enqueue, Group, NewJob
from holdfast.model.work import Exchange

root = Path(sys.argv[1])
engine = file_store(root / "jobs")
engine.open_now()
batch = tuple(NewJob(queue="q", id=f"{number}", task="t") for number in range(500))
engine.perform_now(Enqueue(groups=(Group(batch),)))
with open(root / "filler", "wb", buffering=0) as filler:
    try:
        while True:
            filler.write(bytes(4096))
    except OSError:
        pass
refused = 0
try:
    for number in range(1000):  # what is left of the last page of the journal
        engine.perform_now(Enqueue(groups=(job(f"more-{number}"),)))
except StorageFull:
    refused += 1
more = number
settled = 0
while leases := engine.perform_now(Exchange(claim=a_claim("w", settled, limit=10))).leases:
    engine.perform_now(Exchange(settlements=tuple(map(success, leases))))
    settled += len(leases)
os.unlink(root / "filler")
deadline = time.monotonic() + 30
while True:
    try:
        engine.perform_now(Enqueue(groups=(job("after"),)))
        break
    except StorageFull:
        assert time.monotonic() < deadline
        time.sleep(0.05)
engine.close_now()
print(refused, settled - more, len(read_ids(root / "jobs")) - more)
"""


def mount_is_allowed() -> bool:
    command = ["unshare", "-rm", "sh", "-c", "mount -t tmpfs -o size=1m none /mnt"]
    if shutil.which("unshare") is None:
        return False
    return subprocess.run(command, capture_output=True, check=False).returncode == 0


def play_on_tmpfs(folder: Path, program: str) -> str:
    """Run a program on a disk of 4 MiB; the answer is what it prints."""
    if not mount_is_allowed():
        pytest.skip("this system lets us mount no file system of our own")
    (folder / "disk").mkdir()
    (folder / "program.py").write_text(program)
    support = Path(__file__).parents[1] / "support"
    command = f"{sys.executable} {folder}/program.py {folder}/disk {support}"
    script = f"mount -t tmpfs -o size=4m none {folder}/disk && exec {command}"
    played = subprocess.run(["unshare", "-rm", "sh", "-c", script], capture_output=True, text=True, check=False)
    assert played.returncode == 0, played.stderr
    return played.stdout


def test_the_same_on_a_real_disk_that_is_full(tmp_path: Path) -> None:
    assert play_on_tmpfs(tmp_path, ON_TMPFS).split() == ["1", "500", "501"]


# --- A store that fills the disk itself ---


async def fill_with_ended_jobs(engine: FileEngine, live: int) -> int:
    """Until no job is accepted; the answer is the number of ended jobs. `live` jobs of another queue wait."""
    await engine.enqueue(Group(tuple(NewJob(queue="live", id=f"{number}", task="t") for number in range(live))))
    ended = 0
    with suppress(StorageFull):
        while True:
            await engine.enqueue(job(f"{ended}", payload=bytes(50_000)))
            await engine.settle(*map(success, (await engine.claim(a_claim("w", ended))).leases))
            ended += 1
    return ended


async def test_ended_jobs_can_be_dropped_in_the_space_of_the_reserve(tmp_path: Path) -> None:
    path = tmp_path / "jobs"
    disk = SmallDisk(tmp_path, 8 * MIB)
    async with opened_engine(file_store(path, runtime=runtime_on(disk))) as engine:
        ended = await fill_with_ended_jobs(engine, live=20)
        sizes = compact_store(path, "holdfast", runtime_on(disk), drop_ended=True)
        assert sizes.bytes_after < 20_000 < 6 * MIB < sizes.bytes_before
        is_again_due(engine)
        await engine.enqueue(job("after"))  # the process that has the store open goes on
        assert sum(queue.totals.succeeded for queue in (await engine.stats()).queues) == ended > 50
        assert await engine.audit() == ()
    assert read_ids(path) == {"after", *map(str, range(20))}


async def test_a_store_stays_as_it_is_if_the_disk_has_no_space_for_the_jobs_that_have_not_ended(tmp_path: Path) -> None:
    path = tmp_path / "jobs"
    disk = SmallDisk(tmp_path, 8 * MIB)
    async with opened_engine(file_store(path, runtime=runtime_on(disk))) as engine:
        for number in range(40):
            await engine.enqueue(job(f"{number}", payload=bytes(50_000)))
        disk.fill()
        with pytest.raises(StorageFull, match="Free some space"):
            compact_store(path, "holdfast", runtime_on(disk), drop_ended=True)
        (lease,) = (await engine.claim(a_claim("w", limit=1))).leases
        assert (await engine.settle(success(lease))).settled == (SettleStatus.APPLIED,)
        assert await engine.audit() == ()
    assert list((path / "holdfast").glob(".*")) == []
    assert len(read_ids(path)) == 40


async def test_an_ended_parent_is_kept_until_its_children_have_been_given_its_end(tmp_path: Path) -> None:
    path, children = tmp_path / "jobs", 2 * MOST_RESOLVED
    parents = (Parent(JobKey("q", "parent")),)
    async with opened_engine(file_store(path)) as engine:
        await engine.enqueue(job("parent"))
        await engine.enqueue(
            Group(tuple(NewJob(queue="q", id=f"{number}", task="t", parents=parents) for number in range(children)))
        )
        await engine.settle(*map(success, (await engine.claim(a_claim("w"))).leases))
    compact_store(path, "holdfast", SystemRuntime(), drop_ended=True)
    async with opened_engine(file_store(path)) as engine:
        while (await engine.prune(100)).more:
            pass
        assert (await engine.stats()).queues[0].due == children
        assert await engine.audit() == ()


FILLED_BY_THE_STORE = """
import subprocess, sys
from pathlib import Path
sys.path.insert(0, sys.argv[2])
from file_engine import file_store, read_ids
from sqlite_store import a_claim, job, success
from holdfast.errors import StorageFull
from holdfast.model.produce import Enqueue
from holdfast.model.work import Exchange

path = Path(sys.argv[1]) / "jobs"
engine = file_store(path)
engine.open_now()
engine.perform_now(Enqueue(groups=(job("live", queue="live"),)))
ended = 0
try:
    while True:
        engine.perform_now(Enqueue(groups=(job(f"{ended}", payload=bytes(2_000)),)))
        leases = engine.perform_now(Exchange(claim=a_claim("w", ended))).leases
        engine.perform_now(Exchange(settlements=tuple(map(success, leases))))
        ended += 1
except StorageFull:
    engine.close_now()
command = [sys.executable, "-m", "holdfast", "file", "compact", "--drop-ended", "--yes", str(path)]
subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
engine.open_now()
engine.perform_now(Enqueue(groups=(job("after"),)))
engine.close_now()
print(ended > 100, *sorted(read_ids(path)))
"""


def test_the_command_for_a_store_that_fills_the_disk_works_on_a_real_disk(tmp_path: Path) -> None:
    assert play_on_tmpfs(tmp_path, FILLED_BY_THE_STORE).split() == ["True", "after", "live"]


# --- A copy of the folder while processes write ---


PRODUCER = """
import sys
from holdfast.engines import open_engine
from holdfast.model.produce import Enqueue, Group, NewJob
from holdfast.model.work import Exchange
sys.path.insert(0, sys.argv[3])
from sqlite_store import a_claim, success

engine = open_engine(sys.argv[1], segment_bytes=65536)
engine.open_now()
number = 0
while True:
    names = [f"{sys.argv[2]}-{number}-{more}" for more in range(20)]
    jobs = [NewJob(queue="q", id=name, task="t", payload=b"x" * 300) for name in names]
    engine.perform_now(Enqueue(groups=(Group(tuple(jobs)),)))
    leases = engine.perform_now(Exchange(claim=a_claim(sys.argv[2], number, limit=10))).leases
    engine.perform_now(Exchange(settlements=tuple(map(success, leases))))
    print(*names, flush=True)
    number += 1
"""
"""Writes, and begins a new segment and a snapshot again and again."""


@contextmanager
def load_on(path: Path, count: int = 2) -> Iterator[list["subprocess.Popen[str]"]]:
    support = str(Path(__file__).parents[1] / "support")
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", PRODUCER, f"file://{path}", f"p{number}", support], stdout=subprocess.PIPE, text=True
        )
        for number in range(count)
    ]
    try:
        yield processes
    finally:
        for process in processes:
            process.kill()
            process.communicate()


def acknowledged_before(processes: list["subprocess.Popen[str]"], lines: int) -> set[str]:
    """What the processes have printed first: this is acknowledged by now."""
    names: set[str] = set()
    for process in processes:
        assert process.stdout is not None
        for _ in range(lines):
            names.update(process.stdout.readline().split())
    return names


def test_the_backup_command_of_the_guide_copies_all_that_is_acknowledged_while_processes_write(tmp_path: Path) -> None:
    if shutil.which("flock") is None:
        pytest.skip("this system has no command `flock`")
    page = (Path(__file__).parents[2] / "docs" / "guides" / "file.md").read_text(encoding="utf-8")
    (command,) = [line for line in page.splitlines() if " flock " in line and line.startswith("(umask ")]
    locks = [tmp_path / "scanner" / "holdfast" / name for name in ("compaction", "gate")]

    def back_up(name: str) -> None:
        subprocess.run(command.replace("backup", name), shell=True, cwd=tmp_path, check=True)
        assert [stat.S_IMODE(lock.stat().st_mode) for lock in locks] == [0o600, 0o600]

    engine = file_store(tmp_path / "scanner")
    engine.open_now()
    engine.perform_now(Enqueue(groups=(job("first"),)))
    engine.close_now()
    assert not locks[0].exists()  # the first snapshot makes it
    back_up("early")
    assert read_ids(tmp_path / "early") == {"first"}
    with load_on(tmp_path / "scanner") as processes:
        for number in range(3):
            names = acknowledged_before(processes, 10)
            back_up(f"backup-{number}")
            assert names <= read_ids(tmp_path / f"backup-{number}")


def copy_at_any_time(tmp_path: Path, copies: int) -> int:
    """Copy without locks. Each copy opens, with an audit that is in order, or is refused. Answers how many open."""
    opened = 0
    with load_on(tmp_path / "scanner") as processes:
        for number in range(copies):
            acknowledged_before(processes, 5)
            copy = tmp_path / f"copy-{number}"
            try:
                shutil.copytree(tmp_path / "scanner", copy)
            except shutil.Error:
                continue  # a file was removed while it was copied: the command says so
            refusal = refusal_of(copy)
            assert refusal == "" or str(copy) in refusal
            opened += not refusal
    return opened


def refusal_of(path: Path) -> str:
    """Why a store cannot be opened; empty if it can."""
    try:
        read_ids(path)
    except HoldfastError as error:
        return str(error)
    return ""


def test_a_copy_without_the_locks_opens_or_is_refused_clearly(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.CRITICAL)
    copy_at_any_time(tmp_path, 6)


@pytest.mark.chaos
@pytest.mark.parametrize("number", range(10))
def test_many_copies_without_the_locks_open_or_are_refused_clearly(tmp_path: Path, number: int) -> None:
    print(f"{copy_at_any_time(tmp_path, 40)} of 40 copies could be opened")
