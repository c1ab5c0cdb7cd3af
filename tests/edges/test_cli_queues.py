"""`holdfast status`, `queues`, `pools`, `workers` and `migrate`."""

import asyncio
from dataclasses import fields
from pathlib import Path

import pytest
from command_line import Run, Shell

from holdfast import InvalidOption
from holdfast.views import LaneStatus, QueueStatus, WorkerStatus


def names(kind: type) -> set[str]:
    return {item.name for item in fields(kind)}


# --- Status ---


def test_status_counts_each_queue_by_state(shell: Shell) -> None:
    shell.works.enqueue()
    shell.works.using(delay=60).enqueue()
    shell.works.using(lane="a").enqueue()
    shell.works.using(lane="a").enqueue()
    lines = shell("status").out.splitlines()
    heading = next(at for at, line in enumerate(lines) if line.startswith("queue"))
    assert lines[heading].split() == [
        *("queue", "ready", "running", "scheduled", "blocked", "retrying", "failed", "oldest", "status")
    ]
    row = lines[heading + 1].split()
    assert row[:7] == ["default", "2", "·", "1", "1", "·", "·"]
    assert row[-2:] == ["no", "worker"]


def test_status_names_the_store_with_its_whole_path_and_its_promise(shell: Shell) -> None:
    line = shell("status").out.splitlines()[0]
    assert line.split()[:3] == ["store", "sqlite", str(shell.path)]
    assert "durable" in line


def test_status_says_how_to_start_a_worker_when_none_is_alive(shell: Shell) -> None:
    assert "No worker is alive. Start one in another terminal:  holdfast worker" in shell("status").out


def test_status_shows_live_workers_and_then_gives_no_hint(shell: Shell) -> None:
    with shell.app.worker(name="ada", concurrency=7):
        output = shell("status").out
    assert "No worker is alive" not in output
    row = next(line for line in output.splitlines() if line.startswith("ada-")).split()
    assert row[1:4] == ["alive", "·", "7"]
    assert row[-1] == "works"


def test_objects_of_a_status_have_the_fields_of_their_classes(shell: Shell) -> None:
    shell.works.enqueue()
    with shell.app.worker(queues=["elsewhere"]):
        store, queue, worker, trouble = shell("status", "--json").objects
    assert store == {
        "kind": "store",
        "engine": "sqlite",
        "place": str(shell.path),
        "durability": "durable",
        "promise": "durable (every commit synced)",
        "blocked_by": "",
    }
    assert (queue.pop("kind"), set(queue)) == ("queue", names(QueueStatus) | {"unserved_tasks", "status"})
    assert (worker.pop("kind"), set(worker)) == ("worker", names(WorkerStatus))
    assert (trouble.pop("kind"), trouble["check"], set(trouble)) == (
        *("trouble", "queues"),
        {"check", "level", "found", "advice"},
    )


# --- Queues ---


def test_queues_are_listed_and_the_lanes_of_one(shell: Shell) -> None:
    assert shell("queues", "list").code == 4
    shell.works.using(queue="mails", lane="left", id="first").enqueue()
    (queue,) = shell("queues", "list", "--json").objects
    assert (queue["queue"], set(queue)) == ("mails", names(QueueStatus))
    assert "mails" in shell("queues", "list").out
    (lane,) = shell("queues", "list", "mails", "--json").objects
    assert (lane["lane"], lane["head"], set(lane)) == ("left", "first", names(LaneStatus))
    assert "first" in shell("queues", "list", "mails").out
    assert shell("queues", "list", "other").code == 4


def test_a_queue_is_paused_and_resumed(shell: Shell) -> None:
    shell.works.enqueue()
    assert shell("queues", "pause", "default").out == "paused  queue default  1 job\n"
    assert shell.app.control.queues()[0].paused
    assert "it was paused before" in shell("queues", "pause", "default").out
    assert shell("queues", "resume", "default", "--json").objects[0]["changed"] is True
    assert not shell.app.control.queues()[0].paused


def test_a_lane_is_paused_by_itself(shell: Shell) -> None:
    for lane in ("left", "right"):
        shell.works.using(lane=lane).enqueue()
    assert shell("queues", "pause", "default", "--lane", "left").code == 0
    assert [lane.paused for lane in shell.app.control.lanes("default")] == [True, False]


