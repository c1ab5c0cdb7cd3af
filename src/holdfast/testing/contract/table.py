"""The table of guarantees: which were kept, which failed, and which an engine does not offer."""

from collections import Counter
from collections.abc import Iterator, Mapping

ENGINE = "holdfast_engine"
GUARANTEE = "holdfast_guarantee"

HELD, FAILED, NOT_OFFERED = "held", "FAILED", "not offered"

_VERDICTS = {"passed": HELD, "failed": FAILED, "error": FAILED, "skipped": NOT_OFFERED}
_WORST_FIRST = (FAILED, NOT_OFFERED, HELD)


class GuaranteeTable:
    """One row for each guarantee, one column for each engine."""

    def __init__(self) -> None:
        self._examples: dict[str, tuple[str, str, str]] = {}

    def __bool__(self) -> bool:
        return bool(self._examples)

    def add(self, nodeid: str, outcome: str, properties: Mapping[str, object]) -> None:
        """Add one report. An example has up to three (set-up, call, clean-up): the worst decides."""
        if GUARANTEE not in properties:
            return
        engine = str(properties.get(ENGINE, "?"))
        verdict = _VERDICTS[outcome]
        _, _, before = self._examples.get(nodeid, ("", "", HELD))
        worst = min(verdict, before, key=_WORST_FIRST.index)
        self._examples[nodeid] = (str(properties[GUARANTEE]), engine, worst)

    def lines(self) -> Iterator[str]:
        # Late: every pytest run where Holdfast is installed loads this module.
        from holdfast.testing.contract.guarantees import Guarantee

        engines = list(dict.fromkeys(engine for _, engine, _ in self._examples.values()))
        counts = Counter(self._examples.values())
        rows = [["guarantee", *engines]]
        for guarantee in Guarantee:
            cells = [self._cell(counts, guarantee, engine) for engine in engines]
            if any(cells):
                rows.append([guarantee.value, *cells])
        widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
        for row in rows:
            yield "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()

    def _cell(self, counts: Mapping[tuple[str, str, str], int], guarantee: str, engine: str) -> str:
        held, failed, missing = (counts.get((guarantee, engine, verdict), 0) for verdict in (HELD, FAILED, NOT_OFFERED))
        if failed:
            return f"{FAILED} {failed} of {held + failed}"
        if held:
            return f"{HELD} {held}" + (f", {missing} {NOT_OFFERED}" if missing else "")
        return NOT_OFFERED if missing else ""
