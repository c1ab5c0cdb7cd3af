"""The worker's lines when there are many of them, and the words they are made of."""

import pytest

from holdfast import ErrorInfo, events
from holdfast.cli.event_text import describe
from holdfast.cli.format import short
from holdfast.cli.worker_lines import TextLines
from holdfast.model.instants import SECOND
from holdfast.model.states import Reason
from holdfast.runtime import SystemRuntime

MAX_LINES = 3
NOON = 1_800_000_000 * SECOND


def pad() -> TextLines:
    return TextLines(SystemRuntime(), ["double"], lambda text, style: text, max_lines=MAX_LINES)


def started(second: int, name: str = "job") -> events.Started:
    return events.Started(at=NOON + second * SECOND, queue="default", job_id=name, task="double", attempt=1)


def failed(second: int) -> events.Failed:
    return events.Failed(at=NOON + second * SECOND, queue="default", job_id="bad", task="double", attempt=1)


def after(second: int) -> int:
    return NOON + (second + 1) * SECOND


def test_a_few_changes_are_a_line_each() -> None:
    lines = pad()
    for _ in range(MAX_LINES):
        lines.add(started(0))
    assert [line.split()[3] for line in lines.take_lines(NOON)] == ["started"] * MAX_LINES
    assert lines.take_lines(after(0)) == []


def test_events_above_the_limit_are_one_line_when_the_second_is_over() -> None:
    lines = pad()
    for _ in range(MAX_LINES + 1_200):
        lines.add(started(0))
    assert len(lines.take_lines(NOON)) == MAX_LINES
    (summary,) = lines.take_lines(after(0))
    assert summary.endswith("1,200 changes   1,200 started")


def test_seconds_are_summed_up_one_by_one_however_late_they_are_read() -> None:
    lines = pad()
    for second in range(3):
        for _ in range(10):
            lines.add(started(second))
    printed = lines.take_lines(after(2))
    assert [line.split()[-2:] for line in printed[MAX_LINES:]] == [
        ["7", "started"],
        ["10", "started"],
        ["10", "started"],
    ]


def test_after_a_busy_second_there_are_no_lines_until_a_quiet_one() -> None:
    lines = pad()
    for _ in range(10):
        lines.add(started(0))
    lines.take_lines(after(0) - 1)
    lines.add(started(1))
    assert [line.split()[1] for line in lines.take_lines(after(0))] == ["…"], "the first second's sum, and no line yet"
    lines.add(started(2, "seen"))
    assert "seen" in lines.take_lines(after(1))[-1]


def test_a_failure_has_its_line_among_any_number_of_changes() -> None:
    lines = pad()
    for _ in range(1_000):
        lines.add(started(0))
    lines.add(failed(0))
    assert "failed" in lines.take_lines(NOON)[-1]


def test_a_terminal_that_accepts_no_output_costs_no_memory() -> None:
    lines = pad()
    for second in range(1_000):
        for event in (started(second), failed(second)):
            lines.add(event)
    assert len(lines.take_lines(after(1_000))) <= 5 * MAX_LINES


@pytest.mark.parametrize(
    ("reason", "word"),
    [
        (Reason.ERROR, "retrying"),
        (Reason.WORKER_LOST, "retrying"),
        (Reason.SNOOZED, "snoozed"),
        (Reason.RELEASED, "released"),
    ],
)
def test_a_job_that_runs_again_says_why(reason: Reason, word: str) -> None:
    text = describe(events.Retrying(at=NOON, queue="q", job_id="j", task="t", attempt=1, reason=reason))
    assert text is not None
    assert text.word == word


def test_an_error_is_shown_by_its_last_name_on_one_line() -> None:
    error = ErrorInfo(type="shop.errors.CardDeclined", message="no\nmoney\x1b[2J", traceback="")
    text = describe(events.Failed(at=NOON, queue="q", job_id="j", task="t", error=error))
    assert text is not None
    assert text.rest == "CardDeclined: no\\nmoney\\x1b[2J"


def test_ids_of_one_moment_stay_apart_when_they_are_shortened() -> None:
    runtime = SystemRuntime()
    ids = [runtime.new_id() for _ in range(200)]
    # 20 random bits are left: two of 200 meet once in fifty runs, ten never. Eight characters would leave none.
    assert len({short(job_id) for job_id in ids}) > len(ids) - 10
    assert all(job_id.startswith(short(job_id)) for job_id in ids)
    assert short("order-42") == "order-42"


def test_a_job_that_runs_again_at_once_names_no_delay() -> None:
    text = describe(events.Retrying(at=NOON, queue="q", job_id="j", task="t", attempt=1, reason=Reason.ERROR))
    assert text is not None
    assert text.figure == ""


def test_a_failure_without_a_traceback_is_one_line() -> None:
    lines = pad()
    error = ErrorInfo(type="holdfast.ProcessDied", message="exit code 3", traceback="")
    lines.add(events.Failed(at=NOON, queue="q", job_id="j", task="t", error=error))
    (line,) = lines.take_lines(NOON)
    assert "\n" not in line
