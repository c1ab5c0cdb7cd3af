"""The file engine itself: batches, interrupts, class fast, another boot, snapshots, processes that fall behind."""

import errno
import os
from collections.abc import Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from eventually import eventually
from file_engines import file_store, runner_of
from intercepted_files import InterceptedFiles
from interrupts import interrupt_at
from opened_engine import opened_engine
from sqlite_store import a_claim, job, success

from holdfast.engine import Engine
from holdfast.engines.file.engine import FileEngine, path_of
from holdfast.engines.file.journal import Journal
from holdfast.engines.file.settings import LEAST_SEGMENT_BYTES
from holdfast.engines.ledger.ledger import RULES
from holdfast.errors import ConfigError, EngineUnavailable, OutcomeUnknown, StorageFull, Unsupported
from holdfast.files import Files
from holdfast.model.job import Given, JobKey
from holdfast.model.observe import Audit, Get, Stats
from holdfast.model.operate import Pause, Resume
from holdfast.model.produce import Enqueue, Group, NewJob
from holdfast.model.states import JobState
from holdfast.model.work import Renewal, RenewStatus
from holdfast.runtime import SystemRuntime

QUEUE = "q"


def enqueue(job_id: str) -> Enqueue:
    return Enqueue(groups=(job(job_id),))


@pytest.fixture
def engine(tmp_path: Path) -> Iterator[FileEngine]:
    opened = file_store(tmp_path / "jobs", durability="none")
    opened.open_now()
    yield opened
    opened.close_now()


@pytest.fixture
def other(tmp_path: Path) -> Iterator[FileEngine]:
    """Stands for another process. It does not wait long for the gate."""
    opened = file_store(tmp_path / "jobs", durability="none", lock_timeout=1.0)
    opened.open_now()
    yield opened
    opened.close_now()


def stored(engine: FileEngine, job_id: str) -> bool:
    return engine.perform_now(Get(jobs=(JobKey(QUEUE, job_id),))).jobs[0] is not None


# --- Addresses ---


def test_the_address_of_a_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert path_of("file:jobs") == f"{tmp_path}/jobs"
    assert path_of("file:///var/lib/jobs") == "/var/lib/jobs"
    assert path_of("file:///var/lib/my%20jobs") == "/var/lib/my jobs"
    for address in ("file://host/jobs", "file:", "file:///jobs?mode=1"):
        with pytest.raises(ConfigError):
            path_of(address)


def test_a_class_that_does_not_exist_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="durability"):
        file_store(tmp_path / "jobs", durability="quick")


async def test_a_transaction_of_the_user_is_refused(engine: FileEngine) -> None:
    with pytest.raises(Unsupported):
        await engine.in_transaction(enqueue("a"), object())


# --- Batches ---


