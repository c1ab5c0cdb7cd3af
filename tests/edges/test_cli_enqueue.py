"""`holdfast enqueue`: arguments from the command line, options, and the answer."""

import io
import json
import sys
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from command_line import Answer, Run

from holdfast import App, Job

SHOP = """
from holdfast import App
{name} = App("sqlite:///{folder}/jobs.db")

@{name}.task
def resize(image: str, width: int = 800) -> str: ...
"""


@pytest.fixture
def run(run: Run, tmp_path: Path) -> Run:
    """Runs `holdfast enqueue` on a SQLite file, or for a target."""

    def enqueue(*args: str, target: str | None = None) -> Answer:
        store = ["--url", f"sqlite:///{tmp_path}/jobs.db"] if target is None else ["--app", target]
        return run("enqueue", *store, *args)

    return enqueue


@pytest.fixture
def jobs(tmp_path: Path) -> Callable[[], list[Job]]:
    def jobs() -> list[Job]:
        with App[Any](f"sqlite:///{tmp_path}/jobs.db") as app:
            return list(app.control.find())

    return jobs


Jobs = Callable[[], list[Job]]


def test_a_job_is_stored_and_its_id_printed(run: Run, jobs: Jobs) -> None:
    answer = run("resize", "cat.png")
    (job,) = jobs()
    assert answer.code == 0
    assert answer.out == f"{job.id}  created  queued in queue default\n"


def test_an_argument_is_json_if_valid_and_text_otherwise(run: Run, jobs: Jobs) -> None:
    values = ["3", "1.5", "true", "null", '{"a": [1]}', '"3"', "cat.png", "NaN", "", "{broken"]
    run("anything", *values)
    (job,) = jobs()
    assert job.arguments == ([3, 1.5, True, None, {"a": [1]}, "3", "cat.png", "NaN", "", "{broken"], {})


def test_name_and_value_are_an_argument_by_name(run: Run, jobs: Jobs) -> None:
    run("anything", "a=b=c", "width=320", "größe=1", "1=2", '"x=y"')
    (job,) = jobs()
    assert job.arguments == (["1=2", "x=y"], {"a": "b=c", "width": 320, "größe": 1})


def test_after_two_dashes_a_negative_number_is_an_argument(run: Run, jobs: Jobs) -> None:
    assert run("add", "--", "-1", "2").code == 0
    assert jobs()[0].arguments == ([-1, 2], {})


def test_the_same_name_twice_exits_with_2(run: Run, jobs: Jobs) -> None:
    assert run("anything", "a=1", "a=2").code == 2


@pytest.mark.parametrize(("text", "arguments"), [("[1, 2]", ([1, 2], {})), ('{"a": 1}', ([], {"a": 1}))])
def test_arguments_come_from_a_file_or_standard_input(
    run: Run, jobs: Jobs, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str, arguments: object
) -> None:
    (tmp_path / "given.json").write_text(text)
    assert run("anything", "--args", str(tmp_path / "given.json")).code == 0
    monkeypatch.setattr(sys, "stdin", io.StringIO(text))
    assert run("anything", "--args", "-").code == 0
    assert [job.arguments for job in jobs()] == [arguments, arguments]


@pytest.mark.parametrize("text", ["3", "{", "[NaN]"])
def test_a_file_without_arguments_exits_with_2(run: Run, tmp_path: Path, text: str) -> None:
    (tmp_path / "given.json").write_text(text)
    assert run("anything", "--args", str(tmp_path / "given.json")).code == 2
    assert run("anything", "--args", str(tmp_path / "missing.json")).code == 2


def test_options_go_to_the_job_and_not_to_the_task(run: Run, jobs: Jobs) -> None:
    run("anything", "--id", "dog", "--queue", "mails", "--lane", "left", "--priority", "7")
    (job,) = jobs()
    assert (job.id, job.queue, job.lane, job.priority) == ("dog", "mails", "left", 7)
    assert job.arguments == ([], {})


@pytest.mark.parametrize(("given", "seconds"), [("30", 30), ("30s", 30), ("10m", 600), ("2h", 7200), ("1d", 86_400)])
def test_a_delay_is_read_in_all_units(run: Run, jobs: Jobs, given: str, seconds: int) -> None:
    run("anything", "--delay", given)
    (job,) = jobs()
    assert job.due_at - job.enqueued_at == timedelta(seconds=seconds)


