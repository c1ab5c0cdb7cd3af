"""Empty stores on a server, for tests that PostgreSQL and Redis share."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, Literal, NamedTuple

from opened_engine import opened_engine

from holdfast.engine import Engine
from holdfast.engines import open_engine


class ServerStore(NamedTuple):
    kind: str
    """postgres or redis."""
    url: str
    namespace: str
    port: int
    durability: Literal["none"] | None = None
    """None: what the engine finds or takes by itself."""

    def made(self, **options: Any) -> Engine:
        if self.durability is not None:
            options["durability"] = self.durability
        return open_engine(self.url, namespace=self.namespace, **options)

    @asynccontextmanager
    async def opened(self, **options: Any) -> AsyncIterator[Engine]:
        async with opened_engine(self.made(**options)) as engine:
            yield engine
