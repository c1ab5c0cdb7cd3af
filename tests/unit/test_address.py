"""No password of an address is shown, whatever characters it contains."""

import pytest

from holdfast import App
from holdfast.engines import engine_class, open_engine
from holdfast.errors import ConfigError
from holdfast.model.address import mask_password, without_login

SECRETS = ["se/cret", "se#cret", "se?cret", "se@cret", "se:cret", "se/c@r?e#t", "secret", "[secret"]


@pytest.mark.parametrize("secret", SECRETS)
def test_a_password_is_masked_before_the_address_is_parsed(secret: str) -> None:
    url = f"postgresql://ada:{secret}@db.example:5432/shop"
    assert mask_password(url) == "postgresql://ada:***@db.example:5432/shop"
    assert without_login(url) == "postgresql://db.example:5432/shop"


@pytest.mark.parametrize("secret", SECRETS)
@pytest.mark.parametrize("scheme", ["postgresql", "postgresql+psycopg", "sqlite", "unknown"])
async def test_no_error_and_no_shown_address_contains_a_password(scheme: str, secret: str) -> None:
    url = f"{scheme}://ada:{secret}@127.0.0.1:1/shop"
    shown = []
    try:
        shown.append(App(url).address)
    except Exception as error:
        shown.append(f"{error!r} {error.__cause__!r}")
    try:
        engine = open_engine(url)
        shown.append(getattr(engine, "place", ""))
        await engine.open()
    except Exception as error:
        shown.append(f"{error!r} {error.__cause__!r}")
    assert shown
    assert not [text for text in shown if "cret" in text]


def test_a_password_that_ends_the_address_early_is_refused_with_advice() -> None:
    with pytest.raises(ConfigError, match="Write them as %2F, %23 and %3F") as refused:
        open_engine("postgresql://ada:se/cret@db.example/shop")
    assert "cret" not in str(refused.value)


@pytest.mark.parametrize("scheme", ["postgresql", "redis", "rediss", "redis+sentinel"])
@pytest.mark.parametrize(
    "rest", ["ada:secret/shop", "ada:se/cret", "ada:secret", ":secret/0", "ada:secret@[::1/0", "ada:123456/0"]
)
def test_an_address_without_a_host_is_refused_and_its_password_is_masked(scheme: str, rest: str) -> None:
    with pytest.raises(ConfigError, match=r"\*\*\*.* cannot be read: its port is no number") as refused:
        open_engine(f"{scheme}://{rest}")
    shown = f"{refused.value!r} {refused.value.__cause__!r}"
    assert "cret" not in shown
    assert "123456" not in shown


def test_an_address_without_a_password_is_shown_as_it_is() -> None:
    for url in (
        "sqlite:///data/a:b@c.db",
        "memory://",
        "postgresql://ada@db.example/shop?sslmode=require",
        "postgresql://one.example:5432,two.example:5433/shop",
        "redis://[::1]:6379/0",
        "redis://cache.example:6379",
    ):
        assert mask_password(url) == url
    assert engine_class("postgresql://ada@db/shop").shown_address("postgresql://ada:x@db/shop") == (
        "postgresql://ada:***@db/shop"
    )


def test_a_password_in_the_options_is_masked() -> None:
    assert mask_password("postgresql://db/shop?user=ada&password=a/b#c&x=1") == (
        "postgresql://db/shop?user=ada&password=***&x=1"
    )
