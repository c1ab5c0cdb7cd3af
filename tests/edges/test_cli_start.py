"""What a command loads before it does something, and shell completion in a real bash."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from command_line import Run

from holdfast import App

LOADED = """
import sys
from holdfast.cli import main
try:
    main(sys.argv[1:])
except SystemExit:
    pass
print(*sys.modules, file=sys.stderr)
"""
DRIVERS = {"psycopg", "asyncpg", "redis", "django", "sqlalchemy"}
FOR_WORKERS = {"holdfast.worker", "holdfast.manager", "holdfast.isolation", "holdfast.doctor", "multiprocessing"}
FOR_STORES = {"holdfast.app", "holdfast.engine", "holdfast.engines", "asyncio", "sqlite3", "rich"}


def loaded_by(*arguments: str) -> set[str]:
    """The modules in memory after a command has ended."""
    ended = subprocess.run([sys.executable, "-c", LOADED, *arguments], capture_output=True, text=True, check=True)
    assert ended.stdout
    return set(ended.stderr.split())


@pytest.mark.parametrize("arguments", [["--help"], ["--version"], ["completion", "bash"]])
def test_the_first_page_loads_no_app_no_engine_and_no_tables(arguments: list[str]) -> None:
    assert loaded_by(*arguments) & {*DRIVERS, *FOR_WORKERS, *FOR_STORES} == set()


def test_the_help_page_of_enqueue_loads_no_app() -> None:
    assert loaded_by("enqueue", "--help") & {*DRIVERS, *FOR_WORKERS, *FOR_STORES} == set()


def test_a_command_on_a_sqlite_store_loads_no_worker_and_no_other_engine(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/jobs.db"
    App(url).migrate()
    loaded = loaded_by("status", "--url", url)
    assert loaded & {*DRIVERS, *FOR_WORKERS, "importlib.metadata"} == set()
    engines = [name for name in loaded if name.startswith("holdfast.engines.") and name.endswith(".engine")]
    assert engines == ["holdfast.engines.sqlite.engine"]


COMPLETE = """
eval "$(holdfast completion bash)"
complete -p holdfast >/dev/null || exit 9
while read -r -a COMP_WORDS; do
    COMP_CWORD=$((${#COMP_WORDS[@]} - 1))
    COMPREPLY=()
    _holdfast_completion holdfast
    echo "${COMPREPLY[@]}"
done
"""
COMPLETIONS = {
    "work": "worker workers",
    "jobs re": "report requeue",
    "jobs list --state fa": "failed",
    "worker --con": "--concurrency",
    "completion z": "zsh",
}


def test_bash_completes_commands_options_and_choices(tmp_path: Path) -> None:
    program = tmp_path / "holdfast"
    program.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m holdfast "$@"\n')
    program.chmod(0o755)
    ended = subprocess.run(
        ["bash", "--norc", "-c", COMPLETE],
        input="".join(f"holdfast {words}\n" for words in COMPLETIONS),
        env={**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}"},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert (ended.returncode, ended.stderr) == (0, "")
    assert dict(zip(COMPLETIONS, ended.stdout.splitlines(), strict=True)) == COMPLETIONS
    assert [path.name for path in tmp_path.iterdir()] == ["holdfast"]  # no store was made


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_the_script_of_each_shell_calls_holdfast(run: Run, shell: str) -> None:
    answer = run("completion", shell)
    assert (answer.code, answer.err) == (0, "")
    assert f"_HOLDFAST_COMPLETE={shell}_complete" in answer.out
    assert run("completion", shell, "--json").objects == [{"shell": shell, "script": answer.out.removesuffix("\n")}]


def test_an_unknown_shell_exits_with_2(run: Run) -> None:
    answer = run("completion", "tcsh")
    assert answer.code == 2
    assert "'bash', 'zsh', 'fish'" in answer.err


@pytest.mark.parametrize(("name", "similar"), [("statsu", "status"), ("job", "jobs"), ("worke", "worker")])
def test_a_misspelt_command_gets_the_name_of_a_similar_one(run: Run, name: str, similar: str) -> None:
    ended = run(name)
    assert ended.code == 2
    assert f"No such command '{name}'. Did you mean '{similar}'?" in ended.err


@pytest.mark.parametrize(
    ("verb", "command"), [("requeue", "jobs requeue"), ("retry", "jobs requeue"), ("pause", "queues pause")]
)
def test_a_verb_without_its_group_gets_the_whole_command(run: Run, verb: str, command: str) -> None:
    assert f"Did you mean '{command}'?" in run(verb, "x").err


@pytest.mark.parametrize("command", ["doctor", "status", "top"])
def test_an_app_as_an_argument_gets_the_option(run: Run, command: str) -> None:
    ended = run(command, "shop.jobs")
    assert (ended.code, "To name the App, write --app NAME." in ended.err) == (2, True)


@pytest.mark.parametrize("command", ["worker", "manager"])
def test_several_queues_in_one_option_are_refused(run: Run, command: str) -> None:
    """A worker would serve a queue of that name for ever."""
    ended = run(command, "shop.jobs", "-q", "mail,default")
    assert (ended.code, "Give the option once for each: -q mail -q default" in ended.err) == (2, True)


@pytest.mark.parametrize("option", ["--app", "--url", "--namespace"])
def test_an_option_of_the_store_before_the_command_is_told_its_place(run: Run, option: str) -> None:
    ended = run(option, "shop.jobs", "status")
    assert (ended.code, "Write it after the command." in ended.err) == (2, True)


@pytest.mark.parametrize("group", ["jobs", "queues", "pools", "tasks", "workers", "file"])
def test_the_help_page_of_a_group_cuts_no_sentence(run: Run, group: str) -> None:
    assert "..." not in run(group, "--help").out.replace("[ARGS]...", "")


INTERRUPTED_IMPORT = """
import sys
class Interrupt:
    def find_spec(self, name, path=None, target=None):
        if name == sys.argv[1]:
            raise KeyboardInterrupt
sys.meta_path.insert(0, Interrupt())
from holdfast.cli import main
main(["status"])
"""


@pytest.mark.parametrize("module", ["holdfast.errors", "holdfast.app"])
def test_ctrl_c_while_the_command_is_loaded_prints_no_traceback(module: str) -> None:
    """The first module of the package that a command imports, and the one that takes longest."""
    argv = [sys.executable, "-c", INTERRUPTED_IMPORT, module]
    ended = subprocess.run(argv, capture_output=True, text=True, check=False)
    assert (ended.returncode, ended.stderr.strip()) == (130, "")


def test_a_full_disk_under_standard_output_prints_no_traceback() -> None:
    with open("/dev/full", "w") as full:
        ended = subprocess.run(
            [sys.executable, "-m", "holdfast", "--version"], stdout=full, stderr=subprocess.PIPE, text=True, check=False
        )
    message = "holdfast: Standard output cannot be written: No space left on device.\n"
    assert (ended.returncode, ended.stderr) == (1, message)
