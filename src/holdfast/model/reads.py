"""The commands that change nothing. An engine may run them on a read connection, and may repeat them."""

from holdfast.model import observe, operate, work

READS = frozenset(
    {
        observe.Get,
        observe.Find,
        observe.Stats,
        observe.Lanes,
        observe.Audit,
        observe.Now,
        work.Expired,
        work.Workers,
        operate.Pools,
    }
)
