"""`holdfast why` shows the obstacles of a job, who runs it, or how it ended."""

from pathlib import Path

from command_line import Shell
from host_stores import holder_of_gate
from manual_worker import report_in_now, take_now


def rows(out: str) -> list[str]:
    return [" ".join(line.split()) for line in out.splitlines()]


def test_every_obstacle_is_shown_with_its_holder_and_its_end(shell: Shell) -> None:
    shell.works.using(id="first", lane="left", delay=3600).enqueue()
    shell.works.using(id="second", lane="left").enqueue()
    shell("queues", "pause", "default")
    answer = shell("why", "second")
    shown = rows(answer.out)
    assert answer.code == 0
    assert shown[0] == "job second works in queue default, lane left"
    assert [row for row in shown if row.startswith("obstacle")] == [
        "obstacle 1 of 3 lane",
        "obstacle 2 of 3 queue_paused",
        "obstacle 3 of 3 no_worker",
    ]
    assert "held by job first (scheduled)" in shown
    assert "ends when it is resumed: holdfast queues resume default" in shown
    assert "ends when a worker starts: holdfast worker MODULE" in shown
    assert any(row.startswith("ends") and "(in 1.0 h)" in row for row in rows(shell("why", "first").out))


def test_the_object_has_the_obstacles_with_their_fields(shell: Shell) -> None:
    shell.works.using(id="first", lane="left").enqueue()
    shell.works.using(id="second", lane="left").enqueue()
    report_in_now(shell.app, "test", "works", queues=("default",))
    take_now(shell.app, shell.works)
    (found,) = shell("why", "seco", "--json").objects
    assert (found["id"], found["state"], found["finished_at"]) == ("second", "blocked", None)
    (obstacle,) = found["obstacles"]
    assert set(obstacle) == {"kind", "text", "holders", "ends", "ends_at", "behind"}
    (holder,) = obstacle["holders"]
    assert (holder["kind"], holder["name"], holder["state"], holder["worker"]) == ("job", "first", "running", "test")
    assert holder["lease_until"].endswith("+00:00")
    assert obstacle["text"] in found["text"]


def test_a_running_job_says_who_runs_it_and_until_when_its_lease_is(shell: Shell) -> None:
    shell.works.using(id="one").enqueue()
    take_now(shell.app, shell.works)
    shown = rows(shell("why", "one").out)
    assert "worker test" in shown
    assert "attempt 1" in shown
    assert any(row.startswith("lease until 2") for row in shown)
    assert any(row.startswith("why It has been running on test for ") for row in shown)
    (found,) = shell("why", "one", "--json").objects
    assert (found["obstacles"], found["worker"], found["attempt"]) == ([], "test", 1)


def test_an_ended_job_says_how_it_ended(shell: Shell) -> None:
    shell.gives_up.using(id="one").enqueue("no stock")
    shell.work()
    assert "after 1 attempt (gave up): no stock." in " ".join(shell("why", "one").out.split())


def test_a_process_that_keeps_all_writes_waiting_is_an_obstacle(shell: Shell) -> None:
    shell.works.using(id="one").enqueue()
    with holder_of_gate(Path(f"{shell.path}-gate")) as holder:
        (found,) = shell("why", "one", "--json").objects
    store, worker = found["obstacles"]
    assert (store["kind"], worker["kind"]) == ("store", "no_worker")
    assert str(holder.pid) in store["text"]


def test_an_unknown_job_exits_with_4(shell: Shell) -> None:
    shell.works.enqueue()
    assert shell("why", "unknown").code == 4


def test_text_of_a_stored_name_cannot_control_the_terminal(shell: Shell) -> None:
    shell.works.using(id="red\x1b[31m").enqueue()
    assert "\x1b" not in shell("why", "red\x1b[31m").out
