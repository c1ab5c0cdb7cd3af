"""`holdfast jobs` and `holdfast dead`: list, show, report, and the verbs."""

import asyncio
import json
import re
import signal
from dataclasses import fields
from typing import Any

import pytest
from command_line import Shell

from holdfast import Job, Report
from holdfast.engines import open_engine
from holdfast.model.states import JobState
from holdfast.process_death import died_info, worker_died_info
from holdfast.testing.contract.builders import WORKER, claim, died, reap

HOSTILE = "\x1b[2J\x1b]0;owned\x07 \u202e evil"


# --- List, show, report ---


def test_a_list_shows_id_task_queue_and_state(shell: Shell) -> None:
    shell.works.using(id="order-42", queue="mails").enqueue()
    answer = shell("jobs", "list")
    assert answer.code == 0
    heading, row = answer.out.splitlines()
    assert heading.split() == ["id", "task", "queue", "state", "attempt", "age", "note"]
    assert row.split()[:4] == ["order-42", "works", "mails", "queued"]


def test_an_object_of_a_list_has_the_fields_of_a_job_and_no_arguments(shell: Shell) -> None:
    shell.works.using(id="one").enqueue("secret")
    (one,) = shell("jobs", "list", "--json").objects
    assert set(one) == {item.name for item in fields(Job) if not item.name.startswith("_")}
    assert "secret" not in json.dumps(one)


@pytest.mark.parametrize(
    ("options", "found"),
    [
        (["--state", "failed"], ["dead"]),
        (["--state", "scheduled"], ["late"]),
        (["--task", "gives_up"], ["dead"]),
        (["--queue", "mails"], ["mail"]),
        (["--lane", "left"], ["laned"]),
        (["--since", "1h"], ["dead", "laned", "late", "mail"]),
        (["--all"], ["dead", "laned", "late", "mail"]),
    ],
)
def test_a_filter_finds_what_it_names(shell: Shell, options: list[str], found: list[str]) -> None:
    shell.gives_up.using(id="dead").enqueue()
    shell.work()
    shell.works.using(id="late", delay=60).enqueue()
    shell.works.using(id="mail", queue="mails").enqueue()
    shell.works.using(id="laned", lane="left").enqueue()
    assert sorted(one["id"] for one in shell("jobs", "list", "--json", *options).objects) == found


@pytest.mark.parametrize(
    ("options", "found"),
    [
        (["customer=7"], ["both", "one"]),
        (["customer=7", "kind=mail"], ["both"]),
        (["customer=7", "kind=bill"], []),
        (["query=a=b"], ["equals"]),
        (["empty="], ["empty"]),
    ],
)
def test_metadata_filters_and_all_of_several_must_match(shell: Shell, options: list[str], found: list[str]) -> None:
    for id, metadata in (
        ("one", {"customer": "7"}),
        ("both", {"customer": "7", "kind": "mail"}),
        ("other", {"customer": "8", "kind": "mail"}),
        ("equals", {"query": "a=b"}),
        ("empty", {"empty": ""}),
    ):
        shell.works.using(id=id, metadata=metadata).enqueue()
    args = [part for option in options for part in ("--metadata", option)]
    answer = shell("jobs", "list", "--json", *args)
    assert (answer.code, sorted(one["id"] for one in answer.objects)) == (0 if found else 4, found)


def test_a_metadata_filter_without_a_value_is_wrong_usage(shell: Shell) -> None:
    answer = shell("jobs", "list", "--metadata", "customer")
    assert (answer.code, "'customer' is not KEY=VALUE." in answer.err) == (2, True)


@pytest.mark.parametrize("verb", ["list", "delete"])
def test_two_values_for_one_metadata_key_are_wrong_usage(shell: Shell, verb: str) -> None:
    answer = shell("jobs", verb, "--metadata", "customer=7", "--metadata", "customer=8")
    assert (answer.code, "The metadata key customer is given twice." in answer.err) == (2, True)


@pytest.mark.parametrize(
    ("verb", "state"), [("cancel", "cancelled"), ("trigger", "queued"), ("requeue", "queued"), ("delete", "")]
)
def test_a_verb_takes_the_jobs_that_a_metadata_filter_finds(shell: Shell, verb: str, state: str) -> None:
    for customer in ("7", "8"):
        task = shell.gives_up if verb in ("requeue", "delete") else shell.works
        delay = 60 if verb == "trigger" else 0
        task.using(id=customer, metadata={"customer": customer}, delay=delay).enqueue()
    if verb in ("requeue", "delete"):
        shell.work()
    before = shell.state("8")
    answer = shell("jobs", verb, "--metadata", "customer=7", "--yes", "--json")
    assert [one["id"] for one in answer.objects] == ["7"]
    assert shell.state("8") == before
    if state:
        assert shell.state("7") == state
    else:
        assert shell("jobs", "show", "7").code == 4


