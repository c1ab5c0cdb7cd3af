"""Ids of two processes are never the same."""

import subprocess
import sys


def test_a_forked_child_and_its_parent_generate_different_ids() -> None:
    """Random bytes are fetched in advance; the child must not use those of its parent."""
    program = (
        "import os\n"
        "from holdfast.runtime import SystemRuntime\n"
        "runtime = SystemRuntime()\n"
        "runtime.token_bytes(16)\n"
        "reading, writing = os.pipe()\n"
        "if os.fork() == 0:\n"
        "    os.write(writing, runtime.token_bytes(16))\n"
        "    os._exit(0)\n"
        "print(os.read(reading, 16) == runtime.token_bytes(16))\n"
    )
    answer = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert answer.stdout == "False\n"
