"""A process that is stopped (SIGSTOP) inside the gate of a store: the others report it and can end."""

import asyncio
import os
import signal
from pathlib import Path

import pytest
from command_line import run_command
from host_stores import HostStore, holder_of_gate
from worker_processes import WorkerProcesses

from holdfast.engines import open_engine
from holdfast.model.produce import Group, NewJob


async def end_a_worker_while_the_gate_is_blocked(
    store: HostStore, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    url = store.url
    with WorkerProcesses(url, tmp_path / "runs", size=1) as workers:
        engine = open_engine(url)
        await engine.open()
        await engine.enqueue(Group((NewJob(queue="default", id="held", task="hold", payload=b"[[],{}]"),)))
        await workers.first_run()
        worker = workers.processes[0]
        with holder_of_gate(store.gate) as holder:
            os.kill(holder.pid, signal.SIGSTOP)
            status = await asyncio.to_thread(run_command, capsys, "status", "--url", url)
            assert (status.code, status.err) == (0, "")
            assert f"Process {holder.pid} " in status.out
            assert "is stopped" in status.out
            assert "No worker is alive" not in status.out
            worker.terminate()
            began = asyncio.get_running_loop().time()
            await asyncio.to_thread(worker.wait, 60)
            print(f"the worker ended {asyncio.get_running_loop().time() - began:.1f} s after SIGTERM")
        assert len(await engine.ended_workers()) == 1, "others see its end, and need not wait for its lease"
        await engine.close()


# PF1
async def test_a_worker_ends_on_sigterm_while_a_stopped_process_holds_the_gate(
    host_store: HostStore, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(host_store.timeout_setting, "0.5")
    monkeypatch.setenv("HOLDFAST_WORKER_GRACE", "0")
    await end_a_worker_while_the_gate_is_blocked(host_store, tmp_path, capsys)


@pytest.mark.chaos
async def test_a_worker_with_the_default_limits_ends_too(
    host_store: HostStore, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    await end_a_worker_while_the_gate_is_blocked(host_store, tmp_path, capsys)
