"""Arguments are checked against the hints before anything is written, and arrive as the declared types."""

import dataclasses
import enum
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any, Literal
from uuid import UUID

import pytest
from manual_worker import take_now

from holdfast import App, Codec, Context, CorruptRecord, InvalidArguments, InvalidOption, PayloadTooLarge, content_id
from holdfast.codec import JsonCodec, MsgpackCodec
from holdfast.context import Context as AlsoContext
from holdfast.model.job import JobKey
from holdfast.task import Task


@dataclasses.dataclass(frozen=True)
class Order:
    number: int
    items: list[str]


@dataclasses.dataclass(frozen=True)
class Refund:
    cents: int


class Mode(enum.Enum):
    RED = "red"


class Model:
    """As pydantic's models look from outside."""

    def __init__(self, name: str) -> None:
        self.name = name

    @classmethod
    def model_validate(cls, value: Any) -> "Model":
        if not isinstance(value, dict) or not isinstance(value.get("name"), str):
            raise ValueError("name must be text")
        return cls(value["name"])

    def model_dump(self, mode: str) -> dict[str, str]:
        return {"name": self.name}


@dataclasses.dataclass
class Parcel:
    """A dataclass with a model, and with others of itself."""

    label: Model
    parts: list["Parcel"] = dataclasses.field(default_factory=list)


class Row:
    """As an ORM's object looks from outside."""


def through_the_store(
    app: App[Any], task: Task[..., Any], *args: Any, **kwargs: Any
) -> tuple[list[Any], dict[str, Any]]:
    """What the handler is given of such a call."""
    task.enqueue(*args, **kwargs)
    lease = take_now(app, task)
    return task.decode_arguments(lease.payload, lease.codec)


def refusal(task: Task[..., Any], *args: Any, **kwargs: Any) -> InvalidArguments:
    with pytest.raises(InvalidArguments) as refused:
        task.enqueue(*args, **kwargs)
    assert refused.value.task == task.name
    return refused.value


# What arrives


def test_a_model_inside_a_dataclass_arrives(jobs: App[object]) -> None:
    @jobs.task
    def send(parcel: Parcel) -> None: ...

    (parcel,), _ = through_the_store(jobs, send, Parcel(Model("big"), [Parcel(Model("small"))]))
    assert (parcel.label.name, parcel.parts[0].label.name) == ("big", "small")


def test_the_split_of_positional_and_keyword_arguments_is_kept(jobs: App[object]) -> None:
    @jobs.task
    def resize(image: str, width: int = 800, *, quality: float = 1) -> None: ...

    assert through_the_store(jobs, resize, "cat.png") == (["cat.png"], {})
    assert through_the_store(jobs, resize, "cat.png", 3) == (["cat.png", 3], {})
    assert through_the_store(jobs, resize, image="cat.png", quality=0.5) == ([], {"image": "cat.png", "quality": 0.5})


def test_values_arrive_as_the_declared_types(jobs: App[object]) -> None:
    @jobs.task
    def everything(
        order: Order,
        at: datetime,
        price: Decimal,
        key: UUID,
        colour: Mode,
        tags: set[str],
        counts: dict[int, str],
        raw: bytes,
        maybe: Order | None = None,
    ) -> None: ...

    given = (
        Order(7, ["tea"]),
        datetime(2030, 1, 1, tzinfo=UTC),
        Decimal("1.10"),
        UUID(int=7),
        Mode.RED,
        {"a", "b"},
        {1: "one"},
        b"\x00\xff",
    )
    args, kwargs = through_the_store(jobs, everything, *given)
    assert (tuple(args), kwargs) == (given, {})


def test_plain_data_for_a_declared_type_is_as_good(jobs: App[object]) -> None:
    @jobs.task
    def ship(order: Order) -> None: ...

    plain: Any = {"number": 7, "items": ["tea"]}
    assert through_the_store(jobs, ship, plain) == ([Order(7, ["tea"])], {})


def test_models_that_dump_and_validate_themselves_are_accepted(jobs: App[object]) -> None:
    @jobs.task
    def greet(people: list[Model], first: Model) -> Model:
        return first

    args, _ = through_the_store(jobs, greet, [Model("ada")], Model("eve"))
    assert [type(args[0][0]), args[0][0].name, args[1].name] == [Model, "ada", "eve"]
    data = greet.encode_result(Model("bob"))
    assert greet.decode_result(data, "json").name == "bob"
    assert refusal(greet, [{"nmae": "ada"}], Model("eve")).field == "people[0]"


def test_hints_that_are_not_there_or_open_accept_anything_plain(jobs: App[object]) -> None:
    @jobs.task
    def loose(a, b: Any, c: object, d: dict[str, object]) -> None: ...  # type: ignore[no-untyped-def]

    assert through_the_store(jobs, loose, 1, [2], {"x": 3}, {"y": None})[0] == [1, [2], {"x": 3}, {"y": None}]