def test_a_time_is_read_with_its_time_zone(run: Run, jobs: Jobs) -> None:
    run("anything", "--at", "2099-01-31T08:00+01:00")
    assert jobs()[0].due_at == datetime(2099, 1, 31, 7, tzinfo=UTC)


@pytest.mark.parametrize(
    "options",
    [
        ["--at", "2099-01-31T08:00"],
        ["--at", "tomorrow"],
        ["--delay", "soon"],
        ["--delay", "-1"],
        ["--delay", "1", "--at", "2099-01-31T08:00Z"],
        ["--priority", "high"],
        ["--id", ""],
    ],
)
def test_an_option_that_cannot_be_exits_with_2_and_writes_nothing(run: Run, jobs: Jobs, options: list[str]) -> None:
    answer = run("anything", *options)
    assert answer.code == 2
    assert "Traceback" not in answer.err
    assert jobs() == []


def test_the_same_id_twice_is_one_job_and_other_arguments_are_refused(run: Run, jobs: Jobs) -> None:
    assert "created" in run("anything", "1", "--id", "x").out
    assert "duplicate" in run("anything", "1", "--id", "x").out
    assert run("anything", "2", "--id", "x").code == 1
    assert len(jobs()) == 1


def test_an_object_has_id_queue_and_receipt(run: Run) -> None:
    answer = json.loads(run("anything", "--id", "x", "--json").out)
    receipt = {"answer": "created", "state": "queued", "arrival": 1, "position": None, "depth": None, "lane": None}
    assert answer == {"id": "x", "queue": "default", "receipt": receipt}


def test_a_wait_that_times_out_exits_with_1_and_says_why(run: Run) -> None:
    answer = run("anything", "--wait", "0")
    assert answer.code == 1
    assert "No live worker" in answer.err
    assert answer.out == ""


def test_with_an_app_task_and_arguments_are_checked(
    run: Run, jobs: Jobs, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "checked_shop.py").write_text(SHOP.format(name="shop", folder=tmp_path))
    unknown = run("resise", "cat.png", target="checked_shop")
    assert (unknown.code, "Did you mean 'resize'?" in unknown.err) == (2, True)
    option = run("resize", "cat.png", "id=7", target="checked_shop")
    assert (option.code, "It is an option of this command: --id." in option.err) == (2, True)
    wrong = run("resize", "cat.png", "width=wide", target="checked_shop")
    assert (wrong.code, "width" in wrong.err) == (2, True)
    assert "wide" not in wrong.err.replace("width", ""), "an argument is not repeated: it may be a secret"
    assert run("resize", "cat.png", "width=3", target="checked_shop").code == 0
    assert [job.arguments for job in jobs()] == [(["cat.png"], {"width": 3})]


@pytest.mark.parametrize("typed", [("12345",), ("image=12345",), ("true",), ("null",), ("[1]",), ('"12345"',)])
def test_a_number_is_text_where_the_task_takes_text(
    run: Run, jobs: Jobs, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, typed: tuple[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "texts_shop.py").write_text(SHOP.format(name="shop", folder=tmp_path))
    assert run("resize", *typed, "width=3", target="texts_shop").code == 0
    (job,) = jobs()
    args, kwargs = job.arguments or ([], {})
    text = typed[0].removeprefix("image=").strip('"')
    assert ([*args, kwargs.get("image")][0], kwargs["width"]) == (text, 3)


def test_metadata_is_stored_with_the_job(run: Run, jobs: Jobs) -> None:
    assert run("resize", "--metadata", "customer=7", "--metadata", "note=a=b").code == 0
    (job,) = jobs()
    assert job.metadata == {"customer": "7", "note": "a=b"}


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--metadata", "customer"], "'customer' is not KEY=VALUE."),
        (["--metadata", "a=1", "--metadata", "a=2"], "The metadata key a is given twice."),
    ],
)
def test_wrong_metadata_exits_with_2(run: Run, options: list[str], message: str) -> None:
    answer = run("resize", *options)
    assert answer.code == 2
    assert message in answer.err
