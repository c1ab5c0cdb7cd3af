"""The App of the harness tests, and a harness for it."""

from collections.abc import Iterator

import pytest
from shop_app import Shop

from holdfast.testing import Harness, harness


@pytest.fixture
def shop() -> Shop:
    return Shop()


@pytest.fixture
def h(shop: Shop) -> Iterator[Harness]:
    with harness(shop.jobs) as made:
        yield made
