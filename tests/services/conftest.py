"""An App on the engines of this process, and the declarations that most tests of services use."""

from pathlib import Path

import pytest
from scan_queue import Scan

from holdfast import App, Task
from holdfast.queue import Queue


@pytest.fixture(params=["memory", "sqlite", pytest.param("file", marks=pytest.mark.long)])
def jobs(request: pytest.FixtureRequest, tmp_path: Path) -> App[object]:
    urls = {"memory": "memory://", "sqlite": f"sqlite:///{tmp_path}/jobs.db", "file": f"file://{tmp_path}/jobs"}
    return App(urls[request.param])


@pytest.fixture
def scans(jobs: App[object]) -> Queue[Scan]:
    return jobs.queue("scans", Scan)


@pytest.fixture
def resize(jobs: App[object]) -> Task[[str], str]:
    @jobs.task
    def resize(image: str) -> str:
        return image

    return resize