def test_a_command_that_raises_fails_alone(engine: FileEngine, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail_late(step: Any, command: Pause) -> None:
        step.queue(command.queue)
        raise RuntimeError("a defect in a rule")

    rules: dict[Any, Any] = RULES
    monkeypatch.setitem(rules, Pause, fail_late)
    results = runner_of(engine).run([enqueue("a"), Pause(queue="new"), enqueue("b")])
    assert [str(result.error) for result in results] == ["None", "a defect in a rule", "None"]
    assert [queue.queue for queue in engine.perform_now(Stats()).queues] == [QUEUE]
    assert engine.perform_now(Audit()).problems == ()


def test_an_enqueue_that_is_interrupted_anywhere_leaves_one_state_for_all_processes(
    engine: FileEngine, other: FileEngine
) -> None:
    """The job is there or not; the gate is free, and the store can be used."""
    outcomes = set()
    number = 0
    while interrupt_at(number, partial(engine.perform_now, enqueue(f"{number}"))):
        other.perform_now(enqueue(f"other-{number}"))
        outcomes.add(stored(other, f"{number}"))
        engine.perform_now(Resume(queue=QUEUE))  # behind the recovery, in the engine's thread; then that one is idle
        assert stored(engine, f"{number}") == stored(other, f"{number}")
        number += 1
    assert number > 100
    assert outcomes == {True, False}
    assert engine.perform_now(Stats()).queues == other.perform_now(Stats()).queues
    assert engine.perform_now(Audit()).problems == ()


def test_a_read_that_is_interrupted_anywhere_skips_no_change(engine: FileEngine, other: FileEngine) -> None:
    number = 0
    other.perform_now(enqueue("0"))
    while interrupt_at(number, partial(stored, engine, f"{number}")):
        assert stored(engine, f"{number}")
        number += 1
        other.perform_now(enqueue(f"{number}"))
    assert engine.perform_now(Stats()).queues == other.perform_now(Stats()).queues


async def test_a_store_can_be_opened_and_read_while_another_process_has_the_gate(tmp_path: Path) -> None:
    async with opened_engine(file_store(tmp_path / "jobs")) as engine:
        await engine.enqueue(job("a"))
    gate = SystemRuntime().fs.lock(tmp_path / "jobs" / "holdfast" / "gate")
    assert gate is not None
    with gate:
        async with opened_engine(file_store(tmp_path / "jobs", lock_timeout=0.1)) as engine:
            assert (await engine.stats(QUEUE)).queues[0].due == 1
            with pytest.raises(EngineUnavailable, match="locked"):
                await engine.enqueue(job("b"))


# --- Syncs ---


class SyncCounter(SystemRuntime):
    """Counts the syncs of journals."""

    def __init__(self) -> None:
        super().__init__()
        self.syncs = 0

    def count_in(self, engine: FileEngine) -> None:
        file: Any = runner_of(engine).journal.file
        sync = file.sync

        def counted() -> None:
            self.syncs += 1
            sync()

        file.sync = counted


async def test_class_durable_syncs_before_it_answers(tmp_path: Path) -> None:
    runtime = SyncCounter()
    async with opened_engine(file_store(tmp_path / "jobs", runtime=runtime)) as engine:
        runtime.count_in(engine)
        for number in range(3):
            await engine.enqueue(job(f"{number}"))
            assert runtime.syncs == number + 1
        await engine.stats()
        assert runtime.syncs == 3  # a read of what is synced


async def test_what_another_process_has_synced_is_not_synced_again(tmp_path: Path) -> None:
    runtime = SyncCounter()
    async with (
        opened_engine(file_store(tmp_path / "jobs", runtime=runtime)) as reader,
        opened_engine(file_store(tmp_path / "jobs")) as writer,
        opened_engine(file_store(tmp_path / "jobs", durability="none")) as careless,
    ):
        runtime.count_in(reader)
        await writer.enqueue(job("a"))
        assert (await reader.get(JobKey(QUEUE, "a"))).jobs[0] is not None
        assert runtime.syncs == 0
        await careless.enqueue(job("b"))
        assert (await reader.get(JobKey(QUEUE, "b"))).jobs[0] is not None
        assert runtime.syncs == 1  # an answer never shows what a power failure could take back


async def test_renewals_do_not_wait_for_the_disk(tmp_path: Path) -> None:
    runtime = SyncCounter()
    async with opened_engine(file_store(tmp_path / "jobs", runtime=runtime)) as engine:
        await engine.enqueue(job("a"))
        (lease,) = (await engine.claim(a_claim("w"))).leases
        runtime.count_in(engine)
        connection = engine.renewal_connection()
        (renewed,) = connection.renew([Renewal(queue=QUEUE, id="a", token=lease.token)]).jobs
        assert renewed.status is RenewStatus.HELD
        assert runtime.syncs == 0
        await engine.settle(success(lease))
        assert runtime.syncs == 1


async def test_class_fast_syncs_after_an_interval(tmp_path: Path) -> None:
    runtime = SyncCounter()
    engine = file_store(tmp_path / "jobs", runtime=runtime, durability="fast", sync_interval=0.01)
    async with opened_engine(engine):
        runtime.count_in(engine)
        await engine.enqueue(job("a"))
        await eventually(lambda: runtime.syncs, "a sync")


@pytest.mark.parametrize("durability", ["durable", "fast", "none"])
async def test_a_damaged_byte_in_a_store_that_was_closed_costs_one_job(tmp_path: Path, durability: str) -> None:
    """In every class: what is above the last sync would be taken for the torn end of a journal."""
    async with opened_engine(file_store(tmp_path / "jobs", durability=durability)) as engine:
        for number in range(20):
            await engine.enqueue(job(f"{number}", payload=f"payload-{number}".encode()))
    (segment,) = (tmp_path / "jobs" / "holdfast").glob("*.journal")
    segment.write_bytes(segment.read_bytes().replace(b"payload-5", b"payload!5"))
    async with opened_engine(file_store(tmp_path / "jobs", durability=durability)) as engine:
        assert (await engine.stats()).queues[0].depth == 19


# --- Boots ---


class HostOfBoot(SystemRuntime):
    def __init__(self, boot_id: str) -> None:
        super().__init__()
        self._boot_id = boot_id


# TM2
async def test_after_a_restart_of_the_host_every_lease_has_expired(tmp_path: Path) -> None:
    async with opened_engine(file_store(tmp_path / "jobs", runtime=HostOfBoot("first"))) as engine:
        await engine.enqueue(job("a"))
        (lease,) = (await engine.claim(a_claim("w"))).leases
    async with opened_engine(file_store(tmp_path / "jobs", runtime=HostOfBoot("first"))) as engine:
        assert (await engine.expired("reaper")).leases == ()
    async with opened_engine(file_store(tmp_path / "jobs", runtime=HostOfBoot("second"))) as engine:
        (expired,) = (await engine.expired("reaper")).leases
        assert expired.token == lease.token
        # Its owner lives no more. If it does, it may still renew: nothing has been reaped.
        (renewed,) = (await engine.renew(Renewal(queue=QUEUE, id="a", token=lease.token))).jobs
        assert renewed.status is RenewStatus.HELD
    async with opened_engine(file_store(tmp_path / "jobs", runtime=HostOfBoot("second"))) as engine:
        assert (await engine.expired("reaper")).leases == ()


async def test_after_a_restart_of_the_host_no_process_reads_the_store_while_the_others_wait(tmp_path: Path) -> None:
    """Only the end of the leases needs the gate."""
    async with opened_engine(file_store(tmp_path / "jobs", runtime=HostOfBoot("first"))) as engine:
        await engine.enqueue(job("a"), job("b"))
        leases = (await engine.claim(a_claim("w"))).leases
    host, gate_is_free = HostOfBoot("second"), []
    host.fs = disk = InterceptedFiles(Files(), tmp_path)

    def look_at_gate(path: str) -> None:
        if path.endswith(".journal"):
            gate = Files().lock(tmp_path / "jobs" / "holdfast" / "gate")
            gate_is_free.append(gate is not None)
            if gate is not None:
                gate.close()

    disk.before_open = look_at_gate
    async with opened_engine(file_store(tmp_path / "jobs", runtime=host)) as engine:
        assert set(gate_is_free) == {True}
        assert {one.token for one in (await engine.expired("reaper")).leases} == {lease.token for lease in leases}


async def test_a_store_of_an_earlier_boot_can_be_opened_on_a_full_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with opened_engine(file_store(tmp_path / "jobs", runtime=HostOfBoot("first"))) as engine:
        await engine.enqueue(job("a"))
        (lease,) = (await engine.claim(a_claim("w"))).leases
    reserve = tmp_path / "jobs" / "holdfast" / "reserve"
    append = Journal.append

    def append_if_there_is_space(journal: Journal, *args: Any, **options: Any) -> None:
        if reserve.stat().st_size:
            raise StorageFull("no space", engine="file")
        append(journal, *args, **options)

    monkeypatch.setattr(Journal, "append", append_if_there_is_space)
    async with opened_engine(file_store(tmp_path / "jobs", runtime=HostOfBoot("second"))) as engine:
        (expired,) = (await engine.expired("reaper")).leases
        assert expired.token == lease.token
        assert await engine.audit() == ()


# --- Snapshots ---


def small(tmp_path: Path, **options: Any) -> FileEngine:
    return file_store(tmp_path / "jobs", segment_bytes=LEAST_SEGMENT_BYTES, durability="none", **options)


async def turn_over(engine: Engine, jobs: int, *, payload: bytes = bytes(2_000)) -> None:
    """Let jobs come and go without a trace."""
    gone = Given(retention=0, result_ttl=0)
    for number in range(jobs):
        new = NewJob(queue=QUEUE, id=f"gone-{number}", task="t", payload=payload, given=gone, priority=1)
        await engine.enqueue(Group((new,)))
        (lease,) = (await engine.claim(a_claim("w", number, limit=1))).leases
        await engine.settle(success(lease))


def files(tmp_path: Path, kind: str) -> list[str]:
    return sorted(path.name for path in (tmp_path / "jobs" / "holdfast").glob(f"*.{kind}"))


def used_bytes(tmp_path: Path) -> int:
    folder = tmp_path / "jobs" / "holdfast"
    return sum(path.stat().st_size for kind in ("journal", "snapshot") for path in folder.glob(f"*.{kind}"))


async def test_the_journal_is_replaced_by_snapshots_while_it_is_used(tmp_path: Path) -> None:
    async with opened_engine(small(tmp_path)) as engine:
        await engine.enqueue(Group(tuple(NewJob(queue=QUEUE, id=f"{n}", task="other") for n in range(50))))
        await turn_over(engine, 300)
        before = (await engine.stats()).queues
    (snapshot,) = files(tmp_path, "snapshot")
    assert int(snapshot.partition(".")[0], 16) > 5
    assert used_bytes(tmp_path) < 5 * LEAST_SEGMENT_BYTES
    async with opened_engine(small(tmp_path)) as engine:
        assert (await engine.stats()).queues == before
        assert await engine.audit() == ()


async def test_a_process_that_was_idle_meanwhile_loads_the_snapshot(tmp_path: Path) -> None:
    async with opened_engine(small(tmp_path)) as reader, opened_engine(small(tmp_path)) as writer:
        async with opened_engine(small(tmp_path)) as busy:
            await turn_over(busy, 300)
            await busy.enqueue(job("kept"))
        segments, snapshots = files(tmp_path, "journal"), files(tmp_path, "snapshot")
        assert segments[0].partition(".")[0] == snapshots[0].partition(".")[0] != f"{1:016x}"
        assert (await reader.get(JobKey(QUEUE, "kept"))).jobs[0] is not None
        (lease,) = (await writer.claim(a_claim("w"))).leases
        assert lease.id == "kept"
        assert (await reader.get(JobKey(QUEUE, "kept"))).jobs[0].state is JobState.RUNNING  # type: ignore[union-attr]
        assert await writer.audit() == ()


async def test_a_journal_that_ended_processes_have_left_is_compacted_at_the_next_opening(tmp_path: Path) -> None:
    async with opened_engine(file_store(tmp_path / "jobs", durability="none")) as engine:
        await turn_over(engine, 150)  # one long segment
    assert files(tmp_path, "snapshot") == []
    async with opened_engine(small(tmp_path)) as engine:
        await eventually(lambda: len(files(tmp_path, "journal")) == 1 and files(tmp_path, "snapshot"), "a snapshot")
        assert (await engine.stats(QUEUE)).queues[0].totals.succeeded == 150
    assert used_bytes(tmp_path) < LEAST_SEGMENT_BYTES


async def test_only_one_process_writes_a_snapshot(tmp_path: Path) -> None:
    async with opened_engine(small(tmp_path)) as engine:
        lock = SystemRuntime().fs.lock(tmp_path / "jobs" / "holdfast" / "compaction")
        assert lock is not None
        await turn_over(engine, 150)
        assert files(tmp_path, "snapshot") == []
        assert len(files(tmp_path, "journal")) > 3
        lock.close()
        await turn_over(engine, 150)
    assert len(files(tmp_path, "snapshot")) == 1


def test_a_process_without_free_descriptors_stops_no_other(
    tmp_path: Path, other: FileEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = file_store(tmp_path / "jobs", segment_bytes=LEAST_SEGMENT_BYTES)
    engine.open_now()
    real_open, refused = os.open, []

    def open_file(path: Any, flags: int, *rest: Any, **options: Any) -> int:
        if flags & os.O_DIRECTORY:  # a folder is opened to be synced
            refused.append(path)
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE), path)
        return real_open(path, flags, *rest, **options)

    try:
        engine.perform_now(enqueue("first"))
        with monkeypatch.context() as patch:
            patch.setattr(os, "open", open_file)
            for number in range(3):
                with suppress(EngineUnavailable, OutcomeUnknown):
                    engine.perform_now(Enqueue(groups=(job(f"{number}", payload=bytes(2 * LEAST_SEGMENT_BYTES)),)))
        assert refused
        other.perform_now(enqueue("of another process"))
        engine.perform_now(enqueue("last"))
        assert stored(engine, "of another process")
        assert stored(other, "last")
    finally:
        engine.close_now()


