"""A child for tests of the manager that starts quickly: it speaks the manager's channel and does nothing else.

python fake_worker.py BEHAVIOUR … --manager-fd N

works       starts, and stops when it is requested to
slow        the same, but it starts only when the file START in the folder exists
broken      prints a line and ends with exit code 2
stubborn    starts, and does not stop when it is requested to
recycles    starts, and stops by itself as if it had reached its number of jobs, when the file RECYCLE exists
orphans     starts, and leaves a process behind whose parent ends
"""

import json
import os
import select
import socket
import sys
from pathlib import Path

behaviour, folder = sys.argv[1], Path(sys.argv[2])
channel = socket.socket(fileno=int(sys.argv[sys.argv.index("--manager-fd") + 1]))
received = bytearray()


def send(**message: object) -> None:
    channel.send(json.dumps(message).encode() + b"\n")


def has_stop_request(wait_s: float) -> bool:
    """Wait for a message. The end of the channel ends this process."""
    if b"stop" in received:
        return True
    channel.settimeout(wait_s)
    try:
        data = channel.recv(4096)
    except TimeoutError:
        return False
    if not data:
        os._exit(0)
    received.extend(data)
    return b"stop" in received


def wait_for(name: str) -> bool:
    """True: the file exists now. False: a stop was requested first."""
    while not (folder / name).exists():
        if has_stop_request(0.02):
            return False
    return True


if behaviour == "broken":
    print("There is no module 'shop'.", file=sys.stderr)
    sys.exit(2)
if behaviour == "slow":
    wait_for("START")
send(started=f"fake-{os.getpid()}")
print(f"works {os.getpid()}", flush=True)
reason = "manager"
if behaviour == "recycles" and not (folder / "RECYCLED").exists() and wait_for("RECYCLE"):
    (folder / "RECYCLED").touch()
    reason = "max_jobs"
    send(stopping=reason)
    wait_for("FINISH")
else:
    while behaviour == "stubborn" or not has_stop_request(5):
        select.select([], [], [], 0.01)  # waits
    send(stopping=reason)
send(stopped=True)
