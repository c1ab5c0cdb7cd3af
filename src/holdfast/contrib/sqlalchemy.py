"""Jobs on PostgreSQL as a mapped class of SQLAlchemy 2, to be read and joined with your own tables. Never written.

    JobRow = jobs_model()
    session.scalars(select(JobRow).where(JobRow.state == "failed", JobRow.finished_at > yesterday))

Jobs change through their engine alone, which keeps counters, lanes and bells with them. So a flush, an UPDATE or a
DELETE of such a row is refused here. The class has a MetaData of its own: `create_all` and Alembic's autogenerate on
yours do not see it. What it reads is the table of the engine, whose columns a later release may change; the class here
changes with it.
"""

from datetime import UTC, datetime, timedelta
from functools import cache
from typing import TYPE_CHECKING, Any, ClassVar

from sqlalchemy import (
    BigInteger,
    LargeBinary,
    MetaData,
    SmallInteger,
    Table,
    Text,
    TypeDecorator,
    event,
    type_coerce,
)
from sqlalchemy.dialects.postgresql import JSONB
from sqlalchemy.orm import DeclarativeBase, Mapped, ORMExecuteState, Session, mapped_column
from sqlalchemy.sql.elements import ColumnElement
from sqlalchemy.sql.operators import OperatorType, sub
from sqlalchemy.types import TypeEngine

from holdfast.errors import ConfigError, UsageError, instant_us
from holdfast.model.instants import FOREVER
from holdfast.model.states import JobState, Reason
from holdfast.readers import identifier

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_LAST = datetime.max.replace(tzinfo=UTC)


class Span(TypeDecorator[timedelta]):
    """Microseconds in the database, a `timedelta` outside."""

    impl = BigInteger
    cache_ok = True

    def process_bind_param(self, value: timedelta | None, dialect: object) -> int | None:
        return None if value is None else value // timedelta(microseconds=1)

    def process_result_value(self, value: Any, dialect: object) -> timedelta | None:
        return None if value is None else timedelta(microseconds=int(value))


class Moment(TypeDecorator[datetime]):
    """Microseconds since 1970 in the database, an aware datetime outside. Two of them differ by a `Span`."""

    impl = BigInteger
    cache_ok = True

    class Comparator(TypeDecorator.Comparator[datetime]):
        def operate(self, op: OperatorType, *other: Any, **options: Any) -> ColumnElement[Any]:
            if op is sub and other and isinstance(getattr(other[0], "type", None), Moment):
                left, right = (type_coerce(side, BigInteger) for side in (self.expr, other[0]))
                return type_coerce(left - right, Span())
            return super().operate(op, *other, **options)

    comparator_factory = Comparator

    def coerce_compared_value(self, op: OperatorType | None, value: Any) -> TypeEngine[Any]:
        return Span() if isinstance(value, timedelta) else self

    def process_bind_param(self, value: datetime | None, dialect: object) -> int | None:
        return None if value is None else instant_us(value, "moment")

    def process_result_value(self, value: Any, dialect: object) -> datetime | None:
        if value is None:
            return None
        return _LAST if value >= FOREVER else _EPOCH + timedelta(microseconds=int(value))


class Word(TypeDecorator[Any]):
    """Text in the database, a member of an enum outside. A word of a later release stays text."""

    impl = Text
    cache_ok = True

    def __init__(self, kind: type[JobState] | type[Reason]) -> None:
        super().__init__()
        self.kind = kind

    def process_bind_param(self, value: Any, dialect: object) -> str | None:
        return None if value is None else str(value)

    def process_result_value(self, value: Any, dialect: object) -> Any:
        return self.kind(value) if value in self.kind.__members__.values() else value


class JobRow:
    """A job, as it is stored. Names are those of `holdfast.Job`; what is large is loaded when it is looked at."""

    if TYPE_CHECKING:
        __table__: ClassVar[Table]
        metadata: ClassVar[MetaData]

    queue: Mapped[str] = mapped_column(Text, primary_key=True)
    id: Mapped[str] = mapped_column(Text, primary_key=True)
    task: Mapped[str] = mapped_column(Text)
    state: Mapped[JobState] = mapped_column(Word(JobState))
    priority: Mapped[int] = mapped_column(SmallInteger)
    lane: Mapped[str | None] = mapped_column(Text)
    unique_key: Mapped[str | None] = mapped_column(Text)
    attempt: Mapped[int] = mapped_column(BigInteger)
    losses: Mapped[int] = mapped_column(BigInteger)
    generation: Mapped[int] = mapped_column(BigInteger)
    arrival: Mapped[int] = mapped_column(BigInteger)
    fence: Mapped[int] = mapped_column(BigInteger)
    worker: Mapped[str] = mapped_column("owner", Text)
    enqueued_at: Mapped[datetime] = mapped_column("created", Moment)
    due_at: Mapped[datetime] = mapped_column("due", Moment)
    expires_at: Mapped[datetime | None] = mapped_column("expires", Moment)
    started_at: Mapped[datetime | None] = mapped_column("started", Moment)
    last_started_at: Mapped[datetime | None] = mapped_column("last_started", Moment)
    lease_expires_at: Mapped[datetime | None] = mapped_column("lease_expires", Moment)
    finished_at: Mapped[datetime | None] = mapped_column("finished", Moment)
    cancel_asked: Mapped[bool] = mapped_column()
    reason: Mapped[Reason | None] = mapped_column(Word(Reason))
    note: Mapped[str] = mapped_column(Text)
    job_metadata: Mapped[dict[str, str] | None] = mapped_column("metadata", JSONB)
    """What `metadata=` said at the enqueue. (`metadata` is a word of SQLAlchemy's own.)"""
    last_error: Mapped[dict[str, str] | None] = mapped_column(JSONB)
    """type, message and traceback."""
    codec: Mapped[str] = mapped_column(Text, deferred=True)
    payload: Mapped[bytes] = mapped_column(LargeBinary, deferred=True)
    """As the codec wrote it."""
    result: Mapped[bytes | None] = mapped_column(LargeBinary, deferred=True)

    def __repr__(self) -> str:
        return f"JobRow(queue={self.queue!r}, id={self.id!r}, task={self.task!r}, state={str(self.state)!r})"


@cache
def jobs_model(namespace: str = "holdfast") -> type[JobRow]:
    """The mapped class for the jobs of a namespace: the same one each time it is asked for."""
    try:
        identifier(namespace)
    except ValueError as error:
        raise ConfigError(f"The namespace {namespace!r} {error}", key="namespace") from error

    class Base(DeclarativeBase):
        """Apart from the user's own, and from other namespaces."""

    made: type[JobRow] = type(
        "JobRow", (JobRow, Base), {"__tablename__": "job", "__table_args__": {"schema": namespace}}
    )
    for written in ("before_insert", "before_update", "before_delete"):
        event.listen(made, written, _refuse)
    for made_or_dropped in ("before_create", "before_drop"):
        event.listen(made.__table__, made_or_dropped, _refuse)
    return made


def _refuse(*_: Any, **__: Any) -> None:
    raise UsageError(
        "Jobs are only read through SQLAlchemy. Enqueue them with their task, change them with jobs.control, and make "
        "their tables with `holdfast migrate`."
    )


@event.listens_for(Session, "do_orm_execute")
def _refuse_statements(state: ORMExecuteState) -> None:
    """An UPDATE or DELETE of many rows at once touches no mapped object, so nothing else would hear of it."""
    if state.is_select or not (state.is_update or state.is_delete or state.is_insert):
        return
    if any(issubclass(mapper.class_, JobRow) for mapper in state.all_mappers):
        _refuse()
