"""A process whose files cannot grow beyond a size: to SQLite, a full disk. Prints what happened as one JSON line.

    python full_disk_app.py PATH enqueue|settle|transaction

A limit on the size of files needs no rights, unlike a small file system. SQLite then reports a failed write, as it does
when a quota is used up.
"""

import json
import resource
import sys
from collections import Counter
from pathlib import Path

from sqlite_store import a_claim, job, store, success

from holdfast.errors import HoldfastError
from holdfast.model.produce import Enqueue
from holdfast.model.records import WorkerRecord
from holdfast.model.work import Exchange

LIMIT_BYTES = 1_500_000


def limit_files(limit_bytes: int) -> None:
    _, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit_bytes, hard))


def main(path: Path, what: str) -> None:
    engine, errors = store(path), Counter[str]()
    accepted: list[str] = []
    messages: dict[str, str] = {}

    def enqueue(name: str) -> bool:
        try:
            engine.perform_now(Enqueue(groups=(job(name, payload=b"x" * 2_000),)))
        except HoldfastError as error:
            errors[type(error).__name__] += 1
            messages[type(error).__name__] = str(error)
            return False
        accepted.append(name)
        return True

    engine.open_now()
    limit_files(LIMIT_BYTES)
    enqueued = 300 if what == "enqueue" else 2_000
    for number in range(enqueued):
        if not enqueue(f"job-{number}") and what != "enqueue":
            break
    settled = 0
    if what == "settle":
        renewals = engine.renewal_connection()
        while leases := engine.perform_now(Exchange(claim=a_claim("w", settled, limit=1))).leases:
            renewals.heartbeat(WorkerRecord(worker="w"))
            engine.perform_now(Exchange(settlements=tuple(success(lease) for lease in leases)))
            settled += len(leases)
        renewals.close()
    if what == "transaction":
        try:
            with engine.transaction() as db:
                db.execute("CREATE TABLE mine (value BLOB)")
                for _ in range(800):
                    db.execute("INSERT INTO mine VALUES (zeroblob(4000))")
        except HoldfastError as error:
            errors[f"transaction {type(error).__name__}"] += 1
    limit_files(resource.RLIM_INFINITY)
    recovered = False
    for _ in range(300):
        recovered = enqueue("after")
        if recovered:
            break
        engine._runtime.event().wait(0.02)
    engine.close_now()
    print(json.dumps([accepted, settled, errors, recovered, messages]))


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2])
