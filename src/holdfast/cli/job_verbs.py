"""`holdfast jobs cancel`, `trigger`, `requeue` and `delete`: for jobs given by id, or for all that a filter finds.

A filter finds only jobs in a state that the verb accepts. A job that has left that state by the time of the call is not
changed, and the command reports it.
"""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import click

from holdfast.cli.exits import DONE, REFUSED, confirm, print_message
from holdfast.cli.format import count, safe
from holdfast.cli.job_selection import Filter, filter_options, jobs_by_id, matching_in, nothing_found
from holdfast.cli.json_output import print_json
from holdfast.cli.options import Store, examples, on_store, yes_option
from holdfast.cli.progress import MIN_WRITES, ProgressBar
from holdfast.control import Control
from holdfast.errors import Refused
from holdfast.model.states import LIVE, JobState
from holdfast.views import Job

MAX_LINES = 20
"""Up to this many jobs the result has one line each; above, one line for each answer."""
MAX_KINDS = 5


@dataclass(frozen=True, slots=True)
class VerbResult:
    """The answer for one job. `refused` is the reason if the verb was not applied."""

    id: str
    queue: str
    answer: str
    refused: str = ""


@dataclass(frozen=True, slots=True)
class Verb:
    word: str
    past: str
    states: tuple[JobState, ...]
    """States that a filter without `--state` searches."""
    more_states: tuple[JobState, ...]
    """Further states that `--state` may name."""
    act: Callable[[Control, Job], str]
    always_confirms: bool = False
    """True: the command asks for confirmation even if the jobs were given by id."""


def _cancel(control: Control, job: Job) -> str:
    return control.cancel(job.id, queue=job.queue).answer


def _trigger(control: Control, job: Job) -> str:
    control.trigger(job.id, queue=job.queue)
    return "triggered"


def _requeue(control: Control, job: Job) -> str:
    control.requeue(job.id, queue=job.queue)
    return "requeued"


def _delete(control: Control, job: Job) -> str:
    control.delete(job.id, queue=job.queue)
    return "deleted"


CANCEL = Verb(
    "cancel", "cancelled", tuple(state for state in JobState if state in LIVE), (), _cancel, always_confirms=True
)
TRIGGER = Verb("trigger", "triggered", (JobState.SCHEDULED, JobState.RETRYING), (), _trigger)
REQUEUE = Verb("requeue", "requeued", (JobState.FAILED,), (JobState.CANCELLED,), _requeue)
DELETE = Verb(
    "delete", "deleted", (JobState.SUCCEEDED, JobState.FAILED, JobState.CANCELLED), (), _delete, always_confirms=True
)

_TOO_LATE = {"finished": "It has already ended.", "not_found": "It does not exist any more."}


def _command(function: Callable[..., object]) -> Callable[..., object]:
    return click.argument("ids", metavar="[ID]...", nargs=-1)(yes_option(on_store()(filter_options(function))))


@click.command(epilog=examples("holdfast jobs cancel 01JCQ7N1", "holdfast jobs cancel --task resize --state queued"))
@_command
def cancel(store: Store, ids: tuple[str, ...], chosen: Filter, yes: bool) -> int:
    """Cancel jobs that wait, and ask the handlers of running jobs to stop."""
    return apply(CANCEL, store, ids, chosen, yes=yes)


@click.command(
    epilog=examples("holdfast jobs trigger 01JCQ7N1", "holdfast jobs trigger --state retrying --task charge")
)
@_command
def trigger(store: Store, ids: tuple[str, ...], chosen: Filter, yes: bool) -> int:
    """Make scheduled or retrying jobs due now."""
    return apply(TRIGGER, store, ids, chosen, yes=yes)


@click.command(epilog=examples("holdfast jobs requeue invoice-666", "holdfast jobs requeue --task charge --since 1d"))
@_command
def requeue(store: Store, ids: tuple[str, ...], chosen: Filter, yes: bool) -> int:
    """Requeue failed or cancelled jobs; their attempts are counted from 1 again.

    A filter finds failed jobs only, unless it has --state cancelled.
    """
    return apply(REQUEUE, store, ids, chosen, yes=yes)


