"""`holdfast jobs show` says what a job waits for; `holdfast status` marks queues whose due jobs no worker takes."""

import pytest
from command_line import Shell
from manual_worker import report_in_now


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
    assert "No live worker takes from queue mails for task works: jobs are due and wait." in shell("status").out
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
    assert "No live worker takes from queue default for task retries: jobs are due and wait." in shell("status").out
    (queue,) = (each for each in shell("status", "--json").objects if each["kind"] == "queue")
    assert (queue["unserved"], queue["unserved_tasks"]) == (True, ["retries"])


@pytest.mark.parametrize("reason", ["served", "paused", "later"])
def test_status_marks_nothing_where_no_job_waits_for_a_worker(shell: Shell, reason: str) -> None:
    if reason == "later":
        shell.works.using(delay=3600).enqueue()
    else:
        shell.works.enqueue()
    if reason == "served":
        report_in_now(shell.app, "w1", "works", queues=("default",))
    if reason == "paused":
        shell("queues", "pause", "default")
    assert status_of(shell, "default") == ("paused" if reason == "paused" else "open")
    assert "jobs are due and wait" not in shell("status").out
