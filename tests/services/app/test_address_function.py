"""An App whose address is a function: it is called at each use, and another answer opens another store."""

from pathlib import Path

import pytest

from holdfast import App, InvalidOption, JobNotFound
from holdfast.testing import harness


class Address:
    """An address that a test changes."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.name = "first"

    def __call__(self) -> str:
        return f"sqlite:///{self._folder}/{self.name}.db"


def test_another_answer_opens_another_store(tmp_path: Path) -> None:
    address = Address(tmp_path)
    jobs: App[object] = App(address)

    @jobs.task
    def resize(image: str) -> str:
        return image

    first = resize.enqueue("cat.png")
    address.name = "second"
    assert jobs.address == f"{tmp_path}/second.db"
    with pytest.raises(JobNotFound):
        jobs.control.get(first.id)
    second = resize.enqueue("dog.png")
    assert jobs.control.get(second.id).state == "queued"
    address.name = "first"
    assert jobs.control.get(first.id).state == "queued"
    jobs.close()


def test_making_such_an_app_does_not_call_the_function() -> None:
    def fail() -> str:
        raise AssertionError("called")

    assert repr(App(fail)) == "<App with 0 tasks>"


def test_the_test_kit_replaces_the_store_of_such_an_app(tmp_path: Path) -> None:
    address = Address(tmp_path)
    jobs: App[object] = App(address)

    @jobs.task
    def resize(image: str) -> str:
        return image

    with harness(jobs) as kit:
        handle = resize.enqueue("cat.png")
        kit.drain()
        assert handle.result() == "cat.png"
    assert list(tmp_path.iterdir()) == []


def test_an_address_that_is_neither_text_nor_a_function_is_refused() -> None:
    with pytest.raises(InvalidOption, match="url"):
        App(7)  # type: ignore[arg-type]