def test_clear_says_how_many_and_needs_yes(shell: Shell) -> None:
    for _ in range(3):
        shell.works.enqueue()
    asked = shell("queues", "clear", "default")
    assert (asked.code, "Cancel 3 jobs of queue default." in asked.err) == (2, True)
    assert shell.app.control.stats().depth == 3
    assert shell("queues", "clear", "default", "--yes", "--json").objects == [
        {"queue": "default", "lane": None, "count": 3}
    ]
    assert shell.app.control.stats().depth == 0
    assert shell("queues", "clear", "default", "--yes").code == 4


def test_clear_of_a_lane_leaves_the_others(shell: Shell) -> None:
    for lane in ("left", "right"):
        shell.works.using(lane=lane, id=lane).enqueue()
    assert shell("queues", "clear", "default", "--lane", "left", "--yes").code == 0
    assert shell.app.control.get("left").state == "cancelled"
    assert shell.app.control.get("right").state == "queued"


# --- Unknown names ---


@pytest.mark.parametrize(
    "command",
    [
        ["queues", "pause", "emials"],
        ["queues", "resume", "emials"],
        ["queues", "clear", "emials", "--yes"],
        ["queues", "remove", "emials"],
        ["queues", "list", "emials"],
        ["jobs", "list", "--queue", "emials"],
        ["jobs", "requeue", "--queue", "emials"],
    ],
)
def test_an_unknown_queue_exits_with_4_and_similar_names(shell: Shell, command: list[str]) -> None:
    shell.works.using(queue="emails").enqueue()
    answer = shell(*command)
    assert (answer.code, answer.out) == (4, "")
    assert "There is no queue 'emials'. Did you mean 'emails'?" in answer.err
    assert [queue.queue for queue in shell.app.control.queues()] == ["emails"]


def test_an_unknown_queue_is_paused_before_its_first_job_with_create(shell: Shell) -> None:
    assert "add --create" in shell("queues", "pause", "later").err
    assert shell("queues", "pause", "later", "--create").out == "paused  queue later  0 jobs\n"
    assert shell.app.control.queues()[0].paused


def test_a_queue_that_only_a_live_worker_names_can_be_paused(shell: Shell) -> None:
    with shell.app.worker(queues=["later"]):
        assert shell("queues", "pause", "later").code == 0


