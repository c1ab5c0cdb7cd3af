"""`holdfast jobs show` says what a job waits for; `holdfast status` shows what keeps queues from going on."""

import re

import pytest
from command_line import Shell
from manual_worker import report_in_now, settle_now, take_now

from holdfast import ErrorInfo
from holdfast.model.findings import LANES
from holdfast.model.instants import SECOND
from holdfast.model.states import JobState, Reason


def waits_for(shell: Shell, job_id: str) -> str:
    """The line of `jobs show`. The object of `--json` has the same text."""
    rows = shell("jobs", "show", job_id).out.splitlines()
    line = next((row for row in rows if row.startswith("waits for")), "").removeprefix("waits for").strip()
    assert shell("jobs", "show", job_id, "--json").objects[0]["waits_for"] == line
    return line


# --- jobs show ---


def test_no_line_in_a_pipe_ends_with_blanks(shell: Shell) -> None:
    shell.works.using(id="one").enqueue()
    for command in (("jobs", "show", "one"), ("jobs", "list"), ("status",)):
        assert [row for row in shell(*command).out.splitlines() if row != row.rstrip()] == []


def test_a_job_without_a_worker_says_that_none_is_alive(shell: Shell) -> None:
    shell.works.using(id="one").enqueue()
    assert waits_for(shell, "one") == f"No live worker on {shell.path}."


def test_a_job_whose_task_no_worker_has_says_so(shell: Shell) -> None:
    shell.works.using(id="one").enqueue()
    report_in_now(shell.app, "w1", "other", queues=("default",))
    assert waits_for(shell, "one") == "1 worker is alive, it does not know task 'works': it knows other."


def test_a_job_of_a_paused_queue_says_that_it_is_paused(shell: Shell) -> None:
    shell.works.using(id="one").enqueue()
    shell("queues", "pause", "default")
    assert waits_for(shell, "one") == f"Queue default is paused. No live worker on {shell.path}."


def test_a_job_behind_the_head_of_its_lane_names_the_head_and_its_state(shell: Shell) -> None:
    shell.works.using(id="first", lane="left", delay=3600).enqueue()
    shell.works.using(id="second", lane="left").enqueue()
    line = waits_for(shell, "second")
    assert line.startswith("It waits for its turn in lane left. Job first is first, and is scheduled: it is due at ")


def test_a_job_that_will_be_retried_says_when(shell: Shell) -> None:
    shell.retries.using(id="again").enqueue()
    shell.work()
    assert "The next one is due at" in waits_for(shell, "again")


def test_a_job_that_has_ended_has_no_such_line(shell: Shell) -> None:
    shell.works.using(id="one").enqueue()
    shell.work()
    assert waits_for(shell, "one") == ""


# --- status ---


def status_of(shell: Shell, queue: str) -> str:
    rows = shell("status").out.splitlines()
    return next(row for row in rows if row.startswith(queue)).rstrip().split("  ")[-1].strip()


def test_status_marks_a_queue_that_no_live_worker_takes_from(shell: Shell) -> None:
    shell.works.using(queue="mails").enqueue()
    report_in_now(shell.app, "w1", "works", queues=("default",))
    assert status_of(shell, "mails") == "no worker"
    assert "No live worker takes from queue mails, and 1 job is due." in shell("status").out
    assert "no worker" in shell("queues", "list").out


def test_status_marks_a_queue_whose_only_worker_is_stopping(shell: Shell) -> None:
    shell.works.enqueue()
    report_in_now(shell.app, "w1", "works", queues=("default",))
    assert status_of(shell, "default") == "open"
    shell.app.control.stop_worker("w1")
    assert status_of(shell, "default") == "no worker"


def test_status_names_the_task_that_no_worker_has(shell: Shell) -> None:
    shell.works.enqueue()
    shell.retries.enqueue()
    report_in_now(shell.app, "w1", "works", queues=("default",))
    assert status_of(shell, "default") == "unknown task"
    text = "Queue default has jobs of which its live workers do not know the task: task retries."
    assert text in shell("status").out
    assert text in shell("top", "--interval", "0.1", "--no-events").out
    (queue,) = (each for each in shell("status", "--json").objects if each["kind"] == "queue")
    assert (queue["status"], queue["unserved_tasks"]) == ("unknown task", ["retries"])


def test_a_queue_without_a_worker_is_marked_before_its_jobs_are_due(shell: Shell) -> None:
    shell.works.using(queue="mails", delay=3600).enqueue()
    report_in_now(shell.app, "w1", "works", queues=("default",))
    assert status_of(shell, "mails") == "no worker"
    text = "No live worker takes from queue mails. 1 job is waiting there; none is due yet."
    assert text in shell("status").out
    (finding,) = (one for one in shell("doctor", "--json").objects if one["found"] == text)
    assert finding["level"] == "warning"


