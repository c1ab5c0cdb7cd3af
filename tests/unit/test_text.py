"""Names are checked, free text is made to fit, exceptions become bounded text."""

import doctest
import tracemalloc
from enum import StrEnum
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.errors import GiveUp, InvalidOption
from holdfast.model import text
from holdfast.model.text import ERROR_BYTES, ErrorInfo, check_metadata, check_name, clean, describe

ANY_TEXT = st.text(st.characters(codec=None), max_size=400)  # lone surrogates and NUL included


def size_of(info: ErrorInfo) -> int:
    return sum(len(part.encode()) for part in (info.type, info.message, info.traceback))


def raised(error: BaseException) -> BaseException:
    try:
        raise error
    except BaseException as caught:
        return caught


def test_the_examples_in_the_docstrings_hold() -> None:
    assert doctest.testmod(text).failed == 0


@pytest.mark.parametrize("name", ["a", "emails", "kunde:42", "ü" * 200, "😀" * 200, " ", "../x", "a\nb"])
def test_a_name_that_every_engine_can_hold_is_returned_as_it_is(name: str) -> None:
    assert check_name(name, "queue") == name


@pytest.mark.parametrize("name", ["", "x" * 201, "a\0b", "\ud800", "x\udfff", b"x", None, 5])
def test_a_name_that_some_engine_cannot_hold_is_refused_by_field(name: Any) -> None:
    with pytest.raises(InvalidOption) as caught:
        check_name(name, "lane")
    assert caught.value.option == "lane"
    assert "lane" in str(caught.value)


def test_a_name_given_as_an_enum_becomes_plain_text() -> None:
    class Queue(StrEnum):
        EMAILS = "emails"

    assert type(check_name(Queue.EMAILS, "queue")) is str


@given(ANY_TEXT)
def test_a_name_is_either_refused_or_storable(name: str) -> None:
    try:
        accepted = check_name(name, "id")
    except InvalidOption:
        return
    assert accepted == name
    assert 1 <= len(accepted) <= 200
    assert len(accepted.encode()) <= 800
    assert "\0" not in accepted


@given(ANY_TEXT, st.integers(-5, 500))
def test_cleaned_text_can_be_stored_and_keeps_to_its_limit(dirty: str, limit: int) -> None:
    result = clean(dirty, limit)
    assert len(result.encode()) <= max(limit, 0)
    assert "\0" not in result


@given(ANY_TEXT, st.integers(0, 500))
def test_cleaning_twice_is_cleaning_once(dirty: str, limit: int) -> None:
    once = clean(dirty, limit)
    assert clean(once, limit) == once


@given(st.text(st.characters(codec="utf-8", exclude_characters="\0"), max_size=100))
def test_text_that_can_be_stored_and_fits_is_left_alone(good: str) -> None:
    assert clean(good, 400) == good


def test_what_cannot_be_stored_is_replaced_not_dropped() -> None:
    assert clean("a\0b\ud800c", 100) == "a\ufffdb\ufffdc"


def test_a_cut_never_splits_a_character() -> None:
    assert clean("😀😀", 7) == "😀"


def test_text_with_methods_of_its_own_is_cleaned_as_what_it_holds() -> None:
    class Odd(str):
        __slots__ = ()

        def __getitem__(self, key: Any) -> str:
            raise RuntimeError

    assert clean(Odd("text"), 100) == "text"


def test_metadata_is_copied() -> None:
    given_by_user = {"trace": "1"}
    checked = check_metadata(given_by_user)
    assert checked == given_by_user
    assert checked is not given_by_user


def test_metadata_of_exactly_four_kibibytes_is_accepted() -> None:
    assert len(check_metadata({"k": "v" * 4095})) == 1


@pytest.mark.parametrize(
    "bad",
    [
        {"k": "v" * 4096},
        {f"k{n}": "ü" * 100 for n in range(30)},
        {"k": 1},
        {1: "v"},
        {"": "v"},
        {"k": "\0"},
        {"\ud800": "v"},
        [("k", "v")],
        None,
    ],
)
def test_metadata_that_is_too_large_or_no_storable_text_is_refused(bad: Any) -> None:
    with pytest.raises(InvalidOption) as caught:
        check_metadata(bad)
    assert caught.value.option == "metadata"


def test_an_exception_is_described_by_dotted_name_message_and_traceback() -> None:
    info = describe(raised(KeyError("missing")))
    assert (info.type, info.message) == ("builtins.KeyError", "'missing'")
    assert "test_text.py" in info.traceback
    assert info.traceback.rstrip().endswith("KeyError: 'missing'")


def test_an_interrupt_is_described_too() -> None:
    assert describe(raised(GiveUp("card expired"))).type == "holdfast.errors.GiveUp"