def test_a_queue_that_only_a_task_of_the_app_names_can_be_paused(
    tmp_path: Path, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    app = f"from holdfast import App\njobs = App('sqlite:///{tmp_path}/jobs.db')\n"
    task = "@jobs.task(queue='later')\ndef works(): ...\n"
    (tmp_path / "declares_later.py").write_text(app + task, encoding="utf-8")
    monkeypatch.syspath_prepend(str(tmp_path))
    assert run("migrate", "--app", "declares_later").code == 0
    assert run("queues", "pause", "later", "--app", "declares_later").code == 0
    assert run("queues", "pause", "latre", "--app", "declares_later").code == 4


@pytest.mark.parametrize("verb", [["pause"], ["resume"], ["clear", "--yes"]])
def test_an_unknown_lane_exits_with_4_and_similar_names(shell: Shell, verb: list[str]) -> None:
    shell.works.using(lane="alice").enqueue()
    answer = shell("queues", *verb, "default", "--lane", "alcie")
    assert (answer.code, answer.out) == (4, "")
    assert "Queue 'default' has no lane 'alcie'. Did you mean 'alice'?" in answer.err
    assert [lane.lane for lane in shell.app.control.lanes("default")] == ["alice"]


def test_every_lane_of_a_pool_is_known_also_without_jobs(shell: Shell) -> None:
    asyncio.run(shell.app.engine.put_pool("ledger", 4))
    assert shell("queues", "pause", "ledger", "--lane", "3").code == 0
    assert shell("queues", "pause", "ledger", "--lane", "4").code == 4


def test_an_unknown_pool_exits_with_4_and_similar_names(shell: Shell) -> None:
    asyncio.run(shell.app.engine.put_pool("ledger", 4))
    answer = shell("pools", "resize", "legder", "8")
    assert (answer.code, "Did you mean 'ledger'?" in answer.err) == (4, True)
    with pytest.raises(InvalidOption, match="Did you mean 'ledger'"):
        shell.app.control.resize("legder", 8)
    assert [pool.name for pool in shell.app.control.pools()] == ["ledger"]


# --- Remove ---


def test_a_queue_that_was_paused_by_mistake_is_removed(shell: Shell) -> None:
    shell("queues", "pause", "emials", "--create")
    refused = shell("queues", "remove", "emials", "--yes")
    assert (refused.code, "is paused, and the pause would be lost. Resume it first." in refused.err) == (1, True)
    shell("queues", "resume", "emials")
    assert shell("queues", "remove", "emials", "--yes").out == "removed  queue emials\n"
    assert shell("queues", "list").code == 4


def test_a_remove_says_what_is_lost_and_needs_yes(shell: Shell) -> None:
    shell.works.enqueue()
    shell.work()
    shell("jobs", "delete", "--all", "--yes")
    asked = shell("queues", "remove", "default")
    assert (asked.code, asked.out) == (2, "")
    assert "Remove queue default with its counters (1 ended job), its lanes and the size of its pool." in asked.err
    assert [queue.queue for queue in shell.app.control.queues()] == ["default"]


def test_a_queue_with_jobs_is_removed_after_they_are_deleted(shell: Shell) -> None:
    shell.works.enqueue()
    shell.gives_up.enqueue()
    shell.work()
    refused = shell("queues", "remove", "default", "--yes")
    assert (refused.code, "it has 2 jobs, ended ones included." in refused.err) == (1, True)
    assert shell("jobs", "delete", "--queue", "default", "--yes").code == 0
    assert shell("queues", "remove", "default", "--yes", "--json").objects == [{"queue": "default", "removed": True}]


def test_a_queue_is_not_removed_while_a_live_worker_takes_from_it(shell: Shell) -> None:
    shell.app.control.pause("mails")
    shell.app.control.resume("mails")
    with shell.app.worker(queues=["mails"]) as worker:
        refused = shell("queues", "remove", "mails", "--yes")
    assert (refused.code, f"live workers take from it: {worker.name}" in refused.err) == (1, True)
    assert shell("queues", "remove", "mails", "--yes").code == 0


# --- Pools ---


def test_pools_are_listed_and_resized(shell: Shell) -> None:
    assert shell("pools", "list").code == 4
    assert shell("pools", "resize", "ledger", "4").code == 4, "a pool is not made by a resize"
    asyncio.run(shell.app.engine.put_pool("ledger", 8))
    assert shell("pools", "list", "--json").objects == [{"name": "ledger", "lanes": 8, "epoch": 1, "old_live": 0}]
    assert "ledger" in shell("pools", "list").out
    assert shell("pools", "resize", "ledger", "16").out == "resized  pool ledger  16 lanes\n"
    assert shell("pools", "resize", "ledger", "0").code == 2
    assert shell("pools", "list", "--json").objects[0]["lanes"] == 16


@pytest.mark.parametrize(
    ("jobs", "text"), [(1, "1 job of the old size runs first"), (2, "2 jobs of the old size run first")]
)
def test_a_resize_says_which_jobs_run_first(shell: Shell, jobs: int, text: str) -> None:
    ledger = shell.app.pool("ledger", int, lanes=2)

    @ledger.handler
    async def book(cents: int) -> None: ...

    for cents in range(jobs):
        ledger.enqueue(cents)
    assert shell("pools", "resize", "ledger", "4").out == f"resized  pool ledger  4 lanes, {text}\n"


# --- Workers ---


def test_workers_are_listed(shell: Shell) -> None:
    assert shell("workers", "list").code == 4
    with shell.app.worker(name="ada"):
        (worker,) = shell("workers", "list", "--json").objects
        assert set(worker) == names(WorkerStatus)
        assert worker["name"].startswith("ada-")
        assert "alive" in shell("workers", "list").out


def test_a_worker_is_asked_to_stop_by_a_prefix_of_its_name(shell: Shell) -> None:
    with shell.app.worker(name="ada") as ada, shell.app.worker(name="adam"):
        several = shell("workers", "stop", "ada")
        assert (several.code, ada.name in several.err) == (1, True)
        assert shell("workers", "stop", "ada-", "--json").objects == [{"name": ada.name, "stopping": True}]
    assert shell("workers", "stop", "ada").code == 4


# --- Migrate ---


def test_migrate_creates_the_store_and_does_nothing_the_second_time(tmp_path: Path, run: Run) -> None:
    shell = Shell(tmp_path, run)
    first = shell("migrate", "--json")
    assert (first.code, bool(first.objects)) == (0, True)
    assert all(set(step) == {"step"} for step in first.objects)
    again = shell("migrate")
    assert (again.code, again.out) == (0, f"{shell.path} is up to date.\n")
