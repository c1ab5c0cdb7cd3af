"""Stored text on its way to a terminal.

Ids, names, errors, arguments and results come from whoever could enqueue. Written raw, they could move the cursor,
change the title, paint over other lines or hide text. So whatever is not plainly printable is shown as its escape.
"""


def safe(text: object) -> str:
    r"""The text on one line, without anything a terminal would obey.

    >>> print(safe("red \x1b[31m alert\n"))
    red \x1b[31m alert\n
    """
    told = str(text)
    if told.isprintable():
        return told
    return "".join(letter if letter.isprintable() else letter.encode("unicode_escape").decode() for letter in told)


def safe_lines(text: object) -> list[str]:
    """The same for text of several lines, such as a traceback."""
    return [safe(line.expandtabs(4)) for line in str(text).rstrip("\r\n").split("\n")]


def cut(text: object, most: int) -> str:
    """On one line, and no longer than this."""
    told = safe(text)
    return told if len(told) <= most else told[: most - 1] + "…"
