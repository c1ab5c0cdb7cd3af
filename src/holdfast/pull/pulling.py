"""The pull side of an App: in each process one station, made when somebody first claims."""

from typing import TYPE_CHECKING
from weakref import WeakKeyDictionary, finalize

from holdfast.blocking import away_from_here
from holdfast.core.link import Link
from holdfast.core.process import Process

if TYPE_CHECKING:
    from holdfast.pull.station import Station


class Pulling:
    """Finds the station of this process. A producer never needs one, so it is loaded when it is asked for."""

    def __init__(self, link: Link) -> None:
        self._link = link
        self._stations: WeakKeyDictionary[Process, Station] = WeakKeyDictionary()

    def station(self) -> "Station":
        process = self._link.process
        found = self._stations.get(process)
        if found is None:
            from holdfast.pull.station import Station

            made = Station(self._link, process.engine)
            found = self._stations.setdefault(process, made)
            if found is made:
                finalize(process, made.keeper.stop).atexit = False
        return found

    async def stop(self) -> None:
        """The App is about to close: leases are renewed no more, and those that nobody has seen are given back."""
        if self._stations and (station := self._stations.pop(self._link.process, None)) is not None:
            await away_from_here()
            await station.stop()
