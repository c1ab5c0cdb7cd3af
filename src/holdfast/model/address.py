"""Addresses of stores as people may see them: without passwords.

A password may contain `/`, `#` or `?` that is not encoded. A parser then takes a part of it for the host, the path or
the query. So the login is cut out of the text before anything is parsed. Without a host, `redis://user:password/0`, the
password stands where the port belongs: all that follows such a "port" is masked, and no text of a parser is shown.
"""

import re
from collections.abc import Mapping
from urllib.parse import unquote, urlsplit

from holdfast.errors import ConfigError

_LOGIN = re.compile(r"(?s)^([\w+.-]+://)([^/?#:@]*)(:.*)?@")
"""Scheme, user and password: up to the last `@`, because a password may contain one, too."""
_NOT_A_PORT = re.compile(r"(?s)^([\w+.-]+://[^/?#:@\[]*:)(?!\d{0,5}([,/?#]|$)|.*@).*")
_PASSWORD_OPTION = re.compile(r"(?i)([?&][^=&]*password=)([^&]*)")


def mask_password(url: str) -> str:
    """The address with `***` in place of each password.

    >>> mask_password("postgresql://ada:a/b#c?d@db.example/shop")
    'postgresql://ada:***@db.example/shop'
    """
    masked = _LOGIN.sub(lambda found: f"{found[1]}{found[2]}{':***' if found[3] else ''}@", url)
    return _mask_others(masked)


def _mask_others(url: str) -> str:
    return _PASSWORD_OPTION.sub(r"\1***", _NOT_A_PORT.sub(r"\1***", url))


class AddressSupport:
    """How an engine reads its addresses."""

    @classmethod
    def shown_address(cls, url: str) -> str:
        """An address of this engine as users are shown it: without passwords; a file with its whole path."""
        return mask_password(url)

    @classmethod
    def settings_in_address(cls, url: str) -> Mapping[str, object]:
        """The settings of this engine that stand in an address, if its addresses may contain some. They win."""
        return {}


def without_login(url: str) -> str:
    """The address without user and password, in the login and in the options."""
    return _mask_others(_LOGIN.sub(r"\1", url))


def passwords_in(url: str) -> set[str]:
    """The passwords of the login and of the options, as they are written and decoded.

    >>> sorted(passwords_in("redis://ada:a%40b@cache.example/0?sentinel_password=c"))
    ['a%40b', 'a@b', 'c']
    """
    login = _LOGIN.match(url)
    written = {login[3].removeprefix(":")} if login is not None and login[3] else set()
    written |= {found[2] for found in _PASSWORD_OPTION.finditer(url)}
    return {form for password in written - {""} for form in (password, unquote(password))}


def check_address(url: str) -> None:
    """Raise ConfigError if the address of a server cannot be split, or would be split inside of its password."""
    found = _LOGIN.match(url)
    if found is not None and re.search(r"[/?#]", found[3] or ""):
        raise ConfigError(
            f"The password in {mask_password(url)} contains `/`, `#` or `?`. Write them as %2F, %23 and %3F.", key="url"
        )
    try:
        urlsplit(url)
        readable = not _NOT_A_PORT.match(url)
    except ValueError:  # its text may contain the password
        readable = False
    if not readable:
        raise unreadable(url)


def unreadable(url: str) -> ConfigError:
    return ConfigError(
        f"The address {mask_password(url)} cannot be read: its port is no number up to 65535, or a bracket is missing. "
        f"Write it as {url.partition('://')[0]}://USER:PASSWORD@HOST:PORT/NAME.",
        key="url",
    )
