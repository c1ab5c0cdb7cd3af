"""Runs Django's commands for this project."""

import os
import sys
from pathlib import Path

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parents[1]))
    sys.path.remove(str(Path(__file__).parent))
    if os.environ.get("HOLDFAST_TEST_DJANGO_DRIVER") == "psycopg2":
        sys.modules["psycopg"] = None  # type: ignore[assignment]  # it cannot be imported, so Django takes psycopg2
    os.environ["DJANGO_SETTINGS_MODULE"] = "django_project.settings"
    from django.core.management import execute_from_command_line

    execute_from_command_line(sys.argv)