def test_a_function_of_any_number_of_arguments_is_checked_too(jobs: App[object]) -> None:
    @jobs.task
    def total(first: int, *rest: int, **named: str) -> None: ...

    assert through_the_store(jobs, total, 1, 2, 3, a="x") == ([1, 2, 3], {"a": "x"})
    assert refusal(total, 1, 2, "3").field == "rest[2]"
    assert refusal(total, 1, a=3).field == "a"


def test_hints_may_name_what_is_defined_further_down(jobs: App[object]) -> None:
    @jobs.task
    def later(ctx: "Context", value: "Later") -> None: ...  # type: ignore[name-defined]  # noqa: F821

    assert later.takes_context
    with pytest.raises(InvalidOption, match="Later"):
        later.draft(3)
    globals()["Later"] = int
    try:
        assert refusal(later, "three").field == "value"
    finally:
        del globals()["Later"]


# What is refused, before any write


@pytest.mark.parametrize(
    ("args", "kwargs", "field"),
    [
        ((), {}, "image"),
        ((7,), {}, "image"),
        (("a", "wide"), {}, "width"),
        (("a",), {"width": "wide"}, "width"),
        (("a",), {"wdith": 3}, "wdith"),
        (("a", 3, 4, 5), {}, ""),
        (("a",), {"image": "b"}, "image"),
        (("a",), {"order": {"number": 1, "items": ["x", 3]}}, "order.items[1]"),
        (("a",), {"order": Refund(3)}, "order"),
        (("a",), {"order": Row()}, "order"),
        (("a", True), {}, "width"),
        (("a\ud800",), {}, "image"),
    ],
)
def test_arguments_that_do_not_fit_are_refused_by_name(
    jobs: App[object], args: tuple[Any, ...], kwargs: dict[str, Any], field: str
) -> None:
    @jobs.task
    def resize(image: str, width: int = 800, order: Order | None = None) -> None: ...

    error = refusal(resize, *args, **kwargs)

    assert error.field == field
    assert isinstance(error, ValueError)
    assert jobs.control.queues() == []


def test_a_refusal_never_quotes_the_value(jobs: App[object]) -> None:
    @jobs.task
    def pay(kind: Literal["card", "cash"], colour: Mode, amount: int) -> None: ...

    secret = "hunter2"
    for args in ((secret, "red", 1), ("card", secret, 1), ("card", "red", secret)):
        assert secret not in str(refusal(pay, *args))


@pytest.mark.parametrize("value", [float("nan"), float("inf"), [1, float("nan")], {"a": float("-inf")}])
def test_nan_and_infinity_are_refused(jobs: App[object], value: Any) -> None:
    @jobs.task
    def keep(value: Any) -> None: ...

    assert refusal(keep, value).field.startswith("value")


def test_an_orm_object_is_refused_with_advice(jobs: App[object]) -> None:
    @jobs.task
    def ship(row: Any) -> None: ...

    assert "primary key" in str(refusal(ship, Row()))
    assert "primary key" in str(refusal(ship, {"row": [Row()]}))


def test_a_value_that_contains_itself_is_refused(jobs: App[object]) -> None:
    @jobs.task
    def keep(value: Any) -> None: ...

    loop: list[Any] = []
    loop.append(loop)
    refusal(keep, loop)


def test_a_payload_over_the_limit_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOLDFAST_LIMITS_PAYLOAD", "100")
    jobs = App("memory://")

    @jobs.task
    def keep(value: str) -> None: ...

    keep.enqueue("x" * 50)
    with pytest.raises(PayloadTooLarge) as refused:
        keep.enqueue("x" * 100)
    assert refused.value.limit == 100


def test_a_type_that_nothing_could_be_decoded_as_is_refused_at_declaration(jobs: App[object]) -> None:
    with pytest.raises(InvalidOption) as refused:

        @jobs.task
        def either(thing: Order | Refund) -> None: ...

    assert refused.value.option == "thing"


# The context


def test_a_context_is_injected_only_as_the_first_parameter(jobs: App[object]) -> None:
    @jobs.task
    def first(ctx: Context[Any], n: int) -> None: ...

    @jobs.task
    def none(n: int) -> None: ...

    assert (first.takes_context, none.takes_context) == (True, False)
    assert through_the_store(jobs, first, 3) == ([3], {})
    with pytest.raises(InvalidOption, match="first") as refused:

        @jobs.task
        def second(n: int, ctx: AlsoContext) -> None: ...

    assert refused.value.option == "ctx"


# What is stored may be for another version, or garbage


