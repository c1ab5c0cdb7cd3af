"""Checks of commands before an engine gets them. Each error names the field.

`Engine`'s verbs run these checks once for every engine, so an engine may rely on them.
"""

from collections.abc import Iterable

from holdfast.durations import LAST_INSTANT_US
from holdfast.errors import LONGEST, InvalidOption, PayloadTooLarge
from holdfast.model.instants import FOREVER, SECOND, Micros
from holdfast.model.job import NOTHING_GIVEN, Given, KeyScope
from holdfast.model.observe import Find
from holdfast.model.operate import Amend
from holdfast.model.produce import DepthLimit, Group, NewJob, is_like
from holdfast.model.states import JobState
from holdfast.model.text import ErrorInfo, check_metadata, check_name, clean
from holdfast.model.work import Claim, Disown, Exchange, Settlement

MAX_BATCH = 10_000  # B1: jobs in a group
"""All of them are written in one transaction."""
MAX_SETTLEMENTS = 500  # B3: in an exchange
"""So that an exchange stays short."""
MAX_PAYLOAD = 16 * 1024 * 1024  # B2: bytes
"""The limit of every engine. The limit that users set is lower, and the codec checks it."""
MAX_PAYLOAD_HASH = 255  # B2: bytes
"""Its length is stored in one byte in Redis."""
MIN_LEASE_US: Micros = SECOND // 1_000  # B5
"""Engines take leases from a millisecond on, so that tests can be quick. Users cannot go below two seconds."""
MAX_PRIORITY = 32_767
"""Priorities fit a 16-bit integer, the type of the column in PostgreSQL."""
NOTE_BYTES = 2_048  # TX3: of UTF-8
"""Longer notes are cut."""
MAX_LOSS_ERROR = 2_048  # B7: bytes of UTF-8
"""How a worker has ended, with every lease that it has left."""

_TARGETS = frozenset(
    {
        JobState.SUCCEEDED,
        JobState.FAILED,
        JobState.CANCELLED,
        JobState.RETRYING,
        JobState.SCHEDULED,
        JobState.QUEUED,
    }
)


# G6: where a reap may lead.
_REAP_TARGETS = frozenset({JobState.RETRYING, JobState.FAILED, JobState.CANCELLED})


def storable(text: str, what: str) -> None:
    """Refuse free text that an engine cannot store. `clean` makes text storable; callers of engines use it."""
    if text.isascii() and "\0" not in text:
        return
    try:
        text.encode()
    except UnicodeEncodeError:
        raise InvalidOption(
            f"`{what}` has characters that cannot be stored. Pass it through clean().", option=what
        ) from None
    if "\0" in text:
        raise InvalidOption(f"`{what}` has a NUL character. Pass it through clean().", option=what)


def names(queue: str, ids: Iterable[str]) -> None:
    name(queue, "queue")
    for value in ids:
        name(value, "id")


def name(value: str, what: str) -> str:
    """A name, id, key or lane: 1–200 characters of text that every engine can hold."""
    # A fast check that nearly every name passes; `check_name` has the complete rule.
    if type(value) is str and 0 < len(value) <= 200 and value.isascii() and "\0" not in value:
        return value
    return check_name(value, what)


def note(text: str) -> str:
    """Free text, made storable and short enough."""
    return clean(text, NOTE_BYTES)


def whole(value: int | None, what: str, low: int = 0, high: int = FOREVER) -> None:
    """A number that every engine stores exactly: up to 2^53 and, where `high` allows it, FOREVER."""
    if value is None:
        return
    if type(value) is not int or not low <= value <= high or LAST_INSTANT_US < abs(value) != FOREVER:
        first, last = max(low, -LAST_INSTANT_US), min(high, LAST_INSTANT_US)
        raise InvalidOption(f"`{what}` must be a whole number from {first} to {last}, not {value!r}.", option=what)


def duration(value: Micros | None, what: str, low: Micros = 0) -> None:
    """A century at most, so that its sum with an instant is exact, too; or FOREVER."""
    if type(value) is int and low <= value <= LONGEST:  # the usual case, without a call
        return
    if value != FOREVER:
        whole(value, what, low, LONGEST)


def limit(value: int, what: str = "limit") -> None:
    if type(value) is not int or value < 1:
        raise InvalidOption(f"`{what}` must be a whole number from 1 on, not {value!r}.", option=what)


def scope(queue: str, lane: str | None) -> None:
    name(queue, "queue")
    if lane is not None:
        name(lane, "lane")


def pool(pool_name: str, lanes: int) -> None:
    name(pool_name, "pool")
    whole(lanes, "lanes", 1, 100_000)  # B6: lanes of a pool


def group(group: Group) -> None:
    if len(group.jobs) > MAX_BATCH:
        raise InvalidOption(f"A group holds at most {MAX_BATCH} jobs, not {len(group.jobs)}. Split it.", option="jobs")
    checked: NewJob | None = None
    for job in group.jobs:
        if checked is not None and is_like(job, checked):  # only id and payload can differ
            name(job.id, "id")
            payload(job)
        else:
            new_job(job)
            checked = job
    if group.limits:
        limits(group.limits)


def limits(limits: Iterable[DepthLimit]) -> None:
    for depth in limits:
        scope(depth.queue, depth.lane)
        whole(depth.limit, "max_depth")
        if depth.each_lane and depth.lane is not None:
            raise InvalidOption(f"A limit is for lane {depth.lane!r} or for each lane, not for both.", option="lane")


