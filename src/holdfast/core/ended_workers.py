"""Which workers have certainly ended, as every process of their host can see."""

from holdfast.engine import Engine


async def read_ended_workers(engine: Engine) -> frozenset[str]:
    """Workers of this host whose process has ended; their records may still look alive for some seconds."""
    return frozenset(await engine.ended_workers()) if engine.process_name else frozenset()
