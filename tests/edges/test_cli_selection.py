"""Which jobs a verb is applied to: every condition counts, over all states and pages."""

import pytest
from command_line import Shell

from holdfast.model.instants import HOUR

HOSTILE = "a\x1b[2Jb"


@pytest.mark.parametrize(
    ("verb", "state"),
    [
        (["cancel"], "cancelled"),
        (["requeue", "--state", "cancelled"], "queued"),
        (["delete", "--state", "cancelled"], None),
        (["trigger"], "queued"),
    ],
)
def test_a_verb_with_since_leaves_older_jobs_alone(shell: Shell, verb: list[str], state: str | None) -> None:
    before = "scheduled" if verb == ["trigger"] else "queued"
    shell.app.runtime.clock_offset = -2 * HOUR
    shell.works.using(id="old", delay=3 * 3600 if before == "scheduled" else 0).enqueue()
    shell.app.runtime.clock_offset = 0
    shell.works.using(id="new", delay=3600 if before == "scheduled" else 0).enqueue()
    if verb[0] in ("requeue", "delete"):
        before = "cancelled"
        for job_id in ("old", "new"):
            shell.app.control.cancel(job_id)

    assert shell("jobs", *verb, "--since", "1h", "--yes").code == 0
    assert {job.id: job.state.value for job in shell.app.control.find()} == {
        "old": before,
        **({} if state is None else {"new": state}),
    }


def test_a_list_with_since_leaves_older_jobs_out(shell: Shell) -> None:
    shell.app.runtime.clock_offset = -2 * HOUR
    shell.works.using(id="old").enqueue()
    shell.app.runtime.clock_offset = 0
    shell.works.using(id="new").enqueue()
    assert [one["id"] for one in shell("jobs", "list", "--json", "--since", "1h").objects] == ["new"]


def test_a_limit_counts_the_jobs_of_all_states_together(shell: Shell) -> None:
    for number in range(2):
        shell.works.using(id=f"queued-{number}").enqueue()
        shell.works.using(id=f"scheduled-{number}", delay=60).enqueue()
    assert len(shell("jobs", "cancel", "--all", "--limit", "3", "--yes", "--json").objects) == 3


def test_a_verb_is_applied_to_the_jobs_of_every_page(shell: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("holdfast.cli.job_selection.PAGE_SIZE", 2)
    shell.app.client.enqueue_many([shell.works.draft() for _ in range(5)])
    assert len(shell("jobs", "cancel", "--all", "--yes", "--json").objects) == 5


def test_an_id_given_twice_is_one_job(shell: Shell) -> None:
    shell.works.using(id="one").enqueue()
    answer = shell("jobs", "cancel", "one", "one", "--yes", "--json")
    assert (answer.code, [result["id"] for result in answer.objects]) == (0, ["one"])


def test_a_refused_job_does_not_keep_a_verb_from_the_others(shell: Shell) -> None:
    for job_id in ("live", "over"):
        shell.works.using(id=job_id).enqueue()
    shell.app.control.cancel("over")
    assert shell("jobs", "delete", "live", "over", "--yes").code == 1
    assert [job.id for job in shell.app.control.find()] == ["live"]


def test_an_error_message_shows_no_control_character_of_an_id(shell: Shell) -> None:
    for number in range(2):
        shell.works.using(id=f"{HOSTILE}{number}").enqueue()
    answer = shell("jobs", "show", HOSTILE)
    assert answer.code == 1
    assert "\x1b" not in answer.err
    assert r"a\x1b[2Jb0" in answer.err


def test_a_prefix_that_is_too_short_says_how_long_it_must_be(shell: Shell) -> None:
    shell.works.using(id="ada-1").enqueue()
    answer = shell("jobs", "show", "ada")
    assert answer.code == 4
    assert "There is no job 'ada'" in answer.err
    assert "give 4 characters or more" in answer.err
    assert shell("jobs", "show", "ada-").code == 0
