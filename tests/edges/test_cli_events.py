"""`holdfast events`: the events of other processes as lines, and the past of one job."""

import json
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from command_line import Shell
from eventually import eventually_now

from holdfast import ErrorInfo, events
from holdfast.cli.event_text import describe
from holdfast.cli.events import ALL_KINDS, ReceivedEvents
from holdfast.runtime import SystemRuntime

USUAL_KINDS = set(ALL_KINDS) - {"QueueEmpty"}
"""Without `--kind`. A listener for `QueueEmpty` costs each worker a query after every job."""


@contextmanager
def following(shell: Shell, *args: str, kinds: set[str] = USUAL_KINDS) -> Iterator["subprocess.Popen[str]"]:
    """The command in a process of its own, once it listens to these kinds."""
    command = [sys.executable, "-m", "holdfast", "events", "--follow", *args, "--url", shell.url]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        try:
            eventually_now(lambda: process.poll() is not None or shell.app.engine.feed_kinds == kinds, "a listener")
            yield process
        finally:
            process.kill()


def test_events_of_another_process_are_printed_until_ctrl_c(shell: Shell) -> None:
    with following(shell, "--json", "--kind", "started", "--kind", "Failed", kinds={"Started", "Failed"}) as process:
        shell.gives_up.using(id="bad").enqueue("no stock")
        shell.work()
        assert process.stdout is not None
        lines = [json.loads(process.stdout.readline()) for _ in range(2)]
        process.send_signal(signal.SIGINT)
        assert process.wait(30) == 130
        assert process.stderr is not None
        assert process.stderr.read() == "\n", "it ends the line with ^C, and prints nothing else"
    assert [(line["event"], line["job_id"]) for line in lines] == [("Started", "bad"), ("Failed", "bad")]


def test_a_job_is_followed_from_its_past_to_its_end(shell: Shell) -> None:
    shell.works.using(id="other").enqueue()
    shell.works.using(id="one").enqueue()
    with following(shell, "--job", "one") as process:
        shell.work()
        out, err = process.communicate(timeout=60)
    assert (process.returncode, err) == (0, "")
    assert [line.split()[2:4] for line in out.splitlines()] == [
        ["one", "queued"],
        ["one", "started"],
        ["one", "succeeded"],
    ]


def test_the_past_of_a_job_is_printed(shell: Shell) -> None:
    shell.gives_up.using(id="bad").enqueue("no stock")
    shell.work()
    answer = shell("events", "--job", "bad", "--json")
    assert [line["event"] for line in answer.objects] == ["Queued", "Started", "Failed"]
    (line,) = shell("events", "--job", "bad", "--kind", "Failed").out.splitlines()
    assert "GiveUp: no stock" in line


def test_without_follow_or_a_job_it_says_that_events_are_not_stored(shell: Shell) -> None:
    answer = shell("events")
    assert (answer.code, answer.out) == (2, "")
    assert "Events are not stored. Add --follow" in answer.err


def test_events_of_other_queues_are_left_out(shell: Shell) -> None:
    with following(shell, "--queue", "mails", "--json") as process:
        shell.works.enqueue()
        shell.app.control.pause("mails")
        shell.works.using(id="mine", queue="mails").enqueue()
        assert process.stdout is not None
        lines = [json.loads(process.stdout.readline()) for _ in range(2)]
    assert [(line["event"], line["queue"]) for line in lines] == [("QueuePaused", "mails"), ("Queued", "mails")]


def test_a_full_buffer_counts_what_it_loses() -> None:
    buffer = ReceivedEvents(SystemRuntime(), lambda event: True, size=3)
    for number in range(5):
        buffer.add(events.QueuePaused(at=number, queue="q"))
    taken, lost = buffer.take()
    assert ([event.at for event in taken], lost) == ([2, 3, 4], 2)
    assert buffer.take() == ([], 0)


SAMPLES: dict[str, dict[str, Any]] = {
    "Progressed": {"fraction": 0.5},
    "LoopBlocked": {"blocked": 1, "stack": ""},
    "SoftLimit": {"depth": 5, "limit": 4},
    "HistoryLost": {"store": "s"},
    "StoreError": {"store": "s", "error": ErrorInfo("E", "no answer", "")},
    "UnknownTask": {"task": "t", "queue": "q"},
}


@pytest.mark.parametrize("name", list(ALL_KINDS))
def test_every_kind_of_event_has_a_line(name: str) -> None:
    kind = ALL_KINDS[name]
    fields: dict[str, Any] = {"at": 0, **SAMPLES.get(name, {})}
    if issubclass(kind, events.JobEvent):
        fields |= {"queue": "q", "job_id": "j", "task": "t"}
    elif issubclass(kind, events.WorkerEvent):
        fields["worker"] = "w"
    elif issubclass(kind, events.QueueEvent):
        fields["queue"] = "q"
    assert describe(kind(**fields)) is not None
