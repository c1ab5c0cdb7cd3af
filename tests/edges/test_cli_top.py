"""`holdfast top`: the live view, its rates and latencies, and what it costs the store."""

import asyncio
from typing import Any

import pytest
from command_line import Shell
from eventually import eventually_now
from manual_worker import fail_now, report_in_now, take_now
from terminal import on_terminal

from holdfast import ErrorInfo, events
from holdfast.cli.options import Store
from holdfast.cli.rates import WINDOW_US, Latencies, Rates
from holdfast.cli.target import TargetApp
from holdfast.cli.top import TopReader
from holdfast.model.command import Command
from holdfast.model.instants import SECOND
from holdfast.model.records import WorkerRecord
from holdfast.runtime import SystemRuntime
from holdfast.views import QueueStatus


def queue(name: str, depth: int, ended: int) -> QueueStatus:
    return QueueStatus(
        queue=name,
        paused=False,
        depth=depth,
        due=depth,
        counts={},
        oldest_due_at=None,
        next_due_at=None,
        ready_tasks=(),
        succeeded=ended,
        failed=0,
        cancelled=0,
    )


# --- Rates ---


def test_rates_are_differences_of_counters() -> None:
    rates = Rates()
    rates.add(0, [queue("a", depth=10, ended=100)])
    assert rates.of("a") == (None, None), "one read gives no rate"
    rates.add(2 * SECOND, [queue("a", depth=6, ended=110), queue("b", depth=4, ended=0)])
    assert rates.of("a") == (3.0, 5.0), "six jobs came and ten ended"
    assert rates.of("b") == (2.0, 0.0), "a new queue"
    assert rates.total() == (5.0, 5.0)


def test_a_queue_that_was_removed_and_made_anew_has_no_negative_rate() -> None:
    rates = Rates()
    rates.add(0, [queue("a", depth=0, ended=100)])
    rates.add(SECOND, [queue("a", depth=1, ended=2)])
    assert rates.of("a") == (3.0, 2.0)


def test_rates_forget_what_is_older_than_the_window() -> None:
    rates = Rates()
    for second in range(100):
        rates.add(second * SECOND, [queue("a", depth=0, ended=1_000 if second > 50 else 0)])
    assert rates.of("a") == (0.0, 0.0)
    assert len(rates._reads) <= WINDOW_US // SECOND + 2


def test_latencies_and_errors_come_from_events() -> None:
    latencies = Latencies(SystemRuntime())
    job: dict[str, Any] = {"queue": "q", "job_id": "j", "task": "t"}
    for number in range(100):
        latencies.add(events.Started(at=SECOND, waited=number * 1_000, **job))
        latencies.add(events.Succeeded(at=SECOND, ran=number * 2_000, **job))
    assert latencies.waited(2 * SECOND) == (0.05, 0.095, 100)
    assert latencies.ran(2 * SECOND) == (0.1, 0.19, 100)
    assert latencies.waited(100 * SECOND) == (None, None, 0), "they are older than a minute"
    for number in range(7):
        latencies.add(events.Failed(at=number, error=ErrorInfo("E", "", ""), **job))
    latencies.add(events.Retrying(at=9, **job))  # released: no error
    latencies.add(events.Retrying(at=SECOND, **job))
    assert latencies.ran(2 * SECOND).measured == 100, "what never began has not run for 0 s"
    assert [event.at for event in latencies.errors()] == [6, 5, 4, 3, 2]


# --- The command ---


def test_it_is_printed_once_without_a_terminal(shell: Shell) -> None:
    shell.works.enqueue()
    fail_now(shell.app, shell.works)
    shell.works.using(queue="mails").enqueue()
    report_in_now(shell.app, "w1", "works", queues=("mails",), busy=1)
    answer = shell("top", "--interval", "0.1", "--no-events")
    rows = [line.split() for line in answer.out.splitlines()]
    assert answer.code == 0
    (row,) = (row for row in rows if row[:1] == ["mails"])
    assert row[1:6] == ["1", "·", "·", "·", "·"]
    assert row[-1] == "open"
    assert next(row for row in rows if row[:1] == ["w1"])[1:3] == ["alive", "1/1"]