def test_a_nested_class_keeps_its_qualified_name() -> None:
    class Inner(Exception):
        pass

    assert describe(Inner()).type.endswith("<locals>.Inner")


def test_the_traceback_holds_no_local_variables() -> None:
    def handler() -> None:
        password = "hunter" + "2"
        raise ValueError(len(password))

    with pytest.raises(ValueError, match="7") as caught:
        handler()
    assert "hunter2" not in describe(caught.value).traceback


def test_the_cause_of_an_exception_is_in_the_traceback() -> None:
    outer = RuntimeError("outer")
    outer.__cause__ = raised(KeyError("inner"))
    assert "KeyError: 'inner'" in describe(raised(outer)).traceback


class UnprintableError(Exception):
    def __init__(self, failure: BaseException) -> None:
        self.failure = failure

    def __str__(self) -> str:
        raise self.failure

    __repr__ = __str__


@pytest.mark.parametrize("failure", [ValueError("no"), SystemExit(1), GiveUp("no"), RecursionError()])
def test_an_exception_that_cannot_say_its_message_is_still_described(failure: BaseException) -> None:
    info = describe(raised(UnprintableError(failure)))
    assert info.type.endswith("UnprintableError")
    assert type(failure).__name__ in info.message
    assert "test_text.py" in info.traceback


def test_a_message_that_is_no_text_is_still_described() -> None:
    class Wrong(Exception):
        def __str__(self) -> str:
            return None  # type: ignore[return-value]  # noqa: PLE0307

    assert "TypeError" in describe(raised(Wrong())).message


def test_an_exception_with_a_false_name_is_still_described() -> None:
    odd = type("Odd" * 1000, (Exception,), {"__module__": "a\0b\ud800"})
    info = describe(raised(odd("x")))
    assert info.type.startswith("a\ufffdb\ufffd.Odd")
    assert size_of(info) <= ERROR_BYTES


def test_a_huge_message_is_cut_in_all_parts() -> None:
    assert size_of(describe(raised(ValueError("ü" * 1_000_000)))) <= ERROR_BYTES


def test_nul_and_surrogates_are_replaced_in_all_parts() -> None:
    info = describe(raised(ValueError("a\0b\ud800")))
    assert "\0" not in info.message + info.traceback
    assert (info.message + info.traceback).encode()


def test_a_cause_that_leads_back_to_itself_ends() -> None:
    first, second = ValueError("first"), ValueError("second")
    first.__cause__, second.__cause__ = second, first
    assert "first" in describe(raised(first)).traceback


def test_a_chain_of_many_causes_keeps_both_ends() -> None:
    error: BaseException = ValueError("the root of it")
    for number in range(3_000):
        outer = ValueError(f"number {number}")
        outer.__cause__ = error
        error = outer
    info = describe(raised(error))
    assert size_of(info) <= ERROR_BYTES
    assert info.traceback.startswith("ValueError: the root of it")
    assert info.traceback.rstrip().endswith("number 2999")
    assert "left out" in info.traceback


def test_endless_recursion_is_described() -> None:
    def deeper() -> None:
        deeper()

    with pytest.raises(RecursionError) as caught:
        deeper()
    info = describe(caught.value)
    assert info.type == "builtins.RecursionError"
    assert size_of(info) <= ERROR_BYTES


def test_a_group_of_exceptions_shows_its_members() -> None:
    info = describe(raised(ExceptionGroup("both", [ValueError("one"), KeyError("two")])))
    assert "ValueError: one" in info.traceback
    assert "KeyError: 'two'" in info.traceback


@pytest.mark.parametrize("width", [1, 3])
def test_a_group_nested_without_measure_is_described(width: int) -> None:
    group: Exception = ValueError("core")
    for number in range(500):
        group = ExceptionGroup(f"level {number}", [group] * width)
    info = describe(raised(group))
    assert "level 499" in info.traceback
    assert size_of(info) <= ERROR_BYTES


def test_a_group_of_very_many_exceptions_is_described() -> None:
    info = describe(raised(ExceptionGroup("all", [ValueError(str(n)) for n in range(10_000)])))
    assert "too many members" in info.traceback


def test_describing_a_huge_message_takes_little_memory_beside_it() -> None:
    error = raised(ValueError("x" * 20_000_000))
    tracemalloc.start()
    try:
        describe(error)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 60_000_000


@given(ANY_TEXT)
def test_any_message_gives_a_bounded_and_storable_description(message: str) -> None:
    info = describe(ValueError(message))
    assert size_of(info) <= ERROR_BYTES
    assert "\0" not in info.type + info.message + info.traceback
