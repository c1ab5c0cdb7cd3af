"""Checks of where the settings come from."""

from collections.abc import Iterator, Mapping

from holdfast.model.findings import ADDRESS, ENVIRONMENT, Finding

SWITCHES = {
    "HOLDFAST_DEBUG": "Commands print the traceback of every error.",
    "HOLDFAST_ALLOW_BLOCKING": "Blocking calls are allowed on an event loop, where they stop everything else.",
}


def check_address(conflict: str, shown: str) -> Finding:
    """`conflict`: how code and environment differ; empty if they do not. `shown`: the address in use, for people."""
    if conflict:
        return ADDRESS.warning(
            f"{conflict} A process with App() and no address uses the other store.",
            "Name the store in one place: in the code, or in HOLDFAST_URL.",
        )
    return ADDRESS.ok(f"The store is {shown}.")


def check_switches(environment: Mapping[str, str]) -> Iterator[Finding]:
    on = [name for name in SWITCHES if environment.get(name, "") not in ("", "0")]
    for name in on:
        yield ENVIRONMENT.note(f"{name} is set. {SWITCHES[name]}", "Remove it where no one is debugging.")
    if not on:
        yield ENVIRONMENT.ok("No switch for debugging is on.")
