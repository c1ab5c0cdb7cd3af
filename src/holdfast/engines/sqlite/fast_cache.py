"""Fast path: the cache stays between two transactions, as long as no other connection has written.

SQLite's `data_version` changes with every commit of another connection. While it does not change, the leased jobs of
the cache are current, and settling them needs no read. All other jobs leave the cache with the commit: they are seldom
read again, and would fill the memory.
"""

from holdfast.engines.sqlite.state import SqliteState

NO_VERSION = -1
"""No `data_version`: the cache is empty."""


class CacheBetweenTransactions(SqliteState):
    _data_version = NO_VERSION

    def begin(self) -> None:
        version = self.db.data_version()
        if version != self._data_version:
            self.clear_cache()
            self._data_version = version
        self._complete_lanes.clear()
        self.begun = []

    def after_commit(self) -> None:
        self._jobs = {name: job for name, job in self._jobs.items() if job is not None and job.token is not None}
        self.db.written = False

    def clear_cache(self) -> None:
        super().clear_cache()
        self._data_version = NO_VERSION
