"""Space that is kept free for a full disk: then no job is accepted, but those that are stored can still be settled.

The reserve is a file beside the data of a store. When the disk is full, the process that notices it empties the file,
and the store grows into that space.

An empty file says that the reserve is in use. While it is, every process refuses to enqueue and tries to fill the file
again. A reserve holds no data: it may be removed at any time.
"""

from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

from holdfast.engines.command_thread import CommandResult
from holdfast.errors import StorageFull
from holdfast.model.command import Command
from holdfast.model.produce import Enqueue
from holdfast.runtime import Runtime

STEP_BYTES = 256 * 1024
"""A reserve is a multiple of this, and at least this."""
TRANSACTIONS_PER_CHECK = 100
"""Transactions after which the size of the reserve is checked."""
REFILL_INTERVAL_US = 1_000_000
"""Pause between two tries to fill it again."""


class SpaceReserve:
    """Used by one writer of a store, while it holds the gate."""

    def __init__(self, path: str, runtime: Runtime, refill_bytes: int = STEP_BYTES) -> None:
        self.path = path
        self._runtime = runtime
        self._transactions = TRANSACTIONS_PER_CHECK
        self._refill_at_us = 0
        self.refill_bytes = refill_bytes
        """How large it must be again before jobs are accepted."""
        self.in_use = False
        """This writer has emptied it, and no writer of this process has filled it since."""

    def is_check_due(self) -> bool:
        """Called once per transaction. True: check whether it is large enough."""
        self._transactions += 1
        if self._transactions < TRANSACTIONS_PER_CHECK or self.in_use:
            return False
        self._transactions = 0
        return True

    def grow(self, wanted_bytes: int, spare_bytes: int = 0) -> bool:
        """Make it at least this large. False: the disk has no space for that, with `spare_bytes` left."""
        if wanted_bytes <= self._runtime.fs.size(self.path):  # another process may have emptied it
            return True
        wanted_bytes = -(-wanted_bytes // STEP_BYTES) * STEP_BYTES
        try:
            with self._runtime.fs.open_append(self.path) as file:
                size = file.size()
                try:
                    file.allocate(wanted_bytes + spare_bytes)
                except OSError:
                    file.truncate(size)
                    raise
                if spare_bytes:
                    file.truncate(wanted_bytes)
        except OSError:
            return False
        return True

    def release(self) -> None:
        """The disk is full: give its space to the store."""
        self.in_use = True
        with suppress(OSError), self._runtime.fs.open_append(self.path) as file:
            file.truncate(0)

    def is_released(self) -> bool:
        """True while the disk is full: the file is empty and cannot be filled again."""
        if not self.in_use and not self._is_empty():
            return False
        now_us = self._runtime.monotonic()
        if now_us < self._refill_at_us:
            return True
        self._refill_at_us = now_us + REFILL_INTERVAL_US
        # If all the free space is what the reserve has released, the next job would fill the disk again.
        self.in_use = not self.grow(self.refill_bytes, spare_bytes=STEP_BYTES)
        return self.in_use

    def _is_empty(self) -> bool:
        try:
            status = self._runtime.fs.status(self.path)
        except OSError:
            return False
        return status is not None and status.size == 0

    def run(
        self,
        commands: Sequence[Command[Any]],
        run: Callable[[Sequence[Command[Any]]], list[CommandResult]],
        use: Callable[[], object],
        make_error: Callable[[], StorageFull],
    ) -> list[CommandResult]:
        """Run the commands. While the disk is full no job is accepted, and the other commands use the reserve.

        `use` releases the reserve, with the gate. `make_error`: for the commands that are not run.
        """
        results: list[CommandResult] = []
        may_be_full = self.in_use or Enqueue in map(type, commands)
        if not (may_be_full and self.is_released()):
            results = run(commands)
            if not any(isinstance(result.error, StorageFull) for result in results):
                return results
            use()
        results = results or [CommandResult(None, make_error(), frozenset())] * len(commands)
        again = [
            index
            for index, command in enumerate(commands)
            if isinstance(results[index].error, StorageFull) and not isinstance(command, Enqueue)
        ]
        if again:
            for index, result in zip(again, run([commands[index] for index in again]), strict=True):
                results[index] = result
        return results
