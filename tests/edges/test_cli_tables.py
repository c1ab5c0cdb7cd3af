"""Tables on terminals of any width: no number is cut, every name can be read, and a pipe gets everything."""

import io
import re

import pytest
from command_line import Shell
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.console import Console
from rich.text import Text

from holdfast.cli import tables
from holdfast.cli.tables import number, table

COLUMNS = ["queue", "ready#", "running#", "blocked#", "failed#", "oldest#", "status", "note"]


def lines(width: int, *rows: list[Text]) -> list[str]:
    """A table as a terminal of this width shows it."""
    out = io.StringIO()
    terminal = Console(file=out, width=width, color_system=None, markup=False, highlight=False)
    terminal.print(table(COLUMNS, rows, uncut=["status"], cut=["note"]))
    return [line.rstrip() for line in out.getvalue().splitlines()]


def row(
    name: str = "default", ready: int = 0, failed: int = 0, status: str = "open", note: str = "", oldest: str = ""
) -> list[Text]:
    counts = [number(ready), number(0), number(0), number(failed)]
    return [Text(name), *counts, Text(oldest), Text(status), Text(note)]


def test_a_table_that_fits_keeps_its_gaps() -> None:
    assert lines(80, row(ready=1_204, failed=3)) == [
        "queue    ready  running  blocked  failed  oldest  status  note",
        "default  1,204        ·        ·       3          open",
    ]


def test_a_table_that_is_too_wide_loses_gaps_and_the_end_of_notes_first() -> None:
    assert lines(66, row(ready=1_204, note="the customer has no address"), row("emails", failed=7)) == [
        "queue   ready running blocked failed oldest status note",
        "default 1,204       ·       ·      ·        open   the customer h…",
        "emails      ·       ·       ·      7        open",
    ]


def test_then_it_leaves_out_columns_without_a_value_and_names_them() -> None:
    assert lines(40, row(ready=1_204, failed=3)) == [
        "queue   ready failed status",
        "default 1,204      3 open",
        "Columns without a value: running,",
        "blocked, oldest, note.",
    ]


def test_then_each_row_is_a_paragraph() -> None:
    assert lines(
        24, row("emails-of-the-newsletter-of-may", ready=1_204_000, oldest="12.5 min"), row(status="no worker")
    ) == [
        "emails-of-the-newsletter",
        "-of-may",
        "  ready 1,204,000",
        "  oldest 12.5 min",
        "  status open",
        "default",
        "  status no worker",
    ]


def test_a_long_name_goes_on_in_the_next_line() -> None:
    shown = lines(66, row("emails-of-the-newsletter-of-may", 1), row("emails-of-the-newsletter-of-june", 2))
    assert [line.split(" ")[0] for line in shown[1:]] == [
        "emails-of-the-news",
        "letter-of-may",
        "emails-of-the-news",
        "letter-of-june",
    ]


@settings(max_examples=50)
@given(
    width=st.integers(24, 120),
    rows=st.lists(
        st.tuples(
            st.text("abc-日", min_size=1, max_size=40),
            st.integers(0, 10**9),
            st.integers(0, 10**9),
            st.sampled_from(["open", "paused", "no worker"]),
            st.text("xyz ", max_size=60),
        ),
        min_size=1,
        max_size=4,
    ),
)
def test_at_every_width_all_numbers_and_names_are_whole(width: int, rows: list[tuple[str, int, int, str, str]]) -> None:
    shown = lines(width, *(row(name, ready, failed, status, note) for name, ready, failed, status, note in rows))
    assert all(Text(line).cell_len <= width for line in shown)
    found = re.findall(r"(?<!\S)\d[\d,]*(?!\S)", "\n".join(shown))
    counts = [f"{count:,}" for _, ready, failed, _, _ in rows for count in (ready, failed) if count]
    assert sorted(found) == sorted(counts)
    letters = "".join(re.findall("[abc日-]+", "".join(line.split(" ")[0] for line in shown)))
    for name, *_ in rows:
        assert name in letters


LONG_QUEUE = "orders-of-the-shop-in-the-north"


@pytest.mark.parametrize("command", [["status"], ["queues", "list"], ["top", "--once", "--interval", "20ms"]])
@pytest.mark.parametrize("columns", [80, 40])
def test_counts_are_whole_on_a_narrow_terminal(
    shell: Shell, monkeypatch: pytest.MonkeyPatch, command: list[str], columns: int
) -> None:
    monkeypatch.setattr(tables, "PIPE_WIDTH", columns)
    for _ in range(12):
        shell.works.using(queue=LONG_QUEUE).enqueue()
    for _ in range(3):
        shell.gives_up.enqueue()
    shell.works.using(queue="later", delay=3600).enqueue()
    shell.app.control.pause(LONG_QUEUE)
    shell.work()
    out = shell(*command).out
    assert max(map(len, out.splitlines())) <= columns
    assert {"12", "3", "paused"} <= {*out.split()}


def test_a_job_list_on_a_narrow_terminal_has_whole_ids(shell: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tables, "PIPE_WIDTH", 40)
    handle = shell.gives_up.enqueue("the address of the customer is wrong, and there is no other")
    shell.work()
    out = shell("jobs", "list").out
    assert out.splitlines()[0].strip() == handle.id
    assert {"failed", "gives_up", "1/20"} <= {*out.split()}


def test_a_job_list_with_lanes_has_one_line_per_job_on_80_columns(
    shell: Shell, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tables, "PIPE_WIDTH", 80)
    handle = shell.works.using(lane="customer-17").enqueue()
    shell.gives_up.enqueue("the address of the customer is wrong")
    shell.work()
    shown = shell("jobs", "list").out.splitlines()
    assert len(shown) == 3
    prefix = next(line for line in shown if "customer-17" in line).split()[0]
    assert shell("jobs", "show", prefix, "--json").objects[0]["id"] == handle.id


@pytest.mark.parametrize("command", [["status"], ["top", "--once", "--interval", "20ms"]])
def test_a_long_name_of_a_queue_keeps_the_table_on_80_columns(
    shell: Shell, monkeypatch: pytest.MonkeyPatch, command: list[str]
) -> None:
    monkeypatch.setattr(tables, "PIPE_WIDTH", 80)
    shell.works.using(queue="orders-of-the-shop-in-the-north-and-west").enqueue()
    shell.works.using(queue="short", delay=60).enqueue()
    shell.retries.enqueue()
    shell.gives_up.enqueue()
    shell.works.using(lane="left").enqueue()
    shell.works.using(lane="left").enqueue()
    (heading,) = (line for line in shell(*command).out.splitlines() if line.startswith("queue"))
    assert {"failed", "oldest", "status"} <= {*heading.split()}


def test_a_long_job_list_is_several_tables(shell: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    """It begins at once, and needs no memory for all of them."""
    monkeypatch.setattr("holdfast.cli.jobs.TABLE_JOBS", 2)
    for _ in range(5):
        shell.works.enqueue()
    lines = shell("jobs", "list", "--all").out.splitlines()
    assert [line.split()[0] == "id" for line in lines] == [True, False, False, True, False, False, True, False]
    answer = shell("jobs", "list", "--limit", "4")
    assert len(answer.out.splitlines()) == 6
    assert "These are the first 4" in answer.err
