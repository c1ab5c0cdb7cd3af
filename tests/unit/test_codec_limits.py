"""What a codec stores it can read, and what it has learned about a type it keeps."""

from datetime import UTC, datetime

import pytest

from holdfast.codec import JsonCodec, Limits, MsgpackCodec
from holdfast.errors import PayloadTooLarge


def test_a_date_that_is_longer_as_text_counts_with_that_length() -> None:
    """MessagePack would store it as an extension of 10 bytes."""
    with pytest.raises(PayloadTooLarge):
        MsgpackCodec(Limits(size=15)).encode(datetime(2026, 1, 1, tzinfo=UTC))


def test_a_decoder_is_made_once_for_each_type() -> None:
    codec = JsonCodec()
    assert codec._decoder(dict[str, int]) is codec._decoder(dict[str, int])
