"""SQL as a template: `{{name}}` stands for a value of the model, such as a hold bit or a list of columns.

So a statement cannot disagree with the model. A name without a value is an error when the text is loaded.
"""

import re
from collections.abc import Mapping

PLACEHOLDER = re.compile(r"\{\{([a-z_.]+)\}\}")


def fill(text: str, values: Mapping[str, str], *, where: str) -> str:
    """The text with every placeholder replaced. `where` names the text in the error."""

    def value(match: re.Match[str]) -> str:
        if match[1] not in values:
            raise KeyError(f"{where}: {match[0]} names no value. Names with a value: {', '.join(sorted(values))}.")
        return values[match[1]]

    return PLACEHOLDER.sub(value, text)
