"""Values become bytes and come back; whatever else the bytes hold, they do no harm."""

import doctest
import json
import math
import struct
import sys
from dataclasses import dataclass
from datetime import UTC, date, datetime
from decimal import Decimal
from enum import StrEnum
from typing import Annotated, Any
from uuid import UUID

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast import codec
from holdfast.codec import Codec, JsonCodec, Limits, MsgpackCodec, codec_for
from holdfast.errors import CorruptRecord, InvalidArguments, InvalidOption, PayloadTooLarge

JSON, MSGPACK = JsonCodec(), MsgpackCodec()
both = pytest.mark.parametrize("codec", [JSON, MSGPACK], ids=["json", "msgpack"])

TEXT = st.text(st.characters(codec="utf-8"), max_size=40)
FINITE = st.floats(allow_nan=False, allow_infinity=False)
PLAIN = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | FINITE | TEXT,
    lambda inner: st.lists(inner, max_size=20) | st.dictionaries(TEXT, inner, max_size=20),
    max_leaves=60,
)


@dataclass
class Transfer:
    account: str
    cents: int


class Odd(StrEnum):
    A = "a"


def nested(depth: int) -> Any:
    value: Any = 0
    for _ in range(depth):
        value = [value]
    return value


def test_the_examples_in_the_docstrings_hold() -> None:
    assert doctest.testmod(codec).failed == 0


# --- There and back --------------------------------------------------------------------------------------------------


@both
@given(value=PLAIN)
def test_plain_data_comes_back_as_it_went_in(codec: Codec, value: object) -> None:
    assert codec.decode(codec.encode(value)) == value


@given(PLAIN)
def test_json_is_json_to_everyone_else(value: object) -> None:
    assert json.loads(JSON.encode(value)) == value


@both
@pytest.mark.parametrize(
    ("value", "kind"),
    [
        (Transfer("alice", 5), Transfer),
        ([Transfer("alice", 5)], list[Transfer]),
        (datetime(2030, 1, 2, 3, 4, 5, 678901, tzinfo=UTC), datetime),
        ({"at": [datetime(2030, 1, 2, tzinfo=UTC)], "raw": b"\x00\xff"}, dict[str, Any]),
        (date(2030, 1, 2), date),
        (Decimal("1.10"), Decimal),
        (UUID(int=7), UUID),
        (Odd.A, Odd),
        ({1, 2}, set[int]),
        (b"\x00\xff", bytes),
        ({1: "a"}, dict[int, str]),
        ((1, "a"), tuple[int, str]),
        ([1], Annotated[list[int], msgspec.Meta(extra={"a": []})]),
    ],
    ids=str,
)
def test_a_typed_value_comes_back_as_its_type(codec: Codec, value: object, kind: Any) -> None:
    back = codec.decode(codec.encode(value), kind)
    if kind == dict[str, Any]:  # what has no declared type comes back as plain data
        assert set(back) == {"at", "raw"}
    else:
        assert back == value


@both
def test_none_is_a_value(codec: Codec) -> None:
    assert codec.decode(codec.encode(None)) is None


@both
def test_subclasses_of_text_and_numbers_go_in_as_what_they_are_underneath(codec: Codec) -> None:
    safe = type("Safe", (str,), {})("x")
    whole, real = type("Whole", (int,), {})(3), type("Real", (float,), {})(1.5)
    assert codec.decode(codec.encode({safe: [safe, whole, real]})) == {"x": ["x", 3, 1.5]}


def test_json_holds_integers_of_any_usual_size() -> None:
    assert JSON.decode(JSON.encode(10**4000)) == 10**4000


# --- What cannot go in -----------------------------------------------------------------------------------------------


@both
@pytest.mark.parametrize(
    ("value", "field", "kind"),
    [
        (object(), "", "object"),
        ({"a": {"b": [1, object()]}}, "a.b[1]", "object"),
        ([Transfer("alice", object())], "[0].cents", "object"),  # type: ignore[arg-type]
        ({"a": "\ud800"}, "a", "str"),
        ({"f": print}, "f", "builtin_function_or_method"),
        ({"c": 1j}, "c", "complex"),
        ({"t": Transfer}, "t", "type"),
        ({"k" * 500: object()}, "k" * 60 + "...", "object"),
        ({"\ud800": 1}, "(key)", "str"),
    ],
    ids=range(9),
)
def test_what_cannot_be_stored_is_refused_with_its_type_and_place(
    codec: Codec, value: object, field: str, kind: str
) -> None:
    with pytest.raises(InvalidArguments) as caught:
        codec.encode(value)
    assert caught.value.field == field
    assert kind in str(caught.value)
    assert field in str(caught.value)
    assert str(caught.value).encode()


