"""The columns of a job, taken from the model: what the rules insert, write, read back and give to a worker.

The table `job` has a column of the same name for every field of `JobRecord`, except that `given` is spread over one
column per setting. A field that producers send, workers receive and operators see needs a migration that adds its
column and nothing else here: it is found by its name in `NewJob`, `JobRecord` and `Lease`."""

from collections.abc import Iterable, Mapping
from textwrap import fill
from types import NoneType, UnionType
from typing import Any, get_args, get_origin

from msgspec import NODEFAULT, Struct
from msgspec.structs import fields

from holdfast.model.job import Given, JobRecord, KeyScope
from holdfast.model.produce import NewJob
from holdfast.model.work import ExpiredLease, Lease, Settlement

OWN_COLUMNS = ("pool_hash", "granted", "awaited")
"""Columns of the table that no field of the model stands for; `tables/0001_tables.sql` says what they are."""
SET_BY_THE_RULE = ("state", "hold", "arrival", "created", "due")
"""Columns of a new job that the inserting function works out itself."""
NARROW = {"priority": "smallint"}
GIVEN = Given.__struct_fields__


def _type(annotation: Any) -> Any:
    """The type of a field that is there."""
    if get_origin(annotation) is UnionType:
        (annotation,) = (part for part in get_args(annotation) if part is not NoneType)
    return annotation


def _types(struct: type[Struct]) -> dict[str, Any]:
    return {field.name: _type(field.type) for field in fields(struct)}


def _sql_type(name: str, kind: Any, *, raw: bool) -> str:
    """`raw`: as the table has the column; else as JSON carries it, bytes in base64.

    Raw text has the collation of the table. Without it the planner builds the whole row once per column of a lease.
    """
    if name in NARROW:
        return NARROW[name]
    if not isinstance(kind, type) or issubclass(kind, dict | Struct):
        return "text" if raw else "jsonb"
    if kind is bool:
        return "boolean"
    if issubclass(kind, bytes):
        return "bytea" if raw else "text"
    if issubclass(kind, int):
        return "bigint"
    return 'text COLLATE "C"' if raw else "text"


def _wrapped(parts: Iterable[str], indent: int = 8) -> str:
    """A list as the installed text shows it, in lines that people can read."""
    return fill(", ".join(parts), 116, subsequent_indent=" " * indent, break_long_words=False, break_on_hyphens=False)


def composite(struct: type[Struct], *, raw: bool = False) -> str:
    """The attributes of a composite type, one per field."""
    return _wrapped((f"{name} {_sql_type(name, kind, raw=raw)}" for name, kind in _types(struct).items()), 4)


def row(struct: type[Struct], values: Mapping[str, str]) -> str:
    """A value of such a composite type; what is not given is NULL."""
    return f"ROW({_wrapped(values.get(name, 'NULL') for name in struct.__struct_fields__)})"


# The table


def columns() -> tuple[str, ...]:
    """The columns of the table `job`, as the model has them, and the engine's own."""
    return (*(name for field in JobRecord.__struct_fields__ for name in _columns_of(field)), *OWN_COLUMNS)


def _columns_of(field: str) -> tuple[str, ...]:
    return tuple(f"given_{name}" for name in GIVEN) if field == "given" else (field,)


def put() -> str:
    """The SET list that writes the whole record `j`."""
    return _wrapped(f"{name} = j.{name}" for name in columns() if name not in ("queue", "id"))


def insert() -> dict[str, str]:
    """The columns of the table, and their values in the record `j`. By name: a later release may add a column, and the
    functions of this one go on."""
    return {name: f"j.{name}" for name in columns()}


# A new job


def requested(**instead: str) -> dict[str, str]:
    """Columns that the request `n` decides, and their values. `instead` replaces single values."""
    kinds = _types(JobRecord)
    values: dict[str, str] = {}
    for field in fields(NewJob):
        if field.name == "given":
            values |= {f"given_{name}": f"(n.given ->> {index})::bigint" for index, name in enumerate(GIVEN)}
        elif field.name in kinds and field.name not in SET_BY_THE_RULE:
            values[field.name] = _requested(field.name, kinds[field.name], field.default)
    return values | instead


