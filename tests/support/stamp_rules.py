"""For contributors: writes the checksum of the PostgreSQL rules' present text beside their number.

    .venv/bin/python tests/support/stamp_rules.py

Raise RULES_VERSION in engines/postgres/rules.py before, if the current number has been released.
"""

from pathlib import Path

from holdfast.engines.postgres import rules

HEAD = "# Number and checksum of every version of the rules. Written by tests/support/stamp_rules.py.\n"


def main() -> None:
    file = Path(rules.__file__).parent / "rules" / rules.VERSIONS
    sums = (rules.stamped() if file.exists() else {}) | {rules.RULES_VERSION: rules.checksum()}
    file.write_text(HEAD + "".join(f"{number} {sums[number]}\n" for number in sorted(sums)), encoding="utf-8")
    print(f"rules {rules.RULES_VERSION}: {sums[rules.RULES_VERSION]}")


if __name__ == "__main__":
    main()
