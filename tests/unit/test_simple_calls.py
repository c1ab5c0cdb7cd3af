"""A call with simple arguments is encoded without a check of the result: as if it had been checked."""

import sys
from typing import Any

import pytest

from holdfast.codec import JsonCodec, Limits, MsgpackCodec
from holdfast.declare.signature import Signature
from holdfast.errors import InvalidArguments, PayloadTooLarge

CODECS = [JsonCodec, MsgpackCodec]


def handler(text: str, number: int, flag: bool, anything: Any = None) -> None: ...


def encoded(codec: Any, *args: Any) -> bytes:
    return Signature(handler, "handler").encode(codec, args, {})


@pytest.mark.parametrize("make", CODECS)
@pytest.mark.parametrize("args", [("a", 1, True), ("ä\0", -(2**63), False), ("", 2**64 - 1, True, [1])])
def test_a_call_with_simple_arguments_has_the_same_bytes_as_a_checked_one(make: Any, args: Any) -> None:
    assert encoded(make(), *args) == make().encode([args, {}])


@pytest.mark.parametrize("make", CODECS)
@pytest.mark.parametrize(
    "args", [("a", True, True), ("a", 1, 1), ("a", 1.5, True), (None, 1, True), ("\ud800", 1, True)]
)
def test_an_argument_of_another_type_is_refused_beside_simple_ones(make: Any, args: Any) -> None:
    with pytest.raises(InvalidArguments):
        encoded(make(), *args)


@pytest.mark.parametrize("make", CODECS)
def test_the_limit_of_the_size_holds_for_simple_arguments(make: Any) -> None:
    with pytest.raises(PayloadTooLarge):
        encoded(make(Limits(size=50)), "x" * 100, 1, True)


@pytest.mark.parametrize("make", CODECS)
def test_the_limit_of_the_depth_holds_for_simple_arguments(make: Any) -> None:
    with pytest.raises(InvalidArguments):
        encoded(make(Limits(depth=1)), "x", 1, True)


def test_a_number_with_more_digits_than_a_parser_takes_is_refused() -> None:
    digits = sys.get_int_max_str_digits()
    sys.set_int_max_str_digits(0)
    try:
        with pytest.raises(Exception, match=r"[Ii]nteger|number|digits"):
            encoded(JsonCodec(), "x", 10**5_000, True)
    finally:
        sys.set_int_max_str_digits(digits)


@pytest.mark.parametrize("kind", CODECS)
def test_a_codec_that_extends_ours_encodes_simple_arguments_itself(kind: Any) -> None:
    class Secret(kind):  # type: ignore[misc]
        def encode(self, value: object) -> bytes:
            return super().encode(value)[::-1]  # type: ignore[no-any-return]

        def reread(self, data: bytes, type: Any = Any) -> Any:
            return super().reread(data[::-1], type)

    assert encoded(Secret(), "a", 1, True) == kind().encode([("a", 1, True), {}])[::-1]