def _requested(name: str, kind: Any, default: Any) -> str:
    """The value of one column. What a request leaves out is its default."""
    if name == "key_scope":
        by_id, by_key = KeyScope.RESULT, KeyScope.INCOMPLETE
        return f"coalesce(n.key_scope, CASE WHEN n.unique_key IS NULL THEN '{by_id}' ELSE '{by_key}' END)"
    if name == "reply":
        return "CASE WHEN n.reply IS NULL THEN '{}' ELSE ARRAY[n.reply] END"
    if kind is bytes:
        return f"decode(coalesce(n.{name}, ''), 'base64')"
    if default is NODEFAULT or default is None or not isinstance(default, str | int):
        return f"n.{name}"
    return f"coalesce(n.{name}, {_literal(default)})"


def _literal(value: str | int) -> str:
    if isinstance(value, str):
        return f"'{value}'"
    return str(value).lower()


def assign_requested() -> str:
    """A new record `j`: the request's columns, and every other column at its default."""
    values = requested()
    for field in fields(JobRecord):
        if field.name not in (*values, *SET_BY_THE_RULE) and isinstance(field.default, str | int):
            values[field.name] = _literal(field.default)
    values |= dict.fromkeys(("granted", "awaited"), "false")
    return "\n    ".join(f"j.{name} := {value};" for name, value in values.items())


# What is read back


def record() -> str:
    """The fields of `j` in the order of `JobRecord`, which is packed by position."""
    kinds = _types(JobRecord)
    return _wrapped((_recorded(name, kind) for name, kind in kinds.items()))


def _recorded(name: str, kind: Any) -> str:
    if name == "given":
        return f"json_build_array({_given()})"
    if kind is bytes:
        return f"base64(j.{name})"
    if get_origin(kind) is dict:
        return f"coalesce(j.{name}, '{{}}')"
    return f"coalesce(j.{name}, '[]')" if name == "history" else f"j.{name}"


def _given() -> str:
    return ", ".join(f"j.given_{name}" for name in GIVEN)


def lease() -> str:
    """The fields of `j` in the order of `Lease`."""
    return _wrapped(_leased(name) for name in Lease.__struct_fields__)


def _leased(name: str) -> str:
    if name == "given":
        return f"CASE WHEN num_nonnulls({_given()}) > 0 THEN json_build_array({_given()})::text END"
    return f"j.{name}::text" if name == "metadata" else f"j.{name}"


def expired_lease() -> str:
    return _wrapped(f"'{name}', {name}" for name in ExpiredLease.__struct_fields__)


def success() -> str:
    """The settlement of a plain success `s`."""
    plain = ("queue", "id", "token", "result_ttl", "retention")
    values = {name: f"s.{name}" for name in plain}
    return row(Settlement, values | {"target": "'succeeded'", "result": "encode(s.result, 'base64')"})


def lists() -> dict[str, str]:
    """Everything that the rules may name."""
    alike = {"queue": "p_queue", "task": "p_task"}
    one = requested(**alike, id="p_ids[1]", payload="p_payloads[1]")
    together = requested(**alike, id="each.id", payload="each.payload")
    return {
        "new_job.attributes": composite(NewJob),
        "settlement.attributes": composite(Settlement),
        "lease.attributes": composite(Lease, raw=True),
        "lease.fields": lease(),
        "expired_lease.columns": _wrapped(ExpiredLease.__struct_fields__),
        "expired_lease.pairs": expired_lease(),
        "record.fields": record(),
        "put.assignments": put(),
        "job.columns": _wrapped(insert()),
        "job.values": _wrapped(insert().values()),
        "requested.assignments": assign_requested(),
        "requested.columns": _wrapped(requested()),
        "requested.values": _wrapped(requested().values()),
        "requested.values_each": _wrapped(together.values()),
        "requested.values_one": _wrapped(one.values()),
        "success": success(),
    }
