"""Findings of `holdfast doctor` by their check."""

import asyncio
from collections.abc import Iterable
from typing import Any

from holdfast import App
from holdfast.engine import Engine
from holdfast.model.findings import Check, Finding, Level


def findings_of(findings: Iterable[Finding], check: Check) -> list[Finding]:
    return [finding for finding in findings if finding.check == check.name]


def worst(findings: Iterable[Finding], check: Check) -> Finding:
    """The most serious finding of a check. It fails if there is none."""
    return max(findings_of(findings, check), key=lambda finding: list(Level).index(finding.level))


def examine_app(app: App[Any]) -> list[Finding]:
    """All findings. The App is closed afterwards."""
    try:
        return app.control.examine()
    finally:
        app.close()


def examined(app: App[Any], check: Check) -> Finding:
    """The most serious finding of a check of this App."""
    return worst(examine_app(app), check)


def examine_engine(engine: Engine) -> list[Finding]:
    """What an engine reports by itself, before it is opened."""
    findings: list[Finding] = []
    asyncio.run(engine.examine(findings.append))
    return findings
