"""`holdfast doctor`: check an App and its store, and say what is wrong and what to do."""

from collections import Counter

import click
from rich.console import Group, RenderableType
from rich.text import Text

from holdfast.cli.exits import DONE, REFUSED, UNREACHABLE, Invocation
from holdfast.cli.format import safe
from holdfast.cli.json_output import print_json
from holdfast.cli.options import app_option, examples, json_option, url_option
from holdfast.cli.tables import LEVEL_STYLES, console, table, text
from holdfast.cli.target import find
from holdfast.model.findings import CONNECTION, Finding, Level


@click.command(epilog=examples("holdfast doctor", "holdfast doctor --app shop.jobs", "holdfast doctor --json --strict"))
@click.option("--strict", is_flag=True, help="Exit with 1 for warnings, too.")
@app_option
@url_option
@json_option
def doctor(target: str | None, url: str | None, as_json: bool, strict: bool) -> int:
    """Check settings, tasks, store, workers and queues; say what is wrong and what to do.

    Changes no job, and works as far as it can on a store that cannot be opened. With --app it also checks the tasks.

    \b
    Exit codes: 0 no problem, 1 a problem (with --strict also a warning),
    3 the store cannot be reached: what needs no store was checked.
    """
    app = find(target, url).app
    try:
        findings = app.control.examine()
    finally:
        app.close()
    if invocation := click.get_current_context().find_object(Invocation):
        findings = [Finding(one.check, one.level, one.found, invocation.advice(one.advice)) for one in findings]
    if as_json:
        for finding in findings:
            print_json(finding)
    else:
        console().print(_view(findings))
    return exit_code(findings, strict=strict)


def exit_code(findings: list[Finding], *, strict: bool) -> int:
    levels = {finding.level for finding in findings}
    if any(finding.check == CONNECTION.name and finding.level is Level.PROBLEM for finding in findings):
        return UNREACHABLE
    return REFUSED if Level.PROBLEM in levels or (strict and Level.WARNING in levels) else DONE


def _view(findings: list[Finding]) -> RenderableType:
    """The worst first."""
    rows: list[list[Text]] = []
    for finding in sorted(findings, key=lambda one: -list(Level).index(one.level)):
        words = Text(safe(finding.found))
        if finding.advice:
            words.append(f"\n→ {safe(finding.advice)}", "dim")
        rows.append([Text(finding.level.value, LEVEL_STYLES[finding.level]), text(finding.check), words])
    counts = Counter(finding.level for finding in findings)
    summary = ", ".join(
        f"{counts[level]} {level.value}{'s' if level is not Level.OK and counts[level] != 1 else ''}"
        for level in reversed(Level)
        if counts[level]
    )
    return Group(
        table(["level", "check", "found"], rows, uncut=["level", "check"], wide=["found"]),
        Text(),
        Text(f"{summary}."),
    )