@pytest.mark.parametrize("payload", [b'[["a",3],{}]', b'[[],{"old":1}]', b'[["x"],{}]', b"[]", b"{}", b"3", b"[[],{}]"])
def test_a_stored_call_that_does_not_fit_is_refused(jobs: App[object], payload: bytes) -> None:
    @jobs.task
    def keep(value: int) -> None: ...

    with pytest.raises(InvalidArguments):
        keep.decode_arguments(payload, "json")


@pytest.mark.parametrize("payload", [b"", b"\xff", b"[[", b"nonsense"])
def test_stored_bytes_that_are_no_call_are_corrupt(jobs: App[object], payload: bytes) -> None:
    @jobs.task
    def keep(value: int) -> None: ...

    with pytest.raises(CorruptRecord):
        keep.decode_arguments(payload, "json")


# Results


def test_a_result_comes_back_as_the_declared_type(jobs: App[object]) -> None:
    @jobs.task
    def make() -> Order:
        return Order(1, [])

    assert make.decode_result(make.encode_result(Order(7, ["tea"])), "json") == Order(7, ["tea"])
    with pytest.raises(InvalidArguments):
        make.encode_result(object())


def test_a_result_over_the_limit_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOLDFAST_LIMITS_RESULT", "100")
    jobs = App("memory://")

    @jobs.task
    def make() -> str:
        return ""

    with pytest.raises(PayloadTooLarge):
        make.encode_result("x" * 200)


# Codecs


class ReversedCodec:
    """A custom codec that ignores the requested type."""

    name = "reversed"

    def encode(self, value: object) -> bytes:
        return MsgpackCodec().encode(value)[::-1]

    def decode(self, data: bytes, type: Any = Any) -> Any:
        return MsgpackCodec().decode(data[::-1])


@pytest.mark.parametrize("codec", [MsgpackCodec(), ReversedCodec()], ids=lambda codec: codec.name)
def test_another_codec_carries_payload_and_result(codec: Codec) -> None:
    jobs = App("memory://", codec=codec)

    @jobs.task
    def ship(order: Order, counts: dict[int, str]) -> Order:
        return order

    given = (Order(7, ["tea"]), {1: "a"})
    args, _ = through_the_store(jobs, ship, *given)
    assert tuple(args) == given
    assert refusal(ship, Order(7, ["tea"]), {1: 2}).field.startswith("counts")
    assert ship.decode_result(ship.encode_result(Order(1, [])), codec.name) == Order(1, [])


def test_a_task_may_have_a_codec_of_its_own(jobs: App[object]) -> None:
    @jobs.task(codec=ReversedCodec())
    def ship(order: Order) -> Order:
        return order

    job = ship.draft(Order(1, [])).job
    assert job.codec == "reversed"
    assert ship.decode_arguments(job.payload, "reversed") == ([Order(1, [])], {})
    plain = b'[[{"number":2,"items":[]}],{}]'
    assert ship.decode_arguments(plain, "json") == ([Order(2, [])], {})
    assert ship.encode_result(Order(2, []), "json") == b'{"number":2,"items":[]}'


class JsonWithMsgpackResults(JsonCodec):
    name = "json-msgpack"
    for_results = MsgpackCodec()


@pytest.mark.parametrize("place", ["app", "task"])
async def test_results_may_have_a_codec_of_their_own(place: str) -> None:
    codec = JsonWithMsgpackResults()
    jobs = App("memory://", codec=codec if place == "app" else None)

    @jobs.task(codec=codec)
    def picture_by_task(order: Order) -> bytes:
        return bytes(1_000)

    @jobs.task
    def picture(order: Order) -> bytes:
        return bytes(1_000)

    async with jobs.worker():
        handle = await (picture if place == "app" else picture_by_task).aenqueue(Order(1, []))
        assert await handle.aresult(timeout=20) == bytes(1_000)
        (stored,) = (await jobs.engine.get(JobKey(handle.queue, handle.id))).jobs
        assert stored is not None
        assert stored.result is not None
        assert (stored.codec, stored.payload[:2]) == ("json-msgpack", b"[[")
        assert len(stored.result) < 1_010  # as JSON it would be base64
        if place == "app":
            assert await jobs.client.handle(handle.id).aresult(timeout=0) == bytes(1_000)


# Ids from content


def test_equal_payloads_get_equal_ids() -> None:
    assert content_id({"a": 1, "b": [2]}) == content_id({"b": [2], "a": 1})
    assert content_id(Order(7, [])) != content_id(Order(8, []))
    assert content_id({1, 2, 3}, prefix="set-").startswith("set-")
    with pytest.raises(InvalidArguments):
        content_id(object())
    with pytest.raises(InvalidArguments):
        content_id([float("nan")])
