"""Damaged bytes in a SQLite file: what is met is reported, the audit finds the rest, and the guide's recovery works."""

import random
import re
import shutil
import sqlite3
import subprocess
from contextlib import closing
from pathlib import Path

import pytest
from opened_engine import opened_engine
from sqlite_store import a_claim, job, store, success

from holdfast.engines.sqlite.engine import SqliteEngine
from holdfast.errors import HoldfastError
from holdfast.model.job import JobKey
from holdfast.model.produce import Group, NewJob
from holdfast.model.states import JobState
from holdfast.model.work import SettleStatus

JOBS = 300


async def fill(path: Path) -> set[str]:
    names = {f"job-{number}" for number in range(JOBS)}
    async with opened_engine(store(path, durability="none")) as engine:
        await engine.enqueue(*(Group((NewJob(queue="q", id=name, task="t", payload=b"x" * 50),)) for name in names))
    return names


async def drain(engine: SqliteEngine, errors: list[str]) -> set[str]:
    """Claim and settle until there is nothing left, with prunes in between, as a worker does."""
    done: set[str] = set()
    empty = 0
    for number in range(4 * JOBS):
        try:
            leases = (await engine.claim(a_claim("w", number, limit=50))).leases
            if not leases:
                empty += 1
                if empty > 3:
                    break
                await engine.prune()
            settled = (await engine.settle(*map(success, leases))).settled
            done |= {lease.id for lease, status in zip(leases, settled, strict=True) if status is SettleStatus.APPLIED}
            errors += [status for status in settled if status is not SettleStatus.APPLIED]
        except HoldfastError as error:
            errors.append(str(error))
            empty += 1
            if empty > 3:
                break
    return done


def flip_in_ready_index(path: Path, arrival: int, byte: int, bit: int) -> None:
    """Flip a bit of an entry of `job_ready`: the header, the due time in 8 bytes, the arrival."""
    with closing(sqlite3.connect(path)) as db:
        db.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        (due,) = db.execute("SELECT due FROM holdfast_job WHERE arrival = ?", (arrival,)).fetchone()
    data = bytearray(path.read_bytes())
    size = 1 if arrival < 128 else 2
    types = bytes((6, size, size))  # the end of the header: an integer of 8 bytes, and the arrival twice
    entry = types + due.to_bytes(8, "big") + arrival.to_bytes(size, "big")
    assert data.count(entry) == 1
    data[data.index(entry) + len(types) + byte] ^= 1 << bit
    path.write_bytes(data)


async def test_a_flipped_bit_in_a_payload_is_noticed_and_the_job_does_not_run(tmp_path: Path) -> None:
    path = tmp_path / "x.db"
    async with opened_engine(store(path)) as engine:
        await engine.enqueue(job("a", payload=b"pay 100"), job("b", payload=b"pay 200"))
        with closing(sqlite3.connect(path)) as db, db:
            (body,) = db.execute("SELECT body FROM holdfast_job WHERE id = 'a'").fetchone()
            db.execute("UPDATE holdfast_job SET body = ? WHERE id = 'a'", (body.replace(b"pay 100", b"pay 900"),))
        assert [lease.id for lease in (await engine.claim(a_claim("w"))).leases] == ["b"]
        record = (await engine.get(JobKey("q", "a"))).jobs[0]
        assert record is not None
        assert (record.state, record.reason) == (JobState.FAILED, "undecodable")
        assert await engine.audit() == ()


async def test_a_row_that_has_lost_its_record_is_set_aside_and_the_others_run(tmp_path: Path) -> None:
    path = tmp_path / "x.db"
    async with opened_engine(store(path)) as engine:
        await engine.enqueue(job("a"), job("b"))
    change = "UPDATE sqlite_schema SET sql = replace(sql, ?, ?) WHERE name = 'holdfast_job'"
    for before, after in (("body BLOB NOT NULL", "body BLOB"), ("body BLOB", "body BLOB NOT NULL")):
        with closing(sqlite3.connect(path)) as db, db:
            db.execute("PRAGMA writable_schema = ON")
            db.execute(change, (before, after))
        if after == "body BLOB":
            with closing(sqlite3.connect(path)) as db, db:
                db.execute("UPDATE holdfast_job SET body = NULL WHERE id = 'a'")
    async with opened_engine(store(path)) as engine:
        assert [lease.id for lease in (await engine.claim(a_claim("w"))).leases] == ["b"]
        record = (await engine.get(JobKey("q", "a"))).jobs[0]
        assert record is not None
        assert (record.state, record.reason) == (JobState.FAILED, "undecodable")
        assert await engine.audit() == ()


