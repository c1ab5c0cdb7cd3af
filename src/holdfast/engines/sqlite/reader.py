"""A connection that only reads: short transactions, without the gate."""

import sqlite3
from collections.abc import Sequence
from typing import Any

import msgspec

from holdfast.engines.command_thread import CommandResult
from holdfast.engines.engine_clock import EngineClock
from holdfast.engines.ledger import Ledger
from holdfast.engines.sqlite.connection import connect, roll_back, translate
from holdfast.engines.sqlite.connections_at_fork import CONNECTIONS
from holdfast.engines.sqlite.rows import BrokenLane, DamagedIndex, DamagedRow
from holdfast.engines.sqlite.state import SqliteState
from holdfast.engines.sqlite.statements import load
from holdfast.engines.sqlite.store import StoreOptions
from holdfast.errors import CorruptRecord
from holdfast.model.command import Command
from holdfast.model.instants import At


class Reader:
    """Used by one thread at a time."""

    def __init__(self, store: StoreOptions, clock: EngineClock) -> None:
        self._store = store
        self._clock = clock
        self.connection = connect(store, read_only=True)
        self._in_use = CONNECTIONS.in_use(self.connection)
        self._sql = load("statements.sql", store.namespace)
        self._state = SqliteState(self.connection, self._sql)
        self._state.checks_lanes = False  # a read shows a broken lane; the next write repairs it
        self._ledger = Ledger(self._state)

    def shorten_waits(self) -> None:
        """It waits for nothing."""

    def recover(self) -> None:
        """End what an interrupted `run` has left open."""
        with self._in_use:
            roll_back(self.connection)
            self._state.clear_cache()

    def close(self) -> None:
        with self._in_use:
            self.connection.close()

    def run(self, commands: Sequence[Command[Any]]) -> list[CommandResult]:
        """Run the commands in one transaction; if one of them fails, each in a transaction of its own."""
        try:
            with self._in_use:
                return self._read(commands)
        except (sqlite3.Error, UnicodeDecodeError, msgspec.DecodeError) as error:
            return [CommandResult(None, translate(error, self._store.path), frozenset())] * len(commands)
        except Exception as error:
            if len(commands) == 1:
                if isinstance(error, DamagedRow | BrokenLane | DamagedIndex):
                    error = CorruptRecord(where=str(error), engine="sqlite")
                return [CommandResult(None, error, frozenset())]
        return [result for command in commands for result in self.run([command])]

    def _read(self, commands: Sequence[Command[Any]]) -> list[CommandResult]:
        self._store.file.check()
        self.connection.execute("BEGIN")
        try:
            _, wall, lease, _ = self.connection.execute(self._sql["begin_meta"]).fetchone()
            self._ledger.clock = self._clock.earliest(At(wall, lease))
            now = self._clock.now()
            answers = [self._ledger.decide(command, now).answer for command in commands]
            self._clock.answered(self._ledger.clock)
            return [CommandResult(answer, None, frozenset()) for answer in answers]
        finally:
            roll_back(self.connection)
            self._state.clear_cache()