@pytest.mark.parametrize("reason", ["served", "paused"])
def test_status_marks_nothing_where_no_job_waits_for_a_worker(shell: Shell, reason: str) -> None:
    shell.works.enqueue()
    if reason == "served":
        report_in_now(shell.app, "w1", "works", queues=("default",))
    if reason == "paused":
        shell("queues", "pause", "default")
    assert status_of(shell, "default") == ("paused" if reason == "paused" else "open")
    assert "takes from" not in shell("status").out


# --- lanes that wait for a retry ---


def retry_later(shell: Shell) -> None:
    lease = take_now(shell.app, shell.works)
    error = ErrorInfo("builtins.ValueError", "no funds", "")
    settle_now(shell.app, lease, JobState.RETRYING, reason=Reason.ERROR, error=error, delay=600 * SECOND)


def block_lanes(shell: Shell, *lanes: str) -> None:
    """In each lane the first job waits ten minutes for its retry, and one more job waits behind it."""
    for lane in lanes:
        shell.works.using(lane=lane, id=f"head-{lane}").enqueue()
        shell.works.using(lane=lane, id=f"next-{lane}").enqueue()
        retry_later(shell)
    report_in_now(shell.app, "w1", "works", queues=("default",))


def test_lanes_that_wait_for_a_retry_are_counted_with_the_next_time(shell: Shell) -> None:
    block_lanes(shell, "left", "right")
    next_at = shell.app.control.get("head-left").due_at.astimezone().strftime("%H:%M:%S")
    text = f"2 lanes of queue default wait for a retry, next {next_at}"
    assert status_of(shell, "default") == "lanes wait"
    assert text in shell("status").out
    assert text in shell("top", "--interval", "0.1", "--no-events").out
    (finding,) = (one for one in shell("doctor", "--json").objects if one["check"] == LANES.name)
    assert (finding["level"], text in finding["found"]) == ("note", True)
    assert "holdfast jobs trigger head-left" in finding["advice"]


def test_more_lanes_than_are_read_are_not_counted(shell: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("holdfast.operate.overview.MAX_RETRYING_JOBS", 1)
    block_lanes(shell, "left", "right")
    assert "1 or more lanes of queue default wait for a retry" in shell("status").out


def test_a_lane_that_waits_is_found_behind_newer_jobs_that_wait_for_a_retry(
    shell: Shell, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("holdfast.operate.overview.MAX_RETRYING_JOBS", 1)
    block_lanes(shell, "left")
    shell.works.using(id="newer").enqueue()
    retry_later(shell)
    assert status_of(shell, "default") == "lanes wait"
    assert "1 or more lanes of queue default wait for a retry" in shell("status").out


def test_a_lane_is_listed_with_the_state_the_time_and_the_error_of_its_first_job(shell: Shell) -> None:
    block_lanes(shell, "left")
    (row,) = (line for line in shell("queues", "list", "default").out.splitlines() if line.startswith("left"))
    assert re.search(r"head-left +retrying +in \S+ min  ValueError: no funds", row)
    (lane,) = shell("queues", "list", "default", "--json").objects
    assert (lane["head_state"], lane["head_error"]["message"]) == ("retrying", "no funds")


def test_why_names_the_two_ways_to_go_on_before_the_retry(shell: Shell) -> None:
    block_lanes(shell, "left")
    output = shell("why", "next-left").out
    assert "`holdfast jobs trigger head-left` runs it" in output
    assert "`holdfast jobs cancel head-left` leaves it out" in output


# --- lost workers ---


def test_a_worker_that_was_lost_is_named_while_its_job_waits(shell: Shell) -> None:
    shell.works.using(id="one").enqueue()
    settle_now(shell.app, take_now(shell.app, shell.works), JobState.RETRYING, reason=Reason.WORKER_LOST, loss=True)
    report_in_now(shell.app, "w1", "works", queues=("default",))
    assert re.search(r"1 worker lost \d+ s ago, with jobs: test\.", shell("status").out)
    assert re.search(r"worker lost, due now$", shell("jobs", "list").out, re.MULTILINE)


def test_a_job_whose_living_worker_lost_its_lease_names_no_lost_worker(shell: Shell) -> None:
    shell.works.enqueue()
    settle_now(shell.app, take_now(shell.app, shell.works), JobState.RETRYING, reason=Reason.WORKER_LOST, loss=True)
    report_in_now(shell.app, "test", "works", queues=("default",))
    assert "worker lost" not in shell("status").out
