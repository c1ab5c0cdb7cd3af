"""Several names of one SQLite file: symbolic links share all files beside the database, hard links are refused."""

import asyncio
import os
from contextvars import Context
from pathlib import Path

import pytest
from opened_engine import opened_engine

from holdfast import ConfigError, EngineUnavailable, UsageError
from holdfast.engines import open_engine
from holdfast.model.job import JobKey
from holdfast.model.produce import Group, NewJob

JOB = Group((NewJob(queue="q", id="a", task="t"),))


@pytest.fixture
def link(tmp_path: Path) -> Path:
    """A link in a folder of its own."""
    (tmp_path / "links").mkdir()
    link = tmp_path / "links" / "linked.db"
    link.symlink_to(tmp_path / "jobs.db")
    return link


async def test_a_link_and_its_file_share_the_gate_and_all_other_files(tmp_path: Path, link: Path) -> None:
    by_link = open_engine(f"sqlite:///{link}")
    by_file = open_engine(f"sqlite:///{tmp_path / 'jobs.db'}", busy_timeout=0.1)
    async with opened_engine(by_link), opened_engine(by_file):
        async with by_link.transaction():
            another = asyncio.create_task(by_file.enqueue(JOB), context=Context())
            with pytest.raises(EngineUnavailable, match=r"jobs\.db-gate was locked"):
                await another
        await by_file.enqueue(JOB)
    assert os.listdir(link.parent) == ["linked.db"]
    assert (tmp_path / "jobs.db-reserve").exists()


async def test_a_write_by_a_link_inside_a_transaction_on_the_file_is_refused(tmp_path: Path, link: Path) -> None:
    by_link, by_file = open_engine(f"sqlite:///{link}"), open_engine(f"sqlite:///{tmp_path / 'jobs.db'}")
    async with opened_engine(by_link), opened_engine(by_file), by_file.transaction():
        with pytest.raises(UsageError, match="would wait for itself"):
            await by_link.enqueue(JOB)


async def test_a_file_with_two_hard_links_is_refused(tmp_path: Path) -> None:
    engine = open_engine(f"sqlite:///{tmp_path / 'jobs.db'}")
    async with opened_engine(engine):
        await engine.enqueue(JOB)
    (tmp_path / "other.db").hardlink_to(tmp_path / "jobs.db")
    with pytest.raises(ConfigError, match="has 2 names"):
        await engine.open()
    (tmp_path / "other.db").unlink()
    async with opened_engine(engine):
        assert (await engine.get(JobKey("q", "a"))).jobs[0] is not None
