"""The files around the source: the pins name packages and nothing else, and links in the docs lead somewhere."""

import re
import tomllib
from pathlib import Path

import pytest
from tools.python_reference import anchors

ROOT = Path(__file__).parents[2]
DOCS = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])

PIN = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*==[0-9][A-Za-z0-9.+!]*(; python_version (<|>=) '[0-9.]+')?")
LINK = re.compile(r"\[[^\]]+\]\((?!https?:|mailto:)([^)#\s]*)(?:#([^)\s]*))?\)")
"""A link to a file of ours: the file, empty for the same page, and the name of a heading."""


def pins() -> list[str]:
    lines = (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
    return [line for line in lines if line and not line.startswith("#")]


def canonical(requirement: str) -> str:
    """A requirement's package name in the one spelling that package indexes compare."""
    name = re.split(r"[^A-Za-z0-9._-]", requirement, maxsplit=1)[0]
    return re.sub(r"[-_.]+", "-", name).lower()


def test_constraints_are_exact_pins_without_host_or_path() -> None:
    assert pins()
    assert [line for line in pins() if not PIN.fullmatch(line)] == []


@pytest.mark.parametrize(
    "line",
    [
        "-e .",
        "--index-url https://pypi.example/simple",
        "msgspec>=0.19",
        "msgspec @ file:///tmp/msgspec.whl",
        "holdfast @ git+ssh://git@example/holdfast",
        "/somewhere/msgspec.whl",
    ],
)
def test_a_line_that_is_no_exact_pin_is_recognised(line: str) -> None:
    assert not PIN.fullmatch(line)


def test_every_dependency_is_pinned() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    extras = project["project"]["optional-dependencies"]
    asked = [
        *project["build-system"]["requires"],
        *project["project"]["dependencies"],
        *(requirement for extra in extras.values() for requirement in extra),
    ]
    assert {canonical(asked) for asked in asked} - {canonical(pin) for pin in pins()} <= {"holdfast"}


def test_the_package_names_every_framework_that_it_has_a_part_for() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    names = {name.partition(" :: ")[2] for name in project["classifiers"] if name.startswith("Framework :: ")}
    assert {"Django", "Pytest"} <= names
    assert "Operating System :: POSIX :: Linux" in project["classifiers"]  # the one on which all tests run


def test_the_readme_says_where_its_links_work_until_the_package_has_a_public_address() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    readme = " ".join((ROOT / "README.md").read_text(encoding="utf-8").split())
    assert ("urls" in project) != ("they do not work on a package index" in readme)


@pytest.mark.parametrize("page", DOCS, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_in_the_docs_lead_somewhere(page: Path) -> None:
    assert broken_links(page, page.read_text(encoding="utf-8")) == []


def broken_links(page: Path, text: str) -> list[str]:
    broken = []
    for file, heading in LINK.findall(text):
        target = page.parent / file if file else page
        if file and not target.exists():
            broken.append(file)
        elif heading:
            names = {name for _, name in anchors(text if target == page else target.read_text(encoding="utf-8"))}
            broken += [] if heading in names else [f"{file}#{heading}"]
    return broken


@pytest.mark.parametrize(
    ("text", "broken"),
    [
        ("[a](README.md) [b](docs/glossary.md#ownership) [c](https://example.org/x#y)", []),
        ("# A `b`, c!\n\n# a b c\n\n[1](#a-b-c) [2](#a-b-c-1)", []),
        ("[a](READ.md)", ["READ.md"]),
        ("[b](docs/glossary.md#owner)", ["docs/glossary.md#owner"]),
        ("# One\n\n```text\n# Two\n```\n\n[a](#one) [b](#two)", ["#two"]),
    ],
)
def test_a_link_that_leads_nowhere_is_found(text: str, broken: list[str]) -> None:
    assert broken_links(ROOT / "page.md", text) == broken


def test_the_reading_order_has_every_guide() -> None:
    order = (ROOT / "docs" / "README.md").read_text(encoding="utf-8")
    guides = {f"guides/{guide.name}" for guide in (ROOT / "docs" / "guides").glob("*.md")}
    assert guides - {file for file, _ in LINK.findall(order)} == set()
