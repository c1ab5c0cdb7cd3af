"""Changes of the file engine as bytes."""

from typing import Any

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from holdfast.engines.file import changes
from holdfast.engines.file.changes import Decoded, decode, describe_lost, encode, encode_record, with_payload
from holdfast.engines.ledger.state import Change, Record
from holdfast.errors import CorruptRecord, InvalidOption, SchemaMismatch
from holdfast.model.instants import FOREVER
from holdfast.model.job import AttemptOutcome, AttemptRecord, Given, JobKey, JobRecord, KeyScope, ProgressRecord
from holdfast.model.records import Edge, LaneRecord, PoolRecord, QueueRecord, Totals, WorkerRecord
from holdfast.model.states import Hold, JobState, Reason
from holdfast.model.text import ErrorInfo, check_name


def is_name(text: str) -> bool:
    try:
        check_name(text, "id")
    except InvalidOption:
        return False
    return True


names = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), min_size=1, max_size=200).filter(
    is_name
)
texts = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=50)
instants = st.integers(0, FOREVER)
counts = st.integers(0, 2**40)


def some(strategy: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return st.none() | strategy


errors = st.builds(ErrorInfo, type=texts, message=texts, traceback=texts)
givens = st.builds(Given, max_attempts=some(counts), max_losses=some(counts), timeout=some(instants))
attempts = st.builds(
    AttemptRecord,
    number=counts,
    generation=counts,
    worker=texts,
    started=instants,
    ended=instants,
    outcome=st.sampled_from(AttemptOutcome),
    error=some(errors),
)
jobs = st.builds(
    JobRecord,
    queue=names,
    id=names,
    task=st.just("") | names,
    payload=st.binary(max_size=300),
    codec=names,
    metadata=st.dictionaries(names, texts, max_size=3),
    payload_hash=st.binary(max_size=32),
    priority=st.integers(-32_767, 32_767),
    lane=some(names),
    unique_key=some(names),
    key_scope=st.sampled_from(KeyScope),
    key_window=instants,
    expires=some(instants),
    reply=st.lists(names, max_size=2).map(tuple),
    given=givens,
    state=st.sampled_from(JobState),
    hold=st.integers(0, 31).map(Hold),
    generation=counts,
    arrival=counts,
    created=instants,
    due=instants,
    parents_left=counts,
    attempt=counts,
    losses=counts,
    owner=texts,
    token=some(names),
    fence=counts,
    lease_expires=some(instants),
    lease_len=instants,
    max_attempts=counts,
    max_losses=counts,
    started=some(instants),
    last_started=some(instants),
    progress=some(st.builds(ProgressRecord, fraction=st.floats(0, 1), note=texts)),
    cancel_asked=st.booleans(),
    cancel_note=texts,
    settled_token=some(names),
    finished=some(instants),
    reason=some(st.sampled_from(Reason)),
    note=texts,
    result=some(st.binary(max_size=300)),
    last_error=some(errors),
    history=st.lists(attempts, max_size=2).map(tuple),
    visible_until=instants,
    result_until=instants,
    key_until=instants,
    epoch=counts,
    pool_key=some(names),
    reaped_token=some(names),
    loss_error=some(errors),
)
totals = st.builds(Totals, succeeded=counts, failed=counts, cancelled=counts)
job_keys = st.builds(JobKey, queue=names, id=names)
others: st.SearchStrategy[Record] = st.one_of(
    st.builds(QueueRecord, queue=names, paused=st.booleans(), totals=totals, emptied_at=counts),
    st.builds(LaneRecord, queue=names, lane=names, head=some(names), depth=counts, totals=totals, fence=counts),
    st.builds(PoolRecord, name=names, lanes=counts, epoch=counts, turn=counts, old_live=counts),
    st.builds(Edge, parent=job_keys, child=job_keys, arrival=counts, any_end=st.booleans()),
    st.builds(
        WorkerRecord,
        worker=names,
        tasks=st.lists(names, max_size=2).map(tuple),
        queues=st.lists(names, max_size=2).map(tuple),
        host=texts,
        pid=counts,
        seen=instants,
        stop_asked=st.booleans(),
    ),
)
ROUND_TRIPS = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])


@ROUND_TRIPS
@given(jobs | others)
def test_a_written_record_is_read_as_it_was(record: Record) -> None:
    assert decode(encode(Change(None, record))) == Decoded(record, True)
    assert decode(encode_record(record)) == Decoded(record, True)