@pytest.mark.parametrize(("byte", "bit"), [(2, 4), (7, 1), (-3, 2), (-4, 2)])
async def test_jobs_behind_a_damaged_entry_of_the_ready_index_run_and_the_damage_is_reported(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, byte: int, bit: int
) -> None:
    path = tmp_path / "x.db"
    names = await fill(path)
    flip_in_ready_index(path, JOBS // 3, byte, bit)
    errors: list[str] = []
    async with opened_engine(store(path, durability="none")) as engine:
        done = await drain(engine, errors)
        assert (done, errors) == (names, [])
        assert re.search(r"An index of the jobs.* was damaged and was made again", caplog.text)
        assert await engine.audit() == ()


async def test_a_count_under_a_state_that_does_not_exist_is_made_again(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "x.db"
    names = await fill(path)
    with closing(sqlite3.connect(path)) as db, db:
        db.execute("UPDATE holdfast_count SET state = 111")
    errors: list[str] = []
    async with opened_engine(store(path, durability="none")) as engine:
        await engine.prune()
        assert (await engine.stats("q")).queues[0].depth == JOBS
        assert (await drain(engine, errors), errors) == (names, [])
        assert re.search(r"An index of the jobs.* was damaged and was made again", caplog.text)
        assert await engine.audit() == ()


async def test_the_audit_reports_damage_of_every_kind_and_raises_nothing(tmp_path: Path) -> None:
    path = tmp_path / "x.db"
    await fill(path)
    flip_in_ready_index(path, 7, 2, 4)
    with closing(sqlite3.connect(path)) as db, db:
        db.execute("UPDATE holdfast_job SET body = x'93' WHERE arrival = 3")
    async with opened_engine(store(path)) as engine:
        problems = "\n".join(await engine.audit())
        assert "integrity check" in problems
        assert "its record cannot be decoded" in problems


async def play_bit_flips(tmp_path: Path, caplog: pytest.LogCaptureFixture, seeds: range) -> None:
    """Whatever is flipped: every job runs, or an error or a log line says that something is damaged."""
    base = tmp_path / "base.db"
    names = await fill(base)
    sound = base.read_bytes()
    for seed in seeds:
        choose = random.Random(seed)
        path, data = tmp_path / f"{seed}.db", bytearray(sound)
        for _ in range(choose.choice([1, 1, 3])):
            data[choose.randrange(4096, len(data))] ^= 1 << choose.randrange(8)
        path.write_bytes(data)
        caplog.clear()
        errors: list[str] = []
        engine, done = store(path, durability="none"), set[str]()
        try:
            async with opened_engine(engine):
                done = await drain(engine, errors)
        except HoldfastError as error:
            errors.append(str(error))
        assert done == names or errors or caplog.records, f"seed {seed}: {len(names - done)} jobs did not run, silently"
        for file in tmp_path.glob(f"{seed}.db*"):
            file.unlink()


async def test_after_a_few_bit_flips_no_job_is_missing_silently(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    await play_bit_flips(tmp_path, caplog, range(15))


@pytest.mark.chaos
async def test_after_many_bit_flips_no_job_is_missing_silently(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    await play_bit_flips(tmp_path, caplog, range(1_000, 1_400))


async def test_reindex_recovers_a_file_with_damaged_indexes(tmp_path: Path) -> None:
    """docs/guides/sqlite.md, step 3"""
    path = tmp_path / "x.db"
    names = await fill(path)
    flip_in_ready_index(path, 50, 2, 4)
    with closing(sqlite3.connect(path)) as db:
        assert db.execute("PRAGMA integrity_check").fetchone() != ("ok",)
        db.execute("REINDEX")
        assert db.execute("PRAGMA integrity_check").fetchone() == ("ok",)
    async with opened_engine(store(path)) as engine:
        assert await engine.audit() == ()
        assert await drain(engine, []) == names


@pytest.mark.skipif(shutil.which("sqlite3") is None, reason="needs the sqlite3 shell")
async def test_an_export_recovers_what_can_be_read_of_a_damaged_file(tmp_path: Path) -> None:
    """docs/guides/sqlite.md, step 4"""
    path, new = tmp_path / "x.db", tmp_path / "new.db"
    names = await fill(path)
    data = bytearray(path.read_bytes())
    start = data.rindex(b"x" * 50) // 4096 * 4096
    data[start : start + 8] = b"\xff" * 8  # the header of a page with some jobs
    path.write_bytes(data)
    export = f"sqlite3 {path} .dump | sed 's/^ROLLBACK; -- due to errors/COMMIT;/' | sqlite3 {new}"
    subprocess.run(export, shell=True, capture_output=True, check=True)
    async with opened_engine(store(new)) as engine:
        done = await drain(engine, [])
        assert len(names) * 0.8 < len(done) < len(names)
        assert done <= names
        await engine.prune()
        assert await engine.audit() == ()
