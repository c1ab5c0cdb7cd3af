"""Work that is too large for one call: the server does a piece per call, and the client calls until it is done.

A clear and a resize change any number of jobs. While a script runs, the server answers no other client, so a script
changes at most a thousand. The server stores what is left (`lua/state_unfinished.lua`): if this client dies, a claim or
a prune of any process continues.
"""

from holdfast.model.command import Answer, Command


class ContinueWorkAnswer(Answer, frozen=True, gc=False, kw_only=True):
    """How many jobs this piece has changed, and whether there is more."""

    count: int
    more: bool


class ContinueWork(Command[ContinueWorkAnswer], frozen=True, gc=False, kw_only=True):
    """Do the next piece of a clear or resize."""

    name: str
