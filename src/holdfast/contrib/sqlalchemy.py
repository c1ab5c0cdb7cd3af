"""Jobs on PostgreSQL as a mapped class of SQLAlchemy 2, to be read and joined with your own tables. Read-only.

    JobRow = jobs_model()
    session.scalars(select(JobRow).where(JobRow.state == "failed", JobRow.finished_at > yesterday))

Only the engine writes jobs, because it keeps counters, lanes and notifications with them. So a flush, an INSERT, an
UPDATE and a DELETE are refused. All of this belongs to the mapped class and its table: importing this module changes
nothing for your own classes and sessions. The class has a MetaData of its own: `create_all` and Alembic's autogenerate
on yours do not see it. It reads the table of the engine, whose columns a later release may change; the class here
changes with it.
"""

from datetime import UTC, datetime, timedelta
from functools import cache
from typing import TYPE_CHECKING, Any, ClassVar, NoReturn

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
from sqlalchemy.ext.compiler import compiles
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column
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
    """Microseconds in the database, a `timedelta` in Python."""

    impl = BigInteger
    cache_ok = True

    def process_bind_param(self, value: timedelta | None, dialect: object) -> int | None:
        return None if value is None else value // timedelta(microseconds=1)

    def process_result_value(self, value: Any, dialect: object) -> timedelta | None:
        return None if value is None else timedelta(microseconds=int(value))


class Instant(TypeDecorator[datetime]):
    """Microseconds since 1970 in the database, an aware datetime in Python. The difference of two is a `Span`."""

    impl = BigInteger
    cache_ok = True

    class Comparator(TypeDecorator.Comparator[datetime]):
        def operate(self, op: OperatorType, *other: Any, **options: Any) -> ColumnElement[Any]:
            if op is sub and other and isinstance(getattr(other[0], "type", None), Instant):
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


class EnumText(TypeDecorator[Any]):
    """Text in the database, a member of an enum in Python. A value of a later release stays text."""

    impl = Text
    cache_ok = True

    def __init__(self, kind: type[JobState] | type[Reason]) -> None:
        super().__init__()
        self.kind = kind

    def process_bind_param(self, value: Any, dialect: object) -> str | None:
        return None if value is None else str(value)

    def process_result_value(self, value: Any, dialect: object) -> Any:
        return self.kind(value) if value in self.kind.__members__.values() else value


class Refusal(ColumnElement[Any]):
    """The default of every column. An INSERT compiles the defaults of the columns that it leaves out."""

    inherit_cache = True


@compiles(Refusal)
def _compile_refusal(*_: Any, **__: Any) -> NoReturn:
    _refuse()


def _column(*args: Any, **options: Any) -> Any:
    return mapped_column(*args, insert_default=Refusal(), **options)


class JobRow:
    """A job, as it is stored. Names are those of `holdfast.Job`; large columns are loaded when they are read."""

    if TYPE_CHECKING:
        __table__: ClassVar[Table]
        metadata: ClassVar[MetaData]

    queue: Mapped[str] = _column(Text, primary_key=True)
    id: Mapped[str] = _column(Text, primary_key=True)
    task: Mapped[str] = _column(Text)
    state: Mapped[JobState] = _column(EnumText(JobState))
    priority: Mapped[int] = _column(SmallInteger)
    lane: Mapped[str | None] = _column(Text)
    unique_key: Mapped[str | None] = _column(Text)
    attempt: Mapped[int] = _column(BigInteger)
    losses: Mapped[int] = _column(BigInteger)
    generation: Mapped[int] = _column(BigInteger)
    arrival: Mapped[int] = _column(BigInteger)
    fence: Mapped[int] = _column(BigInteger)
    worker: Mapped[str] = _column("owner", Text)
    enqueued_at: Mapped[datetime] = _column("created", Instant)
    due_at: Mapped[datetime] = _column("due", Instant)
    expires_at: Mapped[datetime | None] = _column("expires", Instant)
    started_at: Mapped[datetime | None] = _column("started", Instant)
    last_started_at: Mapped[datetime | None] = _column("last_started", Instant)
    lease_expires_at: Mapped[datetime | None] = _column("lease_expires", Instant)
    finished_at: Mapped[datetime | None] = _column("finished", Instant)
    cancel_asked: Mapped[bool] = _column()
    reason: Mapped[Reason | None] = _column(EnumText(Reason))
    note: Mapped[str] = _column(Text)
    job_metadata: Mapped[dict[str, str] | None] = _column("metadata", JSONB)
    """The `metadata=` of the enqueue. (SQLAlchemy itself uses the name `metadata`.)"""
    last_error: Mapped[dict[str, str] | None] = _column(JSONB)
    """type, message and traceback."""
    codec: Mapped[str] = _column(Text, deferred=True)
    payload: Mapped[bytes] = _column(LargeBinary, deferred=True)
    """Bytes written by the codec."""
    result: Mapped[bytes | None] = _column(LargeBinary, deferred=True)

    def __repr__(self) -> str:
        return f"JobRow(queue={self.queue!r}, id={self.id!r}, task={self.task!r}, state={str(self.state)!r})"


class ReadOnlyTable(Table):
    """A table whose UPDATE, DELETE and INSERT statements are refused, also outside of a flush."""

    inherit_cache = True

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        for change in ("before_create", "before_drop"):
            event.listen(self, change, _refuse)


@compiles(ReadOnlyTable)
def _compile_table(table: ReadOnlyTable, compiler: Any, *, iscrud: bool = False, **options: Any) -> Any:
    """`iscrud`: the table is the target of an UPDATE or DELETE."""
    return _refuse() if iscrud else compiler.visit_table(table, **options)


@cache
def jobs_model(namespace: str = "holdfast") -> type[JobRow]:
    """The mapped class for the jobs of a namespace: the same class at each call."""
    try:
        identifier(namespace)
    except ValueError as error:
        raise ConfigError(f"The namespace {namespace!r} {error}", key="namespace") from error

    class Base(DeclarativeBase):
        """A registry of its own, apart from the user's and from other namespaces."""

        @classmethod
        def __table_cls__(cls, *args: Any, **kwargs: Any) -> ReadOnlyTable:
            return ReadOnlyTable(*args, **kwargs)

    model: type[JobRow] = type(
        "JobRow", (JobRow, Base), {"__tablename__": "job", "__table_args__": {"schema": namespace}}
    )
    for change in ("before_insert", "before_update", "before_delete"):
        event.listen(model, change, _refuse)
    return model


def _refuse(*_: Any, **__: Any) -> NoReturn:
    raise UsageError(
        "Jobs are only read through SQLAlchemy. Enqueue them with their task, change them with jobs.control, and make "
        "their tables with `holdfast migrate`."
    )