def test_a_list_says_that_there_are_more_jobs(shell: Shell) -> None:
    shell.app.client.enqueue_many([shell.works.draft() for _ in range(4)])
    short = shell("jobs", "list", "--limit", "3")
    assert len(short.out.splitlines()) == 1 + 3
    assert "--all" in short.err
    whole = shell("jobs", "list", "--limit", "4")
    assert len(whole.out.splitlines()) == 1 + 4
    assert whole.err == ""


@pytest.mark.parametrize("mode", [[], ["--json"]])
def test_a_list_that_finds_nothing_exits_with_4(shell: Shell, mode: list[str]) -> None:
    answer = shell("jobs", "list", "--task", "unknown", *mode)
    assert (answer.code, answer.out, answer.err) == (4, "", "holdfast: No job matches.\n")


def test_dead_lists_the_jobs_that_gave_up_with_their_errors(shell: Shell) -> None:
    shell.gives_up.using(id="invoice-666").enqueue("card expired")
    shell.works.using(id="fine").enqueue()
    shell.work()
    answer = shell("dead")
    assert "invoice-666" in answer.out
    assert "card expired" in answer.out
    assert "fine" not in answer.out


def test_show_prints_arguments_result_and_every_attempt(shell: Shell) -> None:
    tries: list[int] = []

    @shell.app.task(backoff=0)
    async def flaky(number: int, *, name: str) -> int:
        tries.append(number)
        if len(tries) < 3:
            raise ConnectionError("not yet")
        return number * 2

    flaky.using(id="shown").enqueue(21, name="x")
    shell.work()
    answer = shell("jobs", "show", "shown")
    assert answer.code == 0
    assert '21, name="x"' in answer.out
    assert re.search(r"^result +42", answer.out, re.MULTILINE)
    assert answer.out.count("ConnectionError: not yet") == 2

    (one,) = shell("jobs", "show", "shown", "--json").objects
    assert one["arguments"] == [[21], {"name": "x"}]
    assert one["result"] == 42
    assert [attempt["outcome"] for attempt in one["attempts"]] == ["failed", "failed", "succeeded"]


async def lose_four_times(url: str) -> None:
    """Job `poison`: its worker was lost, then died, then the process of its handler died twice."""
    engine = open_engine(url)
    await engine.open()
    try:
        for claim_id, error in (("a", None), ("d", worker_died_info(-signal.SIGKILL, 99 << 20))):
            await engine.exchange(claim=claim(claim_id, tasks=("works",), queue="default"))
            await engine.disown(WORKER, error=error)
            (lost,) = (await engine.expired(WORKER)).leases
            await engine.settle(reap(lost, error=lost.loss_error))
        for claim_id, target, peak_mib in (("b", JobState.RETRYING, 812), ("c", JobState.FAILED, 34)):
            answer = await engine.exchange(claim=claim(claim_id, tasks=("works",), queue="default"))
            error = died_info(-signal.SIGSEGV, peak_mib << 20)
            await engine.settle(died(answer.leases[0], target, error=error))
    finally:
        await engine.close()


def test_show_prints_the_lane_and_the_key_of_an_event(shell: Shell) -> None:
    event = shell.app.pool("ledger", int, lanes=8).enqueue(1, key="alice")
    answer = shell("jobs", "show", event.id)
    assert re.search(r"^lane +1$\n^key +alice$", answer.out, re.MULTILINE)


def test_losses_are_shown_with_their_causes_apart_from_exceptions(shell: Shell) -> None:
    shell.works.using(id="poison").enqueue()
    asyncio.run(lose_four_times(shell.url))
    causes = "its process died 2 times of SIGSEGV, peak memory 812 MiB; its worker was lost once"
    deaths = "its worker died once of SIGKILL, peak memory 99 MiB"

    for command in (["jobs", "show", "poison"], ["jobs", "report", "poison"]):
        output = " ".join(shell(*command).out.split())
        assert f"losses 4: {deaths}; {causes}" in output
        assert "worker_lost" in output
    assert deaths in " ".join(shell("dead").out.split())
    (one,) = shell("jobs", "show", "poison", "--json").objects
    assert (one["losses"], one["attempt"]) == (4, 4)
    assert one["last_error"]["type"] == "holdfast.ProcessDied"
    (report,) = shell("jobs", "report", "poison", "--json").objects
    assert [event.get("reason") for event in report["events"] if event["event"] == "Retrying"] == ["worker_lost"] * 3