def test_managers_stand_before_their_workers(shell: Shell) -> None:
    report_in_now(shell.app, "busy", "works", queues=("default",), busy=1)
    manager = WorkerRecord(worker="boss", children=("busy",), min_children=2, max_children=8, interval=10 * SECOND)
    asyncio.run(shell.app.engine.heartbeat(manager))
    rows = [" ".join(line.split()) for line in shell("top", "--interval", "0.1", "--no-events").out.splitlines()]
    first, second = (row for row in rows if row.startswith(("boss", "busy")))
    assert first.startswith("boss alive")
    assert first.endswith("manager of 2 to 8 workers, now 1")
    assert second.startswith("busy alive 1/1")


def test_the_object_has_rates_workers_lanes_and_latencies(shell: Shell) -> None:
    pool = shell.app.pool("ledger", int, lanes=2)
    for key in "aabbb":
        pool.enqueue(1, key=key)
    (found,) = shell("top", "--once", "--json", "--interval", "0.1").objects
    assert set(found) == {"at", "total", "queues", "lanes", "workers", "troubles", "waited", "ran", "errors"}
    assert found["total"] == {"arrived": 0.0, "ended": 0.0}
    assert (found["queues"][0]["queue"], found["queues"][0]["depth"], found["queues"][0]["arrived"]) == ("ledger", 5, 0)
    assert sum(lane["depth"] for lane in found["lanes"]) == 5
    assert found["lanes"] == sorted(found["lanes"], key=lambda lane: lane["depth"], reverse=True)
    assert found["waited"] == {"p50": None, "p95": None, "measured": 0}


def test_it_is_live_on_a_terminal_and_leaves_it_as_it_was(shell: Shell) -> None:
    with on_terminal("top", "--interval", "0.1", "--url", shell.url, cwd=shell.path.parent) as terminal:
        terminal.wait_for("There is no queue yet")
        wanted = {kind.__name__ for kind in Latencies.KINDS}
        eventually_now(lambda: shell.app.engine.feed_kinds == wanted, "a listener")
        shell.gives_up.using(id="bad").enqueue("no stock")
        seen = terminal.wait_for("default")
        shell.work()
        terminal.wait_for("GiveUp: no stock", after=seen)
        terminal.wait_for("run p50", after=seen)
        terminal.type("\x03")
        assert terminal.end() == 130
    assert "\x1b[?1049h" in terminal.raw, "it uses the alternate screen"
    assert terminal.raw.rindex("\x1b[?1049l") > terminal.raw.rindex("\x1b[?1049h"), "and leaves it"
    assert terminal.raw.rindex("\x1b[?25h") > terminal.raw.rindex("\x1b[?25l"), "the cursor is shown again"
    assert "Traceback" not in terminal.text


# --- What it costs ---


def test_a_refresh_is_a_few_calls_however_many_queues_there_are(shell: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    for number in range(30):
        shell.works.using(queue=f"q{number}").enqueue()
        shell.app.pool(f"pool{number}", int, lanes=4).enqueue(1)
    take_now(shell.app, shell.works, queue="q0")
    commands: list[str] = []
    engine: Any = shell.app.engine
    perform = engine.perform

    async def count(command: Command[Any]) -> Any:
        commands.append(type(command).__name__)
        return await perform(command)

    monkeypatch.setattr(engine, "perform", count)
    reader = TopReader(Store(TargetApp(shell.app), False), Latencies(shell.app.runtime))
    reader.read()
    assert commands == ["Stats", "Workers", "Workers", "Pools", *["Lanes", "Get"] * 3]
    commands.clear()
    reader.read()
    assert commands == ["Stats", "Workers", "Workers"], "lanes are read every five seconds"
