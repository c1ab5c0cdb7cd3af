"""`holdfast check`: whether the code of the next release can run the jobs that are stored now."""

import click
from rich.text import Text

from holdfast.cli.exits import DONE, REFUSED
from holdfast.cli.format import count, cut, short
from holdfast.cli.json_output import print_json
from holdfast.cli.options import Store, app_option, examples, json_option
from holdfast.cli.progress import ProgressBar
from holdfast.cli.queue_names import check_queue
from holdfast.cli.tables import console, number, table, text
from holdfast.cli.target import find_app, refuse_unshared
from holdfast.operate.checking import CheckProblem, CheckReport

LONGEST_MESSAGE = 100
SHOWN_EXAMPLES = 3


@click.command(
    epilog=examples(
        "holdfast check --app shop.jobs",
        "holdfast check --app shop.jobs --queue mails --queue reports",
        "holdfast check --app shop.jobs --json",
    )
)
@click.option("--queue", "queues", metavar="NAME", multiple=True, help="Only this queue. May be given more than once.")
@app_option
@json_option
def check(target: str | None, queues: tuple[str, ...], as_json: bool) -> int:
    """Read all jobs that have not ended against the code of --app, before it is deployed.

    Lists jobs whose payload the code cannot decode, and those of tasks that it does not know (aliases count). Nothing
    is written, and the store is not migrated. A job that is enqueued while the command runs may be missed.

    Exit codes: 0 all jobs fit, 1 some do not.
    """
    found = find_app(target)
    refuse_unshared(found.app)
    try:
        with ProgressBar("Checking jobs") as bar:
            report = found.app.check(queues=queues, on_page=bar)
        for queue in queues:  # the store is open now: opened by `check`, and not migrated
            check_queue(Store(found, as_json), queue)
    finally:
        found.app.close()
    if as_json:
        for problem in report.problems:
            print_json(problem, kind="problem")
        print_json({"checked": report.checked, "misfits": report.misfits, "fits": report.fits}, kind="summary")
    else:
        _print(report)
    return DONE if report.fits else REFUSED


def _print(report: CheckReport) -> None:
    if report.problems:
        columns = ("jobs#", "task", "problem", "jobs, for example")
        console().print(table(columns, map(_row, report.problems), wide=("problem",)))
        console().print()
    verdict = "all fit." if report.fits else f"{report.misfits:,} cannot be run by this code."
    click.echo(f"{count(report.checked, 'job')} checked: {verdict}")


def _row(problem: CheckProblem) -> tuple[Text, ...]:
    named = [short(one.id) for one in problem.examples[:SHOWN_EXAMPLES]]
    more = "" if problem.jobs <= len(named) else " …"
    return (
        number(problem.jobs),
        text(problem.task or "-"),
        text(cut(problem.message, LONGEST_MESSAGE)),
        text(" ".join(named) + more),
    )