@click.command(
    epilog=examples("holdfast jobs delete order-42", "holdfast jobs delete --state failed --queue mails --yes")
)
@_command
def delete(store: Store, ids: tuple[str, ...], chosen: Filter, yes: bool) -> int:
    """Remove finished jobs, with their results and histories."""
    return apply(DELETE, store, ids, chosen, yes=yes)


def apply(verb: Verb, store: Store, ids: Sequence[str], chosen: Filter, *, yes: bool) -> int:
    """Find the jobs, ask for confirmation if needed, apply the verb to each."""
    jobs = jobs_by_id(store, ids, chosen.queue) if ids else _matching(verb, store, chosen)
    if verb.always_confirms or not ids:
        confirm(f"{verb.word.capitalize()} {_summary(jobs)}.", yes=yes)
    results: list[VerbResult] = []
    try:
        with ProgressBar(verb.word, MIN_WRITES) as progress:
            for job in jobs:
                results.append(_apply(verb, store.control, job))
                progress(len(results), len(jobs))
    except KeyboardInterrupt:
        done = sum(1 for result in results if not result.refused)
        print_message(f"Stopped: {done:,} of {count(len(jobs), 'job')} were {verb.past}; the next one may be, too.")
        raise
    _print_results(verb, store, jobs, results)
    return REFUSED if any(result.refused for result in results) else DONE


def _matching(verb: Verb, store: Store, chosen: Filter) -> list[Job]:
    if chosen.empty:
        raise click.UsageError(f"Which jobs? Give ids, a filter such as --task, or --all to {verb.word} all jobs.")
    states = verb.states
    if chosen.state is not None:
        states = (JobState(chosen.state),)
        if states[0] not in verb.states + verb.more_states:
            raise click.UsageError(f"A job that is {chosen.state} cannot be {verb.past}.")
    jobs = list(matching_in(store, chosen, states))
    if not jobs:
        raise nothing_found(store, f"There is nothing to {verb.word}.", chosen)
    return jobs


def _summary(jobs: Sequence[Job]) -> str:
    """One job by its id, several counted by task and state."""
    if len(jobs) == 1:
        return f"1 job: {jobs[0].id} ({jobs[0].task}, {jobs[0].state})"
    kinds = Counter((job.task, job.state.value) for job in jobs).most_common()
    listed = [f"{number:,} {task} {state}" for (task, state), number in kinds[:MAX_KINDS]]
    more = [f"{sum(number for _, number in kinds[MAX_KINDS:]):,} others"] if len(kinds) > MAX_KINDS else []
    return f"{count(len(jobs), 'job')}: {', '.join(listed + more)}"


def _apply(verb: Verb, control: Control, job: Job) -> VerbResult:
    try:
        answer = verb.act(control, job)
    except Refused as error:
        return VerbResult(job.id, job.queue, "refused", str(error))
    return VerbResult(job.id, job.queue, answer, _TOO_LATE.get(answer, ""))


def _print_results(verb: Verb, store: Store, jobs: Sequence[Job], results: Sequence[VerbResult]) -> None:
    if store.as_json:
        for result in results:
            print_json(result)
    elif len(results) <= MAX_LINES:
        for job, result in zip(jobs, results, strict=True):
            if not result.refused:
                click.echo(f"{result.answer:<9}  {safe(job.task)}  {safe(job.id)}")
    else:
        for answer, number in Counter(result.answer for result in results if not result.refused).items():
            click.echo(f"{answer:<9}  {count(number, 'job')}")
    refusals = [result for result in results if result.refused]
    for result in refusals[:MAX_LINES]:
        print_message(f"{result.id}: {result.refused}")
    if len(refusals) > MAX_LINES:
        print_message(f"{count(len(refusals), 'job')} could not be {verb.past}; the first {MAX_LINES} are listed.")
