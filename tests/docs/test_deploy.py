"""The examples in `deploy/`: their files are read as their programs read them, and every command in them runs."""

import configparser
import json
import os
import shlex
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from eventually import eventually_now
from plain_yaml import read_yaml
from postgres import PostgresServer
from postgres_stock import drop_namespace, unused_name

from holdfast import App
from holdfast.cli.exits import USAGE
from holdfast.durations import seconds_of
from holdfast.manager.children import KILL_MARGIN_S
from holdfast.readers import byte_size
from holdfast.worker.forced_exit import MARGIN_S

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="for Linux")

DEPLOY = Path(__file__).parents[2] / "deploy"
UNITS = sorted((DEPLOY / "systemd").glob("*.service"))
HOLDFAST = Path(sys.executable).with_name("holdfast")
LIMIT_S = 60.0
"""Seconds after which a process that hangs is killed, and its test fails."""

SHOP = """
from holdfast import App

jobs = App()

@jobs.task
async def works() -> None: ...
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "shop").mkdir()
    (tmp_path / "shop" / "jobs.py").write_text(SHOP, encoding="utf-8")
    return tmp_path


@pytest.fixture
def environment(folder: Path) -> dict[str, str]:
    """What `holdfast.env`, or the secret, gives."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("HOLDFAST_")}
    url = f"sqlite:///{folder}/jobs.db"
    return {**kept, "HOLDFAST_APP": "shop.jobs:jobs", "HOLDFAST_URL": url}


Start = Callable[[Sequence[str]], "subprocess.Popen[bytes]"]


