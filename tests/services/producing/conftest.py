"""What is tested here does not depend on the engine."""

import pytest

from holdfast import App


@pytest.fixture
def jobs() -> App[object]:
    return App("memory://")