def new_job(job: NewJob) -> None:
    name(job.queue, "queue")
    name(job.id, "id")
    if job.task:
        name(job.task, "task")
    if job.lane is not None:
        name(job.lane, "lane")
    if job.pool is not None:
        if job.lane is not None:
            raise InvalidOption(f"Job {job.id!r} names a lane and a pool: a pool chooses the lane.", option="lane")
        pool(job.queue, job.pool.lanes)
        if job.pool.key is not None:
            name(job.pool.key, "key")
    if job.unique_key is not None:
        name(job.unique_key, "unique_key")
    if job.codec not in ("json", "msgpack"):
        name(job.codec, "codec")
    if job.reply is not None:
        name(job.reply, "reply")
    if job.metadata:
        check_metadata(job.metadata)
    payload(job)
    if len(job.payload_hash) > MAX_PAYLOAD_HASH:
        raise InvalidOption(f"`payload_hash` must have at most {MAX_PAYLOAD_HASH} bytes.", option="payload_hash")
    # Nearly every job has the defaults here: check only what was set.
    if job.priority or type(job.priority) is not int:
        whole(job.priority, "priority", -MAX_PRIORITY - 1, MAX_PRIORITY)
    if job.delay or type(job.delay) is not int:
        duration(job.delay, "delay")
    if job.due is not None or job.expires is not None:
        whole(job.due, "due", -FOREVER)
        whole(job.expires, "expires", -FOREVER)
    if job.key_window or job.key_scope is KeyScope.WINDOW or type(job.key_window) is not int:
        duration(job.key_window, "unique_for", 1 if job.key_scope is KeyScope.WINDOW else 0)
    if job.given is not NOTHING_GIVEN:
        given(job.given)


def payload(job: NewJob) -> None:
    if len(job.payload) > MAX_PAYLOAD:
        raise PayloadTooLarge(
            f"The payload of job {job.id!r} has {len(job.payload)} bytes; no engine takes more than {MAX_PAYLOAD}.",
            size=len(job.payload),
            limit=MAX_PAYLOAD,
        )


def given(given: Given) -> None:
    whole(given.max_attempts, "max_attempts")
    whole(given.max_losses, "max_losses", 1)
    duration(given.timeout, "timeout", 1)
    duration(given.lease_len, "lease", MIN_LEASE_US)
    duration(given.result_ttl, "result_ttl")
    duration(given.retention, "retention")


def exchange(exchange: Exchange) -> None:
    if len(exchange.settlements) > MAX_SETTLEMENTS:
        raise InvalidOption(
            f"An exchange holds at most {MAX_SETTLEMENTS} settlements, not {len(exchange.settlements)}. Split it.",
            option="settlements",
        )
    for settlement in exchange.settlements:
        _settlement(settlement)
    for start in exchange.starts:
        names(start.queue, (start.id,))
    if exchange.claim is not None:
        _claim(exchange.claim)


def _settlement(settlement: Settlement) -> None:
    if settlement.target not in _TARGETS:
        raise InvalidOption(
            f"A settlement cannot send job {settlement.id!r} to {settlement.target!r}.", option="target"
        )
    if settlement.listed_expiry is not None and settlement.target not in _REAP_TARGETS:
        raise InvalidOption(f"A reaper cannot send job {settlement.id!r} to {settlement.target!r}.", option="target")
    if settlement.loss and (settlement.listed_expiry is not None or settlement.target not in _REAP_TARGETS):
        raise InvalidOption(f"An owner cannot add a loss to job {settlement.id!r} in this way.", option="loss")
    if settlement.note:
        storable(settlement.note, "note")
    if settlement.progress is not None:
        storable(settlement.progress.note, "note")
    if settlement.error is not None:
        _error(settlement.error)
    if settlement.delay != 0:  # most settlements have the defaults, and an exchange has many of them
        duration(settlement.delay, "delay")
    if settlement.due is not None:
        whole(settlement.due, "due", -FOREVER)
    if settlement.result_ttl is not None:
        duration(settlement.result_ttl, "result_ttl")
    if settlement.retention is not None:
        duration(settlement.retention, "retention")


def _error(error: ErrorInfo) -> None:
    for text in (error.type, error.message, error.traceback):
        storable(text, "error")


def disown(disown: Disown) -> None:
    for worker in disown.workers:
        name(worker, "worker")
    if disown.error is not None:
        _error(disown.error)
        size = sum(len(text.encode()) for text in (disown.error.type, disown.error.message, disown.error.traceback))
        if size > MAX_LOSS_ERROR:
            raise InvalidOption(
                f"`error` has {size} bytes; the limit for a worker that was lost is {MAX_LOSS_ERROR}.", option="error"
            )


def _claim(claim: Claim) -> None:
    name(claim.claim_id, "claim_id")
    name(claim.worker, "worker")
    # B4: jobs of one claim.
    whole(claim.limit, "limit", 0, 100_000)
    whole(claim.prefetch, "prefetch", 0, 100_000)
    for queue in claim.queues:
        name(queue.queue, "queue")
        whole(queue.limit, "limit")
        if len({task.task for task in queue.tasks}) != len(queue.tasks):
            raise InvalidOption(f"A claim on queue {queue.queue!r} names a task twice.", option="tasks")
        for task in queue.tasks:
            whole(task.limit, "limit")
            duration(task.lease_len, "lease", MIN_LEASE_US)
            whole(task.max_attempts, "max_attempts")
            whole(task.max_losses, "max_losses", 1)


def amend(amend: Amend) -> None:
    duration(amend.result_ttl, "result_ttl")
    duration(amend.retention, "retention")
    whole(amend.priority, "priority", -MAX_PRIORITY - 1, MAX_PRIORITY)
    whole(amend.due, "due", -FOREVER)
    if amend.reply is not None:
        name(amend.reply, "reply")


def find(find: Find) -> None:
    name(find.queue, "queue")
    for filtered, what in ((find.task, "task"), (find.lane, "lane")):
        if filtered:
            name(filtered, what)
    limit(find.limit)
    limit(find.scan, "scan")
