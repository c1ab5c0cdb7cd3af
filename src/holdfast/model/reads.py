"""Which commands change nothing. An engine may answer them from a reader of their own, and ask them again."""

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
        operate.Schedules,
    }
)