def test_a_batch_stands_if_no_thread_can_be_started_for_the_snapshot(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = small(tmp_path)
    engine.open_now()

    def start(*_: Any, **__: Any) -> Any:
        raise RuntimeError("can't start new thread")

    try:
        with monkeypatch.context() as patch:
            patch.setattr(engine._runtime, "thread", start)
            engine.perform_now(Enqueue(groups=(job("a", payload=bytes(2 * LEAST_SEGMENT_BYTES)),)))
        lock = SystemRuntime().fs.lock(tmp_path / "jobs" / "holdfast" / "compaction")
        assert lock is not None
        lock.close()
        assert stored(engine, "a")
    finally:
        engine.close_now()


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # an interrupt in a callback of weakref
def test_a_rotation_that_is_interrupted_anywhere_leaves_the_compaction_to_others(tmp_path: Path) -> None:
    """If the lock stayed with this process, the journal would grow without limit."""
    engine = small(tmp_path)
    engine.open_now()
    try:
        runner = runner_of(engine)
        engine.perform_now(enqueue("a"))
        runner.journal.segment_bytes = 1
        number = 0
        while interrupt_at(number, runner._compaction.run_if_due):
            if runner._compaction._thread is not None:
                runner._compaction._thread.join()
            lock = SystemRuntime().fs.lock(tmp_path / "jobs" / "holdfast" / "compaction")
            assert lock is not None, f"interrupted at {number}"
            lock.close()
            runner._must_load = True
            assert stored(engine, "a")
            number += 1
        assert number > 100
    finally:
        engine.close_now()


def test_processes_whose_snapshots_fail_do_not_begin_a_segment_with_every_write(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each would take the compaction over from the other one, again and again."""

    def write_snapshot(*_: Any, **__: Any) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(Journal, "write_snapshot", write_snapshot)
    engines = [small(tmp_path), small(tmp_path)]
    for engine in engines:
        engine.open_now()
    try:
        for number in range(4):
            engines[0].perform_now(Enqueue(groups=(job(f"{number}", payload=bytes(2 * LEAST_SEGMENT_BYTES)),)))
        before = len(files(tmp_path, "journal"))
        for number in range(20):
            for engine in engines:
                engine.perform_now(Resume(queue=QUEUE) if number % 2 else Pause(queue=QUEUE))
                thread = runner_of(engine)._compaction._thread
                if thread is not None:
                    thread.join()
                engine.perform_now(enqueue(f"{number}-{id(engine)}"))
        assert len(files(tmp_path, "journal")) <= before + 2
    finally:
        for engine in engines:
            engine.close_now()


def test_no_process_begins_a_segment_while_the_reserve_of_another_is_in_use(tmp_path: Path) -> None:
    engine = small(tmp_path)
    engine.open_now()
    try:
        engine.perform_now(enqueue("a"))
        os.truncate(tmp_path / "jobs" / "holdfast" / "reserve", 0)
        runner_of(engine).journal.segment_bytes = 1
        engine.perform_now(Pause(queue=QUEUE))
        assert len(files(tmp_path, "journal")) == 1
        assert files(tmp_path, "snapshot") == []
    finally:
        engine.close_now()


def test_a_failed_sync_in_the_background_is_logged_once(engine: FileEngine, caplog: pytest.LogCaptureFixture) -> None:
    engine.perform_now(enqueue("a"))
    runner = runner_of(engine)
    runner.journal.marks.set_suspect(True)
    for _ in range(3):
        runner.sync_in_background()
    assert len([record for record in caplog.records if "A sync has failed" in record.getMessage()]) == 1
