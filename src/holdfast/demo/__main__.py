"""`python -m holdfast.demo [FOLDER]`."""

import asyncio
import sys
from pathlib import Path

from holdfast.demo.screen import Screen
from holdfast.demo.steps import Demo, DemoFailed
from holdfast.demo.tasks import CARD, work
from holdfast.runtime import SystemRuntime


def main(arguments: list[str]) -> int:
    if arguments[:1] == ["work"]:
        work(arguments[1], Path(arguments[2]), arguments[3])
        return 0
    folder = Path(arguments[0] if arguments else "build/demo").absolute()
    files = SystemRuntime().fs
    files.mkdir(folder)
    for name in files.listdir(folder):
        if name.startswith(("demo.db", "demo-1.log", "demo-2.log", CARD)):
            files.remove(folder / name)  # files of an earlier run; other files in the folder stay
    screen = Screen()
    try:
        asyncio.run(Demo(folder, screen).run())
    except DemoFailed as failure:
        screen.bad(f"A step of the demo failed: {failure}")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
