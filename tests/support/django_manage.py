"""`manage.py` of the Django project, run as a process of its own in a folder of its own."""

import os
import subprocess
import sys
from pathlib import Path

SUPPORT = Path(__file__).parent
SOURCE = SUPPORT.parents[1] / "src"
MANAGE = SUPPORT / "django_project" / "manage.py"


class ManageProject:
    """The project with its SQLite file in `folder`."""

    def __init__(self, folder: Path) -> None:
        self.file = folder / "shop.sqlite3"
        self._folder = folder

    def __call__(self, *arguments: str, **environment: str) -> "subprocess.CompletedProcess[str]":
        """Run a command to its end. Warnings are errors."""
        return subprocess.run(
            [sys.executable, "-W", "error", str(MANAGE), *arguments],
            cwd=self._folder,
            env=self._environment(environment),
            capture_output=True,
            text=True,
            timeout=100,
            check=False,
        )

    def start(self, *arguments: str) -> "subprocess.Popen[str]":
        """Start a command that goes on until it is stopped."""
        return subprocess.Popen(
            [sys.executable, str(MANAGE), *arguments],
            cwd=self._folder,
            env=self._environment({}),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def shell(self, code: str, **environment: str) -> str:
        """Run code that has the tasks of the project; the last line that it prints."""
        answer = self("shell", "-c", f"from django_project.shop.tasks import *\n{code}", **environment)
        assert answer.returncode == 0, answer.stderr
        return answer.stdout.strip().splitlines()[-1]

    def _environment(self, more: dict[str, str]) -> dict[str, str]:
        others = {name: value for name, value in os.environ.items() if not name.startswith("HOLDFAST_")}
        return {**others, "PYTHONPATH": str(SOURCE), "HOLDFAST_TEST_DJANGO_FILE": str(self.file), **more}
