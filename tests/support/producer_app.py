"""A process that enqueues until the store refuses, and prints the id of each job that was acknowledged.

python producer_app.py PATH PREFIX
"""

import sys
from pathlib import Path

from sqlite_store import job, store

from holdfast.errors import EngineError
from holdfast.model.produce import Enqueue


def main(path: Path, prefix: str) -> None:
    engine = store(path)
    engine.open_now()
    number = 0
    while True:
        try:
            engine.perform_now(Enqueue(groups=(job(f"{prefix}-{number}"),)))
        except EngineError as error:
            print(type(error).__name__, error, file=sys.stderr)
            break
        print(f"{prefix}-{number}", flush=True)
        number += 1
    engine.close_now()


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2])
