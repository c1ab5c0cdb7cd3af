"""A blocking call that the store refuses in the thread of its caller: it is complete, not interrupted."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from file_engines import file_store, runner_of
from sqlite_store import job, store, writer_of

from holdfast.engines.command_thread import CommandResult, CommandThread
from holdfast.engines.file.engine import FileEngine
from holdfast.engines.reserve import SpaceReserve
from holdfast.engines.sqlite.engine import SqliteEngine
from holdfast.engines.topics import EVERY_TOPIC
from holdfast.errors import OutcomeUnknown, StorageFull
from holdfast.model.operate import Pause
from holdfast.model.produce import Enqueue

HostEngines = SqliteEngine | FileEngine


@pytest.fixture(params=["sqlite", "file"])
def engine(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[HostEngines]:
    path = tmp_path / "jobs"
    opened: HostEngines = store(path) if request.param == "sqlite" else file_store(path)
    yield opened
    opened.close_now()


@pytest.fixture
def notified(engine: HostEngines, monkeypatch: pytest.MonkeyPatch) -> set[str]:
    """All topics that the engine notifies. It is open."""
    topics: set[str] = set()
    monkeypatch.setattr(engine, "_notify", topics.update)
    engine.open_now()
    return topics


def wait_for_recovery(engine: HostEngines) -> None:
    """Wait until the thread of the engine has done what the calls before have left to it."""
    engine.perform_now(Pause(queue="q"))


def test_an_enqueue_that_a_full_disk_refuses_wakes_no_worker(
    engine: HostEngines, notified: set[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Woken workers renew their leases, which would use up the reserve that is there to settle their jobs."""
    runner = writer_of(engine) if isinstance(engine, SqliteEngine) else runner_of(engine)
    runner._reserve.release()
    monkeypatch.setattr(SpaceReserve, "grow", lambda *_, **__: False)
    for _ in range(3):
        with pytest.raises(StorageFull):
            engine.perform_now(Enqueue(groups=(job("refused"),)))
    wait_for_recovery(engine)
    assert EVERY_TOPIC not in notified


def test_an_enqueue_whose_outcome_is_unknown_wakes_every_worker(
    engine: HostEngines, notified: set[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It may have been committed without notifications."""
    error = OutcomeUnknown("The sync failed.", verb="sync", engine="test")
    unknown = CommandResult(None, error, frozenset())
    with monkeypatch.context() as failing:
        failing.setattr(CommandThread, "_run", lambda *_: [unknown])
        with pytest.raises(OutcomeUnknown):
            engine.perform_now(Enqueue(groups=(job("a"),)))
    wait_for_recovery(engine)
    assert EVERY_TOPIC in notified
