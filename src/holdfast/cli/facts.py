"""Where the jobs are, and what is promised of them, in words."""

from dataclasses import dataclass
from typing import Any

from holdfast.app import App

CLASSES = {
    "durable": "durable (every commit synced)",
    "fast": "fast (commits survive a crash of the process, not of the machine)",
    "none": "none (nothing is synced)",
}


@dataclass(frozen=True, slots=True)
class StoreFacts:
    """Where the jobs are, and what is promised of them."""

    engine: str
    place: str
    durability: str

    @property
    def promise(self) -> str:
        return CLASSES[self.durability]


def facts_of(app: App[Any]) -> StoreFacts:
    return StoreFacts(app.engine.scheme, app.address, app.durability)
