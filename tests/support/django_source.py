"""The tests of a release of Django, from its source distribution. They are not a part of what pip installs.

pip downloads it once, from the index that it is configured with, and the folder `build` keeps it.
"""

import os
import re
import subprocess
import sys
import tarfile
from pathlib import Path
from tempfile import TemporaryDirectory

ROOT = Path(__file__).parents[2]
DOWNLOAD_TIMEOUT_S = 240.0
"""pip also installs what builds Django, to read its metadata: 8 to 30 s."""


class DownloadFailed(Exception):
    """pip could not download it; the last line of its output."""


def release_with_tasks() -> str:
    """The release that is installed; where that has no `django.tasks`, the one that other Pythons have."""
    import django

    if django.VERSION >= (6, 0):
        return str(django.__version__)
    pinned = re.findall(r"^Django==(6\S*);", (ROOT / "constraints.txt").read_text(), re.MULTILINE)
    return str(pinned[0])


def folder_of_tests(release: str) -> Path:
    """The folder that has Django's tests of its tasks as the package `tasks`."""
    folder = ROOT / "build" / f"django-{release}-tests"
    if not folder.exists():
        folder.parent.mkdir(exist_ok=True)
        with TemporaryDirectory(dir=folder.parent) as temporary:
            archive = _downloaded(release, Path(temporary))
            with tarfile.open(archive) as files:
                inside = [file for file in files if re.match(r"[^/]+/tests/tasks/", file.name)]
                files.extraction_filter = getattr(tarfile, "data_filter", None)  # Python 3.11.3 has none
                files.extractall(temporary, inside)
            (found,) = Path(temporary).glob("*/tests")
            try:
                found.rename(folder)
            except OSError:
                if not folder.exists():  # else another process was faster
                    raise
    return folder


def _downloaded(release: str, folder: Path) -> Path:
    options = [
        "--quiet",
        "--no-deps",
        "--no-binary",
        "django",
        "--ignore-requires-python",
        "--retries",
        "1",
        "--no-input",
        "--disable-pip-version-check",  # its notice would be the last line
    ]
    # The constraints of an installation may name another release; those of the build do not.
    environment = {name: value for name, value in os.environ.items() if name != "PIP_CONSTRAINT"}
    environment["PIP_BUILD_CONSTRAINT"] = str(ROOT / "constraints.txt")
    try:
        subprocess.run(
            [sys.executable, "-m", "pip", "download", *options, "--dest", str(folder), f"django=={release}"],
            env=environment,
            capture_output=True,
            text=True,
            timeout=DOWNLOAD_TIMEOUT_S,
            check=True,
        )
    except subprocess.CalledProcessError as error:
        raise DownloadFailed((error.stderr.strip() or "no output").splitlines()[-1]) from error
    except subprocess.TimeoutExpired as error:
        raise DownloadFailed(f"pip took more than {DOWNLOAD_TIMEOUT_S:.0f} s") from error
    (archive,) = folder.glob("*.tar.gz")
    return archive
