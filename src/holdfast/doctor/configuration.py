"""Checks of where the settings come from."""

from collections.abc import Iterator, Mapping

from holdfast.model.address import mask_password
from holdfast.model.findings import ADDRESS, ENVIRONMENT, Finding

SWITCHES = {
    "HOLDFAST_DEBUG": "Commands print the traceback of every error.",
    "HOLDFAST_ALLOW_BLOCKING": "Blocking calls are allowed on an event loop, where they stop everything else.",
}


def check_address(in_code: str | None, in_environment: str | None, shown: str) -> Finding:
    """`shown` is the address in use, as users are shown it."""
    if in_code is not None and in_environment not in (None, in_code):
        return ADDRESS.warning(
            f"The code names {mask_password(in_code)}, and HOLDFAST_URL {mask_password(str(in_environment))}. The code "
            "wins here; a process with App() and no address uses the other store.",
            "Write App() to let the environment decide, or remove HOLDFAST_URL.",
        )
    return ADDRESS.ok(f"The store is {shown}.")


def check_switches(environment: Mapping[str, str]) -> Iterator[Finding]:
    on = [name for name in SWITCHES if environment.get(name, "") not in ("", "0")]
    for name in on:
        yield ENVIRONMENT.note(f"{name} is set. {SWITCHES[name]}", "Remove it where no one is debugging.")
    if not on:
        yield ENVIRONMENT.ok("No switch for debugging is on.")
