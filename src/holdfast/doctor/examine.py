"""Collects the values and runs all checks, in the order in which one can be the cause of the next.

First what needs no store, then what the engine finds without opening its store, then the open store. An error at one of
these steps is a finding, too; the steps after it are left out.
"""

import os
import socket
from collections.abc import Mapping
from typing import Protocol

from holdfast.blocking import move_to_loop
from holdfast.core.connection import StoreConnection
from holdfast.core.ended_workers import read_ended_workers
from holdfast.declare.policy import TaskPolicy
from holdfast.doctor.clocks import check_clocks, read_clock
from holdfast.doctor.configuration import check_address, check_switches
from holdfast.doctor.queues import check_depths, check_queues
from holdfast.doctor.tasks import ExaminedTask, check_leases, check_tasks
from holdfast.doctor.workers import (
    check_notifications,
    check_process_records,
    check_workers,
    check_writes,
)
from holdfast.engine import Engine
from holdfast.errors import EngineError, HoldfastError, SchemaMismatch
from holdfast.model.findings import CONNECTION, DAMAGE, OPENING, SCHEMA, Finding, Level
from holdfast.operate.overview import overview_of, read_retrying

RUN_AGAIN = "Correct that, then run the command again: workers, queues and clocks were not checked."


class PolicyHolder(Protocol):
    """A task of the App."""

    @property
    def policy(self) -> TaskPolicy: ...
    @property
    def is_async(self) -> bool: ...


async def examine(store: StoreConnection, tasks: Mapping[str, PolicyHolder]) -> list[Finding]:
    """All findings. Changes no job and no queue; a store that is missing or damaged is left as it is."""
    await move_to_loop()
    config, findings = store.config, list[Finding]()
    declared = [ExaminedTask(task.policy, task.is_async) for task in tasks.values()]
    findings.append(check_address(store.url_conflict, store.address))
    findings += check_switches(os.environ)
    findings += check_tasks(declared, config.worker)
    try:
        engine = store.process.engine
        await engine.examine(findings.append)
        if engine.capabilities.shared_between_processes and (store.process.open or _may_open(findings)):
            engine = await store.engine()
            findings.append(CONNECTION.ok("The store is open and answers."))
            await _examine_open_store(store, engine, declared, findings)
    except HoldfastError as error:
        findings.append(_of_error(error))
    return findings


def _may_open(findings: list[Finding]) -> bool:
    """False, with the reason: to open the store would change it."""
    keeps_closed = [
        finding
        for finding in findings
        if (finding.check == SCHEMA.name and finding.level is not Level.OK)
        or (finding.check == DAMAGE.name and finding.level is Level.PROBLEM)
    ]
    if keeps_closed:
        findings.append(
            OPENING.note(
                f"The store was not opened, because that would change it (see {keeps_closed[0].check}). Workers, "
                "queues and clocks were not checked."
            )
        )
    return not keeps_closed


def _of_error(error: HoldfastError) -> Finding:
    """A store that cannot be used now is one thing; a store that answers, and is refused or refuses, another."""
    if isinstance(error, EngineError) and type(error) not in (EngineError, SchemaMismatch):
        return CONNECTION.problem(str(error), RUN_AGAIN)
    return OPENING.problem(f"A worker cannot use this store: {error}", RUN_AGAIN)


async def _examine_open_store(
    store: StoreConnection, engine: Engine, declared: list[ExaminedTask], findings: list[Finding]
) -> None:
    config = store.config
    findings.append(check_writes(await engine.blocked_by()))
    reading = await read_clock(engine, store.runtime)
    if declared:
        findings.append(check_leases(declared, reading.round_trip_us))
    workers, ended = (await engine.workers()).workers, await read_ended_workers(engine)
    findings += check_clocks(reading, workers)
    findings.append(
        check_notifications(push=engine.capabilities.push, poll_s=config.worker.poll_interval),
    )
    queues = (await engine.stats()).queues
    overview = overview_of(queues, await read_retrying(engine, queues), workers, ended, reading.now)
    findings += check_workers(overview)
    if hasattr(socket, "AF_UNIX"):  # else no process has a record
        findings += check_process_records(workers, socket.gethostname(), await engine.known_processes(), reading.now)
    findings += check_queues(queues, overview, reading.now)
    limits = {stats.queue: store.queue_limits(stats.queue).max_depth for stats in queues}
    findings += check_depths(
        queues, {queue: (most, config.queue(queue).soft_limit) for queue, most in limits.items() if most}
    )