def test_a_report_prints_outcome_durations_and_events_in_order(shell: Shell) -> None:
    shell.gives_up.using(id="reported").enqueue("a secret argument")
    shell.work()
    (one,) = shell("jobs", "report", "reported", "--json").objects
    assert set(one) == {item.name for item in fields(Report)}
    assert one["outcome"] == "failed"
    assert [event["event"] for event in one["events"]] == ["Queued", "Started", "Failed"]
    assert "arguments" not in one["job"]
    output = shell("jobs", "report", "reported").out
    assert output.index("queued") < output.index("started") < output.rindex("failed")


def test_a_report_names_the_delay_of_the_next_attempt_only(shell: Shell) -> None:
    shell.retries.using(id="again").enqueue()
    shell.work()
    shell.app.control.trigger("again")
    shell.work()
    (one,) = shell("jobs", "report", "again", "--json").objects
    assert [event["delay"] for event in one["events"] if event["event"] == "Retrying"] == [0.0, 3600.0]
    assert "in 0 ms" not in shell("jobs", "report", "again").out


@pytest.mark.parametrize("command", [["list"], ["show", "evil"], ["report", "evil"]])
def test_no_control_character_of_stored_text_reaches_the_terminal(shell: Shell, command: list[str]) -> None:
    shell.gives_up.using(id="evil", lane=HOSTILE, metadata={"k": HOSTILE}).enqueue(HOSTILE)
    shell.gives_up.using(id=f"evil {HOSTILE}").enqueue()
    shell.work()
    for mode in ([], ["--json"]):
        answer = shell("jobs", *command, *mode)
        assert answer.code == 0
        assert all(line.isprintable() for line in answer.out.splitlines())


# --- Finding one ---


def test_a_prefix_of_an_id_is_enough_if_one_job_has_it(shell: Shell) -> None:
    job_id = shell.works.enqueue().id
    (one,) = shell("jobs", "show", job_id[:14], "--json").objects
    assert one["id"] == job_id


def test_an_id_that_is_also_a_prefix_names_its_own_job(shell: Shell) -> None:
    for job_id in ("order", "order-1", "order-2"):
        shell.works.using(id=job_id).enqueue()
    (one,) = shell("jobs", "show", "order", "--json").objects
    assert one["id"] == "order"


def test_a_prefix_of_several_ids_lists_them_and_exits_with_1(shell: Shell) -> None:
    for job_id in ("order-1", "order-2"):
        shell.works.using(id=job_id).enqueue()
    answer = shell("jobs", "cancel", "order-", "--yes")
    assert answer.code == 1
    assert "order-1" in answer.err
    assert "order-2" in answer.err
    assert shell.state("order-1") == shell.state("order-2") == "queued"


def test_an_id_in_two_queues_lists_them_and_exits_with_1(shell: Shell) -> None:
    for queue in ("left", "right"):
        shell.works.using(id="twin", queue=queue).enqueue()
    answer = shell("jobs", "show", "twin")
    assert answer.code == 1
    assert "left" in answer.err
    assert "right" in answer.err
    assert shell("jobs", "show", "twin", "--queue", "left").code == 0


@pytest.mark.parametrize("job_id", ["no", "no-job-has-this"])
def test_an_id_without_a_job_exits_with_4(shell: Shell, job_id: str) -> None:
    shell.works.using(id="none of these").enqueue()
    answer = shell("jobs", "show", job_id)
    assert answer.code == 4
    assert "Traceback" not in answer.err
    assert len(answer.err.splitlines()) == 1


# --- Acting ---


def test_cancel_needs_yes_without_a_terminal(shell: Shell) -> None:
    shell.works.using(id="kept").enqueue()
    answer = shell("jobs", "cancel", "kept")
    assert answer.code == 2
    assert "1 job: kept (works, queued)" in answer.err
    assert shell.state("kept") == "queued"


def test_cancel_keeps_a_job_from_running(shell: Shell) -> None:
    shell.works.using(id="unwanted").enqueue()
    (one,) = shell("jobs", "cancel", "unwanted", "--yes", "--json").objects
    assert one == {"id": "unwanted", "queue": "default", "answer": "cancelled", "refused": ""}
    assert shell.state("unwanted") == "cancelled"


def test_cancel_of_a_finished_job_is_refused_and_exits_with_1(shell: Shell) -> None:
    shell.works.using(id="over").enqueue()
    shell.work()
    answer = shell("jobs", "cancel", "over", "--yes")
    assert (answer.code, answer.err) == (1, "holdfast: over: It has already ended.\n")


def test_a_filter_says_what_and_how_many_before_it_cancels(shell: Shell) -> None:
    shell.app.client.enqueue_many([shell.works.draft() for _ in range(3)])
    shell.gives_up.using(id="other").enqueue()
    asked = shell("jobs", "cancel", "--task", "works")
    assert asked.code == 2
    assert "3 jobs: 3 works queued" in asked.err
    assert shell("jobs", "cancel", "--task", "works", "--yes").code == 0
    assert shell.app.control.stats().cancelled == 3
    assert shell.state("other") == "queued"


