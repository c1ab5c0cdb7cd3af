"""The text about a handler's process that died."""

import signal

import pytest

from holdfast.model.text import ErrorInfo
from holdfast.process_death import (
    ProcessDeath,
    broken_info,
    death_of,
    deaths_text,
    died_info,
    died_text,
    late_stop_info,
    worker_died_info,
)

MIB = 1 << 20


@pytest.mark.parametrize(
    ("exit_code", "peak_bytes", "text"),
    [
        (-signal.SIGSEGV, 34 * MIB, "was killed by SIGSEGV; its peak memory was 34 MiB."),
        (-signal.SIGABRT, None, "was killed by SIGABRT."),
        (-signal.SIGKILL, MIB, "was killed by SIGKILL; its peak memory was 1 MiB. The system does this when memory "),
        (3, 34 * MIB, "ended with exit code 3; its peak memory was 34 MiB."),
        (0, 34 * MIB, "ended with exit code 0; its peak memory was 34 MiB. It ended before the handler returned"),
        (-50, 100, "was killed by signal 50; its peak memory was 1 MiB."),
    ],
)
def test_the_text_names_the_cause_and_the_peak_memory(exit_code: int, peak_bytes: int | None, text: str) -> None:
    assert died_text(exit_code, peak_bytes).startswith(f"The process of the handler {text}")


@pytest.mark.parametrize("exit_code", [*range(-64, 0), 0, 1, 3, 255])
@pytest.mark.parametrize("peak_mib", [None, 1, 812])
def test_the_facts_can_be_read_back_from_the_stored_text(exit_code: int, peak_mib: int | None) -> None:
    death = death_of(died_info(exit_code, None if peak_mib is None else peak_mib * MIB))

    assert death is not None
    assert death.peak_mib == peak_mib
    if exit_code >= 0:
        assert death.cause == f"exit code {exit_code}"
    else:
        assert death.cause in (f"signal {-exit_code}", *(one.name for one in signal.Signals))


def test_a_process_that_broke_its_connection_is_named_so() -> None:
    broken = broken_info(34 * MIB)

    assert (
        broken.message == "The process of the handler broke its connection to the worker; its peak memory was 34 MiB."
    )
    assert death_of(broken) == ProcessDeath("a broken connection", 34)
    assert deaths_text([broken_info(None)]) == "its process died once of a broken connection"


def test_the_death_of_a_worker_is_told_apart_from_that_of_a_handlers_process() -> None:
    killed, late = worker_died_info(-signal.SIGKILL, 812 * MIB), late_stop_info(34 * MIB)

    assert killed.message == (
        "The process of the worker was killed by SIGKILL; its peak memory was 812 MiB. The system does this when memory"
        " is short."
    )
    assert death_of(killed) == ProcessDeath("SIGKILL", 812)
    assert death_of(late) == ProcessDeath("a stop that took too long", 34)
    assert deaths_text([killed, died_info(-signal.SIGKILL, None), killed, late, None]) == (
        "its worker died 2 times of SIGKILL, peak memory 812 MiB; its process died once of SIGKILL;"
        " its worker died once of a stop that took too long, peak memory 34 MiB; its worker was lost once"
    )


def test_a_status_that_other_code_has_taken_is_not_known() -> None:
    unknown = died_info(None, None)

    assert unknown.message == "The process of the handler ended with an unknown status."
    assert death_of(unknown) == ProcessDeath("an unknown status", None)


def test_other_errors_are_no_deaths() -> None:
    assert death_of(None) is None
    assert death_of(ErrorInfo("builtins.ValueError", died_text(-11, MIB), "")) is None
    assert death_of(ErrorInfo("holdfast.ProcessDied", "", "")) == ProcessDeath("", None)


def test_losses_are_summed_up_by_their_causes() -> None:
    deaths = [died_info(-11, 34 * MIB), died_info(3, None), died_info(-11, 812 * MIB), died_info(-11, 5 * MIB)]

    assert deaths_text([*deaths, None]) == (
        "its process died 3 times of SIGSEGV, peak memory 812 MiB; its process died once of exit code 3;"
        " its worker was lost once"
    )
    assert deaths_text([]) == ""
