"""`holdfast config`: what it prints, what it warns of, what it hides."""

from pathlib import Path

import pytest
from command_line import Run


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_each_line_names_the_setting_its_value_and_its_source(
    run: Run, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (folder / "shop.py").write_text(
        "from holdfast import App\njobs = App('sqlite:jobs.db', durability='fast')\n"
        "mails = jobs.queue('mails', int, max_depth=7)\n"
    )
    (folder / "holdfast.toml").write_text("[task]\nbackoff = [1, 1.5]\n\n[worker]\nconcurrency = 3\n")
    monkeypatch.setenv("HOLDFAST_WORKER_GRACE", "5m")
    answer = run("config", "shop")
    assert (answer.code, answer.err) == (0, "")
    lines = {line.split()[0]: line.split(maxsplit=1)[1:] for line in answer.out.splitlines()}
    words = {name: " ".join(rest[0].split()) for name, rest in lines.items() if rest}
    assert words["app"] == "shop:jobs flag: TARGET"
    assert words["url"] == f"{folder / 'jobs.db'} code: App(url)"
    assert words["durability"] == "fast code: App(durability=...)"
    assert words["task.backoff"] == "[1, 1.5] holdfast.toml, line 2"
    assert words["worker.concurrency"] == "3 holdfast.toml, line 5"
    assert words["worker.grace"] == "300 HOLDFAST_WORKER_GRACE"
    assert words["worker.prefetch"] == "0 default"
    assert words["queues.mails.max_depth"] == "7 code: queue or pool (max_depth=...)"
    assert words["queues.*.max_depth"] == "0 default"
    assert words["sqlite.busy_timeout"] == "10 default"
    assert not list(folder.glob("jobs.db*")), "the command has opened the store"


def test_json_has_the_kind_of_the_source(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MY_STORE", "sqlite:///elsewhere/jobs.db")
    monkeypatch.setenv("HOLDFAST_URL", "sqlite:///other.db")
    answer = run("config", "--url", "env:MY_STORE", "--json")
    assert answer.err == ""  # a flag is meant to differ from the environment
    rows = {row["key"]: row for row in answer.objects}
    assert rows["url"]["value"].endswith("/elsewhere/jobs.db")
    assert (rows["url"]["kind"], rows["url"]["source"]) == ("flag", "--url env:MY_STORE")
    assert rows["task.backoff"]["value"]["kind"] == "exponential"
    assert rows["durability"] == {"key": "durability", "value": None, "kind": "default", "source": ""}


def test_passwords_are_masked(run: Run, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (folder / "shop.py").write_text("from holdfast import App\njobs = App('redis://:s3cret@db.example/0?timeout=7')\n")
    (folder / "holdfast.toml").write_text("[postgres]\nlisten_url = 'postgresql://me:s3cret@db.example/shop'\n")
    monkeypatch.setenv("HOLDFAST_URL", "postgresql://me:s3cret@db.example/shop")
    for more in ([], ["--json"]):
        answer = run("config", "shop", *more)
        assert answer.code == 0
        assert "s3cret" not in answer.out + answer.err
        assert "postgresql://me:***@db.example/shop" in answer.out
        assert "redis://:***@db.example/0?timeout=7" in answer.out


def test_an_address_that_differs_between_code_and_environment_is_a_warning_with_both(
    run: Run, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (folder / "shop.py").write_text("from holdfast import App\njobs = App('postgresql://me:s3cret@one.example/shop')\n")
    monkeypatch.setenv("HOLDFAST_URL", "postgresql://me:s3cret@two.example/shop")
    answer = run("config", "shop")
    assert answer.code == 0
    assert "HOLDFAST_URL says postgresql://me:***@two.example/shop" in answer.err
    assert "the code says postgresql://me:***@one.example/shop. The code wins" in answer.err
    assert "s3cret" not in answer.err


def test_a_table_that_is_not_read_is_a_warning(run: Run, folder: Path) -> None:
    (folder / "pyproject.toml").write_text("[tool.holdfast.worker]\nconcurrency = 3\n")
    assert run("config").err == ""
    (folder / "holdfast.toml").write_text("")
    assert "[tool.holdfast] in pyproject.toml is not read, because there is holdfast.toml." in run("config").err
    (folder / "pyproject.toml").write_text("[project]\nname = 'shop'\n")
    assert run("config").err == ""


def test_an_address_of_no_engine_is_printed_with_its_source_before_the_error(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOLDFAST_URL", "pigeon://me:s3cret@loft")
    answer = run("config")
    assert answer.code == 2
    assert "names no engine" in answer.err
    assert "pigeon://me:***@loft" in answer.out
    assert "HOLDFAST_URL" in answer.out
    assert "s3cret" not in answer.out + answer.err


def test_a_wrong_setting_exits_with_2_and_its_line(run: Run, folder: Path) -> None:
    (folder / "holdfast.toml").write_text("[worker]\ngrace = 5\nconcurrency = 0\n")
    answer = run("config")
    assert (answer.code, answer.out) == (2, "")
    assert answer.err.startswith("holdfast: holdfast.toml, line 3: `worker.concurrency` must be a whole number")