def test_trigger_makes_a_retrying_and_a_scheduled_job_due(shell: Shell) -> None:
    shell.retries.using(id="again").enqueue()
    shell.work()
    shell.works.using(id="late", delay=3600).enqueue()
    assert shell("jobs", "trigger", "again", "late").code == 0
    assert (shell.state("again"), shell.state("late")) == ("queued", "queued")


def test_trigger_of_a_finished_job_is_refused_and_exits_with_1(shell: Shell) -> None:
    shell.works.using(id="over").enqueue()
    shell.work()
    answer = shell("jobs", "trigger", "over")
    assert answer.code == 1
    assert "succeeded" in answer.err


def test_requeue_takes_one_job_by_id_and_the_failed_jobs_by_filter(shell: Shell) -> None:
    for job_id in ("one", "two", "three"):
        shell.gives_up.using(id=job_id).enqueue()
    shell.work()
    shell.works.using(id="unwanted").enqueue()
    shell.app.control.cancel("unwanted")

    assert shell("jobs", "requeue", "one").code == 0
    assert shell.state("one") == "queued"
    assert shell("jobs", "requeue", "--all").code == 2, "many at once are asked for"
    assert len(shell("jobs", "requeue", "--all", "--yes", "--json").objects) == 2
    assert shell.state("three") == "queued"
    assert shell.state("unwanted") == "cancelled", "a filter without a state means failed ones"
    assert shell("jobs", "requeue", "--state", "cancelled", "--yes").code == 0
    assert shell.state("unwanted") == "queued"


def test_delete_removes_finished_jobs_and_refuses_live_ones(shell: Shell) -> None:
    shell.works.using(id="over").enqueue()
    shell.work()
    shell.works.using(id="live").enqueue()
    assert shell("jobs", "delete", "over").code == 2
    assert shell("jobs", "delete", "live", "--yes").code == 1
    assert shell("jobs", "delete", "over", "--yes").code == 0
    assert [job.id for job in shell.app.control.find()] == ["live"]


@pytest.mark.parametrize("verb", ["cancel", "trigger", "requeue", "delete"])
def test_a_verb_without_ids_and_filter_exits_with_2(shell: Shell, verb: str) -> None:
    answer = shell("jobs", verb, "--yes")
    assert answer.code == 2
    assert "Which jobs?" in answer.err


@pytest.mark.parametrize("verb", ["cancel", "trigger", "requeue", "delete"])
def test_a_filter_that_finds_nothing_exits_with_4(shell: Shell, verb: str) -> None:
    assert shell("jobs", verb, "--all", "--yes").code == 4


def test_a_state_the_verb_cannot_be_applied_to_exits_with_2(shell: Shell) -> None:
    answer = shell("jobs", "requeue", "--state", "running", "--yes")
    assert answer.code == 2
    assert "A job that is running cannot be requeued." in answer.err


# --- --since ---


@pytest.mark.parametrize(
    ("verb", "before", "after"),
    [
        ("cancel", "queued", "cancelled"),
        ("requeue", "failed", "queued"),
        ("delete", "failed", None),
        ("trigger", "scheduled", "queued"),
    ],
)
def test_a_verb_with_since_changes_only_the_jobs_of_that_time(
    shell: Shell, verb: str, before: str, after: str | None
) -> None:
    task = shell.gives_up if before == "failed" else shell.works
    delay: dict[str, Any] = {"delay": 3600} if before == "scheduled" else {}
    for job_id, offset_s in (("old", -3600), ("new", 0)):
        shell.app.runtime.clock_offset = offset_s * 1_000_000
        task.using(id=job_id, **delay).enqueue()
        if before == "failed":
            shell.work()
    assert (shell.state("old"), shell.state("new")) == (before, before)

    answer = shell("jobs", verb, "--since", "10m", "--yes")

    assert answer.code == 0, answer.err
    assert shell.state("old") == before
    left = [one["id"] for one in shell("jobs", "list", "--all", "--json").objects]
    assert sorted(left) == (["old"] if after is None else ["new", "old"])
    if after is not None:
        assert shell.state("new") == after


def test_dead_with_since_lists_only_the_jobs_of_that_time(shell: Shell) -> None:
    for job_id, offset_s in (("old", -3600), ("new", 0)):
        shell.app.runtime.clock_offset = offset_s * 1_000_000
        shell.gives_up.using(id=job_id).enqueue()
        shell.work()
    assert [one["id"] for one in shell("dead", "--since", "10m", "--json").objects] == ["new"]
