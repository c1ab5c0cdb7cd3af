"""What a command loads before it does something, and shell completion in a real bash."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from command_line import Run

LOADED = """
import sys
from holdfast.cli import main
try:
    main(sys.argv[1:])
except SystemExit:
    pass
heavy = ("rich", "sqlite3", "psycopg", "asyncpg", "redis", "django", "sqlalchemy", "holdfast.worker")
print([name for name in heavy if name in sys.modules], file=sys.stderr)
print(sorted(name for name in sys.modules if name.startswith("holdfast.engines.")), file=sys.stderr)
"""


@pytest.mark.parametrize("arguments", [["--help"], ["--version"], ["completion", "bash"]])
def test_the_first_page_loads_no_engine_and_no_tables(arguments: list[str]) -> None:
    ended = subprocess.run([sys.executable, "-c", LOADED, *arguments], capture_output=True, text=True, check=True)
    assert ended.stderr.splitlines() == ["[]", "[]"]
    assert ended.stdout


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


@pytest.mark.parametrize("group", ["jobs", "queues", "pools", "tasks", "workers", "file"])
def test_the_help_page_of_a_group_cuts_no_sentence(run: Run, group: str) -> None:
    assert "..." not in run(group, "--help").out.replace("[ARGS]...", "")


INTERRUPTED_IMPORT = """
import sys
class Interrupt:
    def find_spec(self, name, path=None, target=None):
        if name == "holdfast.cli.root":
            raise KeyboardInterrupt
sys.meta_path.insert(0, Interrupt())
from holdfast.cli import main
main(["status"])
"""


def test_ctrl_c_while_the_command_is_loaded_prints_no_traceback() -> None:
    ended = subprocess.run([sys.executable, "-c", INTERRUPTED_IMPORT], capture_output=True, text=True, check=False)
    assert (ended.returncode, ended.stderr) == (130, "")