@both
@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize(
    "wrap", [lambda x: x, lambda x: {"a": [None, x]}, lambda x: {x: 1}, lambda x: Transfer("a", x)]
)
def test_nan_and_infinity_are_refused(codec: Codec, bad: float, wrap: Any) -> None:
    with pytest.raises(InvalidArguments, match="NaN"):
        codec.encode(wrap(bad))


def test_the_place_of_a_nan_is_named() -> None:
    with pytest.raises(InvalidArguments) as caught:
        JSON.encode({"null": None, "big": 2**80, "a": [0.5, {"b": math.nan}]})
    assert caught.value.field == "a[1].b"


@both
@pytest.mark.parametrize("harmless", ["null", 'nan"', [None, 1.5], ["inf", None, 1e308, -1e308], [None, 0xCB7F]])
def test_what_only_looks_like_a_nan_is_stored(codec: Codec, harmless: object) -> None:
    assert codec.decode(codec.encode(harmless)) == harmless


@both
def test_a_value_that_contains_itself_is_refused(codec: Codec) -> None:
    value: list[Any] = []
    value.append(value)
    with pytest.raises(InvalidArguments, match="contains itself"):
        codec.encode(value)


@both
@pytest.mark.parametrize("depth", [65, 100, 5000])
def test_a_value_too_deep_to_be_read_again_is_refused(codec: Codec, depth: int) -> None:
    with pytest.raises(InvalidArguments, match="nested"):
        codec.encode(nested(depth))


@both
def test_a_value_of_the_greatest_depth_comes_back(codec: Codec) -> None:
    assert codec.decode(codec.encode(nested(64))) == nested(64)


@both
def test_an_integer_beyond_the_format_is_refused(codec: Codec) -> None:
    with pytest.raises(InvalidArguments, match="int"):
        codec.encode({"a": 10**5000})


def test_an_extension_value_is_refused() -> None:
    with pytest.raises(InvalidArguments):
        MSGPACK.encode(msgspec.msgpack.Ext(5, b"x"))


@both
def test_a_value_larger_than_the_limit_is_refused(codec: Codec) -> None:
    with pytest.raises(PayloadTooLarge) as caught:
        codec.encode("x" * 1_048_577)
    assert caught.value.size > caught.value.limit == 1_048_576


@both
def test_a_message_never_quotes_the_value(codec: Codec) -> None:
    with pytest.raises(InvalidArguments) as caught:
        codec.encode({"password": "hunter2", "bad": object()})
    assert "hunter2" not in str(caught.value)


# --- What cannot come out --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", [JsonCodec, MsgpackCodec])
def test_size_is_checked_before_the_bytes_are_read(kind: type[JsonCodec | MsgpackCodec]) -> None:
    with pytest.raises(PayloadTooLarge):
        kind(Limits(size=10)).decode(b"\xc1 no format" * 2)


@both
@given(data=st.binary(max_size=200))
def test_any_bytes_are_a_value_or_a_corrupt_record(codec: Codec, data: bytes) -> None:
    try:
        value = codec.decode(data)
    except CorruptRecord:
        return
    assert codec.decode(codec.encode(value)) == value


@both
@given(value=PLAIN, data=st.data())
def test_damaged_bytes_are_a_value_or_a_corrupt_record(codec: Codec, value: object, data: st.DataObject) -> None:
    stored = bytearray(codec.encode(value))
    for _ in range(data.draw(st.integers(1, 3))):
        stored[data.draw(st.integers(0, len(stored) - 1))] = data.draw(st.integers(0, 255))
    try:
        codec.decode(bytes(stored[: data.draw(st.integers(0, len(stored)))]))
    except CorruptRecord:
        return


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"[1,2",
        b"[1,]",
        b"1 2",
        b'"\xff"',
        b'"\xed\xa0\x80"',
        b'"\\ud800"',
        b"NaN",
        b"[-Infinity]",
        b"1e999",
        b"1" * 5000,
        b'{"a":' * 65 + b"1" + b"}" * 65,
        b"[" * 500_000,
        b"]" * 100 + b"[" * 100,
        b"\xef\xbb\xbf1",
    ],
    ids=range(15),
)
def test_bytes_that_are_no_sound_json_are_a_corrupt_record(data: bytes) -> None:
    with pytest.raises(CorruptRecord):
        JSON.decode(data)


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\xc1",
        b"\x01\x01",
        b"\xa1\xff",
        b"\xa5abc",
        b"\xdb\xff\xff\xff\xffabc",
        b"\xc6\x7f\xff\xff\xffabc",
        b"\xdd\xff\xff\xff\xff",
        b"\xdf\x7f\xff\xff\xff\x01",
        b"\xdd\x00\x00\x00\x05" + b"\xdd\x00\x00\x00\x04" * 3 + b"\x01",
        b"\x91" * 65 + b"\xc0",
        b"\x91" * 500_000 + b"\xc0",
        b"\x81\xa1a" * 65 + b"\xc0",
        b"\xd4\x05a",
        b"\xd6\xff\x00\x00\x00\x00",
        b"\xc9\x7f\xff\xff\xff\x05",
        b"\xcb" + struct.pack(">d", math.nan),
        b"\xca" + struct.pack(">f", -math.inf),
        b"\x81\x80\x01",
    ],
    ids=range(19),
)
def test_bytes_that_are_no_sound_msgpack_are_a_corrupt_record(data: bytes) -> None:
    with pytest.raises(CorruptRecord):
        MSGPACK.decode(data)