@ROUND_TRIPS
@given(others)
def test_a_removed_record_is_named(record: Record) -> None:
    assert decode(encode(Change(record, None))) == Decoded(record, False)


@given(st.builds(JobRecord, queue=names, id=names, payload=st.binary(max_size=9)))
def test_of_a_removed_job_only_the_name_is_written(job: JobRecord) -> None:
    assert decode(encode(Change(job, None))) == Decoded(JobRecord(queue=job.queue, id=job.id), False)


@pytest.mark.parametrize("size", [0, 1, 127, 128, 65_536, 1024 * 1024])
def test_a_payload_is_written_once(size: int) -> None:
    before = JobRecord(queue="q", id="a", payload=bytes(size), arrival=3)
    after = replace(before, state=JobState.RUNNING, token="t.0", lease_expires=5)

    first, second = encode(Change(None, before)), encode(Change(before, after))

    assert len(first) >= size
    assert len(second) < 500
    decoded = decode(second)
    assert isinstance(decoded.record, JobRecord)
    assert (with_payload(decoded.record, before) if decoded.needs_payload else decoded.record) == after


def test_another_payload_is_written() -> None:
    before = JobRecord(queue="q", id="a", payload=b"a" * 500)
    for after in (
        replace(before, payload=b"b" * 500),
        replace(before, generation=1),
        replace(before, arrival=9),
    ):
        assert decode(encode(Change(before, after))) == Decoded(after, True)


@pytest.mark.parametrize(
    "copy", [None, JobRecord(queue="q", id="a", arrival=4), JobRecord(queue="q", id="a", generation=1)]
)
def test_the_payload_of_another_job_is_not_taken(copy: JobRecord | None) -> None:
    with pytest.raises(CorruptRecord, match="payload of job 'a' of queue 'q' is missing"):
        with_payload(JobRecord(queue="q", id="a"), copy)


def test_an_unknown_kind_is_refused() -> None:
    for kind in (0, 9, 0x82, 0x89, 0xFF):
        with pytest.raises(SchemaMismatch, match="newer"):
            decode(bytes([kind]) + msgspec.msgpack.encode({}))


def test_contents_that_do_not_fit_are_refused() -> None:
    for data in (b"\x01", b"\x01\xc1", b"\x03\x90", b"\x81\x91\xa1q"):
        with pytest.raises(SchemaMismatch, match="newer"):
            decode(data)


def test_an_older_process_reads_a_record_with_one_more_field() -> None:
    job = JobRecord(queue="q", id="a", payload=b"p")
    values = msgspec.msgpack.decode(msgspec.msgpack.encode(job))
    longer = bytes([changes.JOB]) + msgspec.msgpack.encode([*values, "a field of a later release"])
    assert decode(longer) == Decoded(job, True)

    queue = QueueRecord(queue="q", paused=True)
    fields = msgspec.msgpack.decode(msgspec.msgpack.encode(queue))
    wider = bytes([changes.QUEUE]) + msgspec.msgpack.encode({**fields, "later": 1})
    assert decode(wider) == Decoded(queue, True)


def test_a_newer_process_reads_a_record_without_the_last_fields() -> None:
    job = JobRecord(queue="q", id="a", payload=b"p")
    values = msgspec.msgpack.decode(msgspec.msgpack.encode(job))
    assert decode(bytes([changes.JOB]) + msgspec.msgpack.encode(values[:-1])) == Decoded(job, True)
    assert decode(bytes([changes.LANE]) + msgspec.msgpack.encode({"queue": "q", "lane": "l"})) == Decoded(
        LaneRecord(queue="q", lane="l"), True
    )


def test_a_damaged_change_is_described_as_far_as_it_can_be_read() -> None:
    data = encode(Change(None, JobRecord(queue="emails", id="a" * 40, payload=b"secret")))
    assert describe_lost(data) == f"JobRecord 'emails' / {'a' * 40!r}"
    assert describe_lost(data[:5]) == "JobRecord"
    assert describe_lost(b"") == "an empty change"
    assert describe_lost(b"\x81\x92\xa1q\xa1a") == "JobRecord removal 'q' / 'a'"
    for offset in range(len(data)):
        for bit in range(8):
            damaged = bytearray(data)
            damaged[offset] ^= 1 << bit
            assert "secret" not in describe_lost(bytes(damaged))
