"""Sizes that an App can read, and values that its errors do not show."""

from enum import StrEnum

import pytest

from holdfast import App, InvalidArguments
from holdfast.codec import MsgpackCodec
from holdfast.model.states import JobState
from holdfast.operate.searching import _read


def test_a_result_of_another_codec_may_be_larger_than_a_payload(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOLDFAST_LIMITS_PAYLOAD", "1000")
    monkeypatch.setenv("HOLDFAST_LIMITS_RESULT", "5000")
    stored = MsgpackCodec().encode("x" * 3_000)
    assert App[object]("memory://")._store.codec_named("msgpack").decode(stored) == "x" * 3_000


class Colour(StrEnum):
    RED = "red"


def test_a_refused_argument_of_a_function_with_any_number_of_them_is_not_quoted() -> None:
    jobs: App[object] = App("memory://")

    @jobs.task
    def paint(*colours: Colour) -> None: ...

    with pytest.raises(InvalidArguments) as refused:
        paint.enqueue("my secret")  # type: ignore[arg-type]  # that is the mistake
    assert "secret" not in str(refused.value)


def test_a_cursor_in_a_queue_that_has_gone_goes_on_with_the_next_queue() -> None:
    pairs = [(queue, state) for queue in ("a", "c") for state in (JobState.QUEUED, JobState.FAILED)]
    assert _read('["b","queued",7]', pairs) == (2, None)
