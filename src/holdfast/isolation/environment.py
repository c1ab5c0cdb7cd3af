"""The environment of a handler's process: that of the worker, without what gives access to the store.

Left out are Holdfast's own variables, those by which the store's driver finds a password, and those that are the
password of the store. A variable that contains the address of the store gets another value instead of being left out:
modules often read it when they are imported, as in `App(os.environ["DATABASE_URL"])`.
"""

from collections.abc import Collection, Mapping

from holdfast.config import PREFIX
from holdfast.model.address import passwords_in

WITHHELD = "withheld://by.holdfast/"
"""In place of an address."""
WITHHELD_ADVICE = (
    ". In the process of a handler a variable with the address of the store has no address. If your module opens a "
    "database of its own, give it another user and another variable, or open it at first use."
)


def child_environment(
    environ: Mapping[str, str], addresses: Collection[str], secret_variables: Collection[str]
) -> dict[str, str]:
    """`addresses`: under which the store is known here. `secret_variables`: those of the store's driver."""
    passwords = {password for address in addresses for password in passwords_in(address)}
    parts = (*(address for address in addresses if _names_a_store(address)), *_forms_in_text(passwords))
    child = {}
    for name, value in environ.items():
        if name.startswith(PREFIX) or name in secret_variables or value in passwords:
            continue
        child[name] = WITHHELD if any(part in value for part in parts) else value
    return child


def _names_a_store(address: str) -> bool:
    """False for an address that says nothing, such as `memory://`, which other texts may contain by chance."""
    _, _, rest = address.partition(":")
    return bool(rest.strip("/"))


def _forms_in_text(passwords: Collection[str]) -> tuple[str, ...]:
    """A password inside of a longer text, such as another address of the same server. Alone it may be a common word."""
    return tuple(form for password in passwords for form in (f":{password}@", f"password={password}"))
