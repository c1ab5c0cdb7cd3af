"""The file engine: one folder, one host, any number of processes, no database.

The rules are those of the ledger. Each process has a copy of all jobs in memory (`replica.py`), and all processes share
a journal of changes (`journal.py`). One thread per process carries out all waiting commands in a batch (`runner.py`).
"""

import asyncio
import os
from functools import partial
from typing import Any
from urllib.parse import unquote, urlsplit

from holdfast.engine import Capabilities, RenewalConnection
from holdfast.engines.command_thread import CommandThread
from holdfast.engines.direct_renewals import DirectRenewalConnection
from holdfast.engines.engine_clock import EngineClock
from holdfast.engines.file.examine import examine_folder
from holdfast.engines.file.folder_checks import check_file_system, check_platform
from holdfast.engines.file.runner import FileOptions, FileRunner
from holdfast.engines.file.settings import SEGMENT_BYTES, FileSettings
from holdfast.engines.file.store_folder import StoreFolder, disk_error
from holdfast.engines.host_engine import HostEngine, absolute_path, checked_namespace
from holdfast.errors import ConfigError, EngineError, EngineUnavailable
from holdfast.file_locks import Gate
from holdfast.model import produce, work
from holdfast.model.address import mask_password
from holdfast.model.command import A, Command
from holdfast.model.findings import Report
from holdfast.model.reads import READS
from holdfast.runtime import Runtime

DURABILITIES = ("durable", "fast", "none")
SHORT = READS | {produce.Enqueue, work.Exchange}
"""What a blocking caller may carry out in its own thread."""


class FileEngine(HostEngine):
    scheme = "file"
    capabilities = Capabilities(
        durable=True,
        shared_between_processes=True,
        shared_between_hosts=False,
        push=True,
        user_transactions=False,
        cross_queue_atomic=True,
        blocking_calls=True,
    )
    settings = FileSettings

    def __init__(
        self,
        url: str,
        runtime: Runtime,
        *,
        namespace: str = "holdfast",
        durability: str = "durable",
        auto_migrate: bool = True,
        segment_bytes: int = SEGMENT_BYTES,
        sync_interval: float = 0.1,
        lock_timeout: float = 10.0,
        allow_network_disk: bool = False,
    ) -> None:
        if durability not in DURABILITIES:
            raise ConfigError(
                f"`durability` must be one of {', '.join(DURABILITIES)}, not {durability!r}.", key="durability"
            )
        super().__init__(runtime)
        self._folder = StoreFolder(path_of(url), checked_namespace(namespace), runtime)
        self.store_file = str(self._folder.format_path)
        self._options = FileOptions(durability, segment_bytes, sync_interval, lock_timeout)
        self._allow_network_disk = allow_network_disk
        self._has_relative_address = not os.path.isabs(os.path.expanduser(unquote(urlsplit(url).path)))
        self._clock = EngineClock(runtime, str(self._folder.path))
        self._thread: CommandThread | None = None
        self._syncs: PeriodicSync | None = None

    # Opening and closing

    def open_now(self) -> None:
        if self._thread is not None:
            return
        self._prepare()
        self._belong_to_this_process()
        folder, runtime, options = self._folder, self._runtime, self._options

        def open_runner() -> FileRunner:
            return FileRunner(folder, runtime, self._clock, options)

        try:
            self._thread = CommandThread(open_runner, self._notify, runtime, "holdfast-file", SHORT)
            if options.durability == "fast":
                assert isinstance(self._thread.runner, FileRunner)
                self._syncs = PeriodicSync(self._thread.runner, runtime, options.sync_interval_s)
            self._open_processes(str(folder.path), folder.path.name)
        except BaseException as error:
            self.close_now()
            if isinstance(error, OSError) and not isinstance(error, EngineError):
                raise self._refused_by_disk(error) from error
            raise

    def _prepare(self) -> None:
        """Make the folder, if it is missing; refuse one that cannot be used."""
        folder, runtime = self._folder, self._runtime
        check_platform()
        check_file_system(folder.root, runtime, allow_network_disk=self._allow_network_disk)
        try:
            folder.prepare(self._options.lock_timeout_s)
        except EngineError:  # `EngineUnavailable` is an OSError, too
            raise
        except OSError as error:
            raise self._refused_by_disk(error) from error

    def _refused_by_disk(self, error: OSError) -> EngineError:
        text = f"{self._folder.path} cannot be used ({error}). Check that this process may write to it."
        return disk_error(text, error)

    def close_now(self) -> None:
        if self._syncs is not None:
            self._syncs.close()
        if self._thread is not None:
            self._thread.close()
        self._close_processes()
        self._thread = self._syncs = None
        self._topics.close()

    async def migrate(self) -> tuple[str, ...]:
        """Make the folder, if it is missing. There is one format of files, so there is nothing else to do."""
        await self._runtime.run_blocking(self._prepare)
        return ()

    # Commands

    async def perform(self, command: Command[A]) -> A:
        if asyncio._get_running_loop() is None:
            return self.perform_now(command)
        answer: A = await self._open_thread().perform(command)
        return answer

    def perform_now(self, command: Command[A]) -> A:
        """The same, for a thread without an event loop."""
        answer: A = self._open_thread().perform_now(command)
        return answer

    def _open_thread(self) -> CommandThread:
        thread = self._thread
        if thread is None:
            raise EngineUnavailable(f"{self._folder.path} is not open. Nothing was written. Call open() first.")
        self._check_process()
        return thread

    async def examine(self, report: Report) -> None:
        options = self._options
        examine = partial(
            examine_folder,
            self._folder,
            options.durability,
            options.sync_interval_s,
            self._runtime,
            report,
            is_relative=self._has_relative_address,
            allow_network_disk=self._allow_network_disk,
        )
        await self._runtime.run_blocking(examine)

    def _open_gate(self) -> Gate:
        return self._folder.open_gate(self._options.lock_timeout_s)

    def renewal_connection(self) -> RenewalConnection:
        return DirectRenewalConnection(self.perform_now)

    @classmethod
    def shown_address(cls, url: str) -> str:
        return path_of(url)


class PeriodicSync:
    """Class fast: a thread that syncs the journal at intervals."""

    def __init__(self, runner: FileRunner, runtime: Runtime, interval_s: float) -> None:
        self._runner = runner
        self._interval_s = interval_s
        self._stopped = runtime.event()
        self._thread: Any = runtime.thread(self._main, name="holdfast-file-sync")

    def _main(self) -> None:
        while not self._stopped.wait(self._interval_s):
            self._runner.sync_in_background()

    def close(self) -> None:
        self._stopped.set()
        self._thread.join()  # no limit: a sync ends when the disk has answered


def path_of(url: str) -> str:
    """The folder of an address: `file:jobs` is relative, `file:///var/lib/jobs` absolute, `file:~/jobs` in the home."""
    parts = urlsplit(url)
    if parts.netloc:
        raise ConfigError(
            f"{mask_password(url)!r} contains a host. The address of a folder is file:relative/path or "
            "file:///absolute/path.",
            key="url",
        )
    if parts.query or parts.fragment:
        raise ConfigError(f"{mask_password(url)!r}: the address of a folder takes no options.", key="url")
    path = unquote(parts.path)
    if not path:
        raise ConfigError(f"{mask_password(url)!r} names no folder.", key="url")
    if "\0" in path:
        raise ConfigError(f"{mask_password(url)!r} contains a zero byte (%00).", key="url")
    return absolute_path(path)