@given(st.binary(max_size=200))
def test_the_walk_through_msgpack_agrees_with_the_parser(data: bytes) -> None:
    problem = codec._msgpack_problem(data, 64)
    try:
        msgspec.msgpack.decode(data)
        refused = ""
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        refused = str(error)
    if not refused:
        assert problem in ("", codec._EXTENSION, "NaN and infinity are not accepted")
    elif "utf-8" not in refused and "hashable" not in refused:  # the walk reads no text and compares no keys
        assert problem


def slow_depth(data: bytes) -> int:
    """The depth of sound JSON, by the standard library."""

    def of(value: Any) -> int:
        inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else None
        return 0 if inner is None else 1 + max(map(of, inner), default=0)

    return of(json.loads(data))


@given(PLAIN, st.integers(0, 6))
def test_the_scan_for_depth_agrees_with_the_parser(value: object, limit: int) -> None:
    data = json.dumps([value, '[[[["{{{{\\"'], ensure_ascii=False).encode()
    assert codec._json_depth_over(data, limit) == (slow_depth(data) > limit)


def test_brackets_inside_text_are_no_depth() -> None:
    text = '[{"\\' * 500
    assert JSON.decode(JSON.encode([text])) == [text]


@pytest.mark.parametrize("bomb", [b'"' + b'\\"' * 520_000, b'"\\' * 500_000, b'["' * 500_000, b'[{"' * 300_000])
def test_hostile_quotes_are_read_once(bomb: bytes) -> None:
    with pytest.raises(CorruptRecord):
        JSON.decode(bomb)  # once per quote would take minutes


def test_a_bomb_does_not_deepen_the_stack() -> None:
    limit = sys.getrecursionlimit()
    sys.setrecursionlimit(200)
    try:
        with pytest.raises(CorruptRecord):
            JSON.decode(b"[" * 1_000_000)
        with pytest.raises(CorruptRecord):
            MSGPACK.decode(b"\x91" * 1_000_000)
    finally:
        sys.setrecursionlimit(limit)


@both
def test_sound_data_of_another_type_is_refused_by_field(codec: Codec) -> None:
    data = codec.encode([{"account": "alice", "cents": 1}, {"account": "bob", "cents": "two"}])
    with pytest.raises(InvalidArguments) as caught:
        codec.decode(data, list[Transfer])
    assert caught.value.field == "[1].cents"


@both
def test_a_refusal_does_not_quote_what_it_found(codec: Codec) -> None:
    with pytest.raises(InvalidArguments) as caught:
        codec.decode(codec.encode({"a": ["it's hunter2"]}), dict[str, list[Odd]])
    assert "Invalid enum value - at" in str(caught.value)
    assert caught.value.__cause__ is None


# --- Which codec -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["json", "msgpack"])
def test_a_codec_is_found_by_the_name_it_stores(name: str) -> None:
    found = codec_for(name)
    assert found.name == name
    assert isinstance(found, Codec)


def test_a_codec_of_the_users_own_is_found_first() -> None:
    class Mine(JsonCodec):
        name = "mine"

    mine = Mine()
    assert codec_for("mine", [mine]) is mine


@pytest.mark.parametrize("name", ["pickle", "os.system", "", "JSON"])
def test_an_unknown_codec_is_refused(name: str) -> None:
    with pytest.raises(InvalidOption) as caught:
        codec_for(name)
    assert caught.value.option == "codec"