@pytest.fixture
def start(folder: Path, environment: dict[str, str]) -> Iterator[Start]:
    started: list[subprocess.Popen[bytes]] = []

    def begin(command: Sequence[str]) -> "subprocess.Popen[bytes]":
        with (folder / "log").open("ab") as log:
            process = subprocess.Popen(
                [str(HOLDFAST), *command[1:]],
                cwd=folder,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        started.append(process)
        return process

    yield begin
    for process in started:
        process.kill()
        process.wait()
    print((folder / "log").read_text(encoding="utf-8"))  # pytest shows it if the test has failed


@pytest.fixture
def empty_database(environment: dict[str, str], postgres_server: PostgresServer) -> Iterator[App]:
    namespace = unused_name()
    environment |= {"HOLDFAST_URL": postgres_server.url(), "HOLDFAST_NAMESPACE": namespace}
    yield App(postgres_server.url(), namespace=namespace)
    drop_namespace(postgres_server, namespace)


def run_to_the_end(start: Start, command: Sequence[str], folder: Path, workers: int) -> None:
    run_on(App(f"sqlite:///{folder}/jobs.db"), start, command, workers)


def run_on(jobs: App, start: Start, command: Sequence[str], workers: int) -> None:
    """As systemd, Docker and Kubernetes do: start it, and later send SIGTERM to it alone."""
    process = start(command)

    def live() -> bool:
        assert process.poll() is None, "it has ended"
        return sum(worker.alive and not worker.max_children for worker in jobs.control.workers()) == workers

    with jobs:
        eventually_now(live, f"{workers} workers", limit_s=LIMIT_S)
        process.send_signal(signal.SIGTERM)
        assert process.wait(LIMIT_S) == 0
        assert jobs.control.workers() == []


def grace_s(command: Sequence[str]) -> float:
    seconds = seconds_of(command[command.index("--grace") + 1])
    assert seconds is not None
    return seconds


# --- systemd ---


def unit(path: Path) -> configparser.ConfigParser:
    parser = configparser.ConfigParser(interpolation=None, delimiters="=", comment_prefixes="#", strict=False)
    parser.optionxform = str  # type: ignore[assignment, method-assign]  # names keep their letters
    parser.read(path, encoding="utf-8")
    return parser


def command_of(path: Path) -> list[str]:
    program, *arguments = shlex.split(unit(path)["Service"]["ExecStart"])
    assert program == "/srv/shop/.venv/bin/holdfast"
    return ["holdfast", *arguments]


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd is not installed")
@pytest.mark.parametrize("path", UNITS, ids=lambda path: path.stem)
def test_systemd_accepts_the_unit(path: Path, tmp_path: Path) -> None:
    copy = tmp_path / path.name
    copy.write_text(
        path.read_text(encoding="utf-8").replace("/srv/shop/.venv/bin/holdfast", str(HOLDFAST)), encoding="utf-8"
    )
    answer = subprocess.run(
        ["systemd-analyze", "verify", "--man=no", str(copy)],
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=False,
    )
    complaints = [line for line in answer.stderr.splitlines() if path.name in line]
    assert complaints == []


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd is not installed")
@pytest.mark.parametrize("path", UNITS, ids=lambda path: path.stem)
def test_the_unit_leaves_the_service_few_rights(path: Path) -> None:
    """On systemd's scale from 0 to 10 (unsafe): 2.1 with systemd 252."""
    answer = subprocess.run(
        ["systemd-analyze", "security", "--offline=true", "--threshold=35", "--no-pager", str(path)],
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=False,
    )
    assert answer.returncode == 0, answer.stdout + answer.stderr


@pytest.mark.parametrize("path", UNITS, ids=lambda path: path.stem)
def test_the_unit_waits_longer_than_the_grace_and_signals_the_main_process_only(path: Path) -> None:
    service = unit(path)["Service"]
    margin_s = KILL_MARGIN_S if "manager" in path.name else MARGIN_S
    assert float(service["TimeoutStopSec"]) > grace_s(command_of(path)) + margin_s
    assert (service["KillMode"], service["KillSignal"], service["Restart"]) == ("mixed", "SIGTERM", "always")


@pytest.mark.parametrize("path", UNITS, ids=lambda path: path.stem)
def test_the_command_of_the_unit_runs_and_stops(path: Path, start: Start, folder: Path) -> None:
    run_to_the_end(start, command_of(path), folder, workers=2 if "manager" in path.name else 1)


@pytest.mark.parametrize("path", UNITS, ids=lambda path: path.stem)
def test_the_unit_names_the_migration_and_does_not_try_again_without_it(path: Path) -> None:
    program = shlex.split(unit(path)["Service"]["ExecStart"])[0]
    assert f"\n#ExecStartPre={program} migrate\n" in path.read_text(encoding="utf-8")
    assert unit(path)["Service"]["RestartPreventExitStatus"] == str(USAGE)


# --- Docker ---


def instructions() -> list[tuple[str, str]]:
    lines = (DEPLOY / "docker" / "Dockerfile").read_text(encoding="utf-8").splitlines()
    return [(word, rest) for line in lines if line and line[0] != "#" for word, _, rest in [line.partition(" ")]]


def test_the_image_runs_as_a_user_without_rights_and_holds_no_secret() -> None:
    found = dict(instructions())
    assert int(found["USER"]) > 0
    assert found["STOPSIGNAL"] == "SIGTERM"
    assert set(found) <= {"FROM", "RUN", "WORKDIR", "COPY", "USER", "ENV", "STOPSIGNAL", "ENTRYPOINT", "CMD"}
    assert not any("HOLDFAST_" in rest for _, rest in instructions())


def test_the_command_of_the_image_is_in_exec_form_and_runs_and_stops(start: Start, folder: Path) -> None:
    found = dict(instructions())
    command = [*json.loads(found["ENTRYPOINT"]), *json.loads(found["CMD"])]
    assert command[0] == "holdfast"
    run_to_the_end(start, command, folder, workers=1)


# --- Compose ---


@pytest.fixture
def services() -> dict[str, Any]:
    text = (DEPLOY / "docker" / "compose.yaml").read_text(encoding="utf-8")
    services: dict[str, Any] = read_yaml(text)["services"]
    return services


def test_the_service_has_time_to_stop(services: dict[str, Any]) -> None:
    worker = services["worker"]
    wait_s = seconds_of(worker["stop_grace_period"])
    assert wait_s is not None
    assert wait_s > grace_s(worker["command"]) + MARGIN_S


def test_services_start_in_order(services: dict[str, Any]) -> None:
    assert services["worker"]["depends_on"]["migrate"]["condition"] == "service_completed_successfully"
    assert services["migrate"]["depends_on"]["database"]["condition"] == "service_healthy"


def test_the_commands_of_the_services_run_on_an_empty_database(
    services: dict[str, Any], start: Start, empty_database: App
) -> None:
    worker, migrate = (["holdfast", *services[name]["command"]] for name in ("worker", "migrate"))
    assert start(worker).wait(LIMIT_S) == USAGE
    assert start(migrate).wait(LIMIT_S) == 0
    run_on(empty_database, start, worker, workers=1)


# --- Kubernetes ---


def manifest(name: str) -> dict[str, Any]:
    found: dict[str, Any] = read_yaml((DEPLOY / "kubernetes" / name).read_text(encoding="utf-8"))
    return found


def pod_of(name: str) -> dict[str, Any]:
    spec: dict[str, Any] = manifest(name)["spec"]["template"]["spec"]
    return spec


@pytest.fixture
def pod() -> dict[str, Any]:
    return pod_of("worker.yaml")


def test_the_manifests_select_the_pods_of_the_worker() -> None:
    deployment, disruption = manifest("worker.yaml"), manifest("disruption.yaml")
    assert (deployment["apiVersion"], deployment["kind"]) == ("apps/v1", "Deployment")
    assert (disruption["apiVersion"], disruption["kind"]) == ("policy/v1", "PodDisruptionBudget")
    labels = deployment["spec"]["template"]["metadata"]["labels"]
    assert deployment["spec"]["selector"]["matchLabels"] == labels
    assert disruption["spec"]["selector"]["matchLabels"] == labels


@pytest.mark.parametrize("name", ["worker.yaml", "migrate.yaml"])
def test_the_pod_has_no_rights(name: str) -> None:
    pod = pod_of(name)
    assert pod["securityContext"]["runAsNonRoot"] is True
    assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    rights = pod["containers"][0]["securityContext"]
    assert (rights["readOnlyRootFilesystem"], rights["allowPrivilegeEscalation"]) == (True, False)
    assert rights["capabilities"] == {"drop": ["ALL"]}


def test_the_migration_runs_on_an_empty_database_before_the_workers(
    pod: dict[str, Any], start: Start, empty_database: App
) -> None:
    job = manifest("migrate.yaml")
    assert (job["apiVersion"], job["kind"]) == ("batch/v1", "Job")
    assert start(pod_of("migrate.yaml")["containers"][0]["command"]).wait(LIMIT_S) == 0
    run_on(empty_database, start, pod["containers"][0]["command"], workers=1)


def test_the_pod_has_time_to_stop(pod: dict[str, Any]) -> None:
    container = pod["containers"][0]
    assert pod["terminationGracePeriodSeconds"] > grace_s(container["command"]) + MARGIN_S
    limit = byte_size(container["command"][container["command"].index("--max-memory") + 1])
    assert limit < byte_size(container["resources"]["limits"]["memory"])
    assert "livenessProbe" not in container


def test_the_commands_and_probes_of_the_pod_run(
    pod: dict[str, Any], start: Start, folder: Path, environment: dict[str, str]
) -> None:
    container = pod["containers"][0]
    startup, readiness = (container[probe]["exec"]["command"] for probe in ("startupProbe", "readinessProbe"))

    def codes() -> tuple[int, int]:
        processes = [start(startup), start(readiness)]
        first, second = (process.wait(LIMIT_S) for process in processes)
        return first, second

    assert codes() == (3, 3)  # there is no store yet
    worker = start(container["command"])
    jobs: App = App(environment["HOLDFAST_URL"])
    with jobs:
        eventually_now(lambda: jobs.control.workers() or worker.poll() is not None, "the worker", limit_s=LIMIT_S)
        assert codes() == (0, 0)
        worker.send_signal(signal.SIGTERM)
        assert worker.wait(LIMIT_S) == 0
        assert codes() == (0, 4)
    environment["HOLDFAST_WORKER_GRACE"] = "soon"
    assert codes() == (2, 2)
