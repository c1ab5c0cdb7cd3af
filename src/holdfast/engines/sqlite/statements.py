"""Named SQL from the `.sql` files beside this one."""

from importlib.resources import files

NAME = "-- name: "


def load(file: str, namespace: str) -> dict[str, str]:
    """The statements of a file by name, with the namespace (checked by the caller) put in."""
    text = files(__package__).joinpath(file).read_text(encoding="utf-8")
    blocks = text.split(NAME)[1:]
    found: dict[str, str] = {}
    for block in blocks:
        name, _, body = block.partition("\n")
        found[name.strip()] = body.strip().replace("{ns}", namespace)
    return found
