"""What can be done to jobs: cancel, trigger, requeue, delete. To those that are named, or to all that a filter finds.

A filter finds only jobs the verb can be applied to. What has changed by the time its turn comes is left alone and said.
"""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import click

from holdfast.cli.asking import confirm
from holdfast.cli.escape import safe
from holdfast.cli.exits import DONE, REFUSED, NothingMatched, say
from holdfast.cli.options import Store, examples, on_store, yes_option
from holdfast.cli.records import emit
from holdfast.cli.selecting import Filter, filter_options, matching_in, named
from holdfast.cli.spans import count
from holdfast.control import Control
from holdfast.errors import Refused
from holdfast.model.states import LIVE, JobState
from holdfast.views import Job

MOST_LINES = 20
"""Jobs that are listed one by one when it is done."""
MOST_KINDS = 5


@dataclass(frozen=True, slots=True)
class Done:
    """What came of it for one job. `refused` says why not."""

    id: str
    queue: str
    answer: str
    refused: str = ""


@dataclass(frozen=True, slots=True)
class Verb:
    word: str
    past: str
    states: tuple[JobState, ...]
    """Where a filter without a state looks."""
    also: tuple[JobState, ...]
    """Where one with a state may look besides."""
    act: Callable[[Control, Job], str]
    asks: bool = False
    """Whether it asks even for jobs that were named."""


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


CANCEL = Verb("cancel", "cancelled", tuple(state for state in JobState if state in LIVE), (), _cancel, asks=True)
TRIGGER = Verb("trigger", "triggered", (JobState.SCHEDULED, JobState.RETRYING), (), _trigger)
REQUEUE = Verb("requeue", "requeued", (JobState.FAILED,), (JobState.CANCELLED,), _requeue)
DELETE = Verb("delete", "deleted", (JobState.SUCCEEDED, JobState.FAILED, JobState.CANCELLED), (), _delete, asks=True)

_TOO_LATE = {"finished": "It has ended already.", "not_found": "It is gone."}


def _command(function: Callable[..., object]) -> Callable[..., object]:
    return click.argument("ids", metavar="[ID]...", nargs=-1)(yes_option(on_store()(filter_options(function))))


@click.command(epilog=examples("holdfast jobs cancel 01JCQ7N1", "holdfast jobs cancel --task resize --state queued"))
@_command
def cancel(store: Store, ids: tuple[str, ...], chosen: Filter, yes: bool) -> int:
    """Keep jobs from running; those that run are asked to stop."""
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
    """Bring failed or cancelled jobs back, with fresh attempts.

    Without ids it is the failed ones; --state cancelled means the others.
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
    """Find the jobs, ask where that is due, act on each."""
    jobs = named(store, ids, chosen.queue) if ids else _found(verb, store, chosen)
    if verb.asks or not ids:
        confirm(f"{verb.word.capitalize()} {_what(jobs)}.", yes=yes)
    done = [_apply(verb, store.control, job) for job in jobs]
    _tell(verb, store, jobs, done)
    return REFUSED if any(one.refused for one in done) else DONE


def _found(verb: Verb, store: Store, chosen: Filter) -> list[Job]:
    if chosen.empty:
        raise click.UsageError(f"Which jobs? Give ids, a filter such as --task, or --all to {verb.word} every one.")
    states = verb.states
    if chosen.state is not None:
        states = (JobState(chosen.state),)
        if states[0] not in verb.states + verb.also:
            raise click.UsageError(f"A job that is {chosen.state} cannot be {verb.past}.")
    jobs = list(matching_in(store, chosen, states))
    if not jobs:
        raise NothingMatched(f"There is nothing to {verb.word}.")
    return jobs


def _what(jobs: Sequence[Job]) -> str:
    """What and how many: by name if it is one, else counted by task and state."""
    if len(jobs) == 1:
        return f"1 job: {jobs[0].id} ({jobs[0].task}, {jobs[0].state})"
    kinds = Counter((job.task, job.state.value) for job in jobs).most_common()
    listed = [f"{number:,} {task} {state}" for (task, state), number in kinds[:MOST_KINDS]]
    more = [f"{sum(number for _, number in kinds[MOST_KINDS:]):,} others"] if len(kinds) > MOST_KINDS else []
    return f"{count(len(jobs), 'job')}: {', '.join(listed + more)}"


def _apply(verb: Verb, control: Control, job: Job) -> Done:
    try:
        answer = verb.act(control, job)
    except Refused as error:
        return Done(job.id, job.queue, "refused", str(error))
    return Done(job.id, job.queue, answer, _TOO_LATE.get(answer, ""))


def _tell(verb: Verb, store: Store, jobs: Sequence[Job], done: Sequence[Done]) -> None:
    if store.as_json:
        for one in done:
            emit(one)
    elif len(done) <= MOST_LINES:
        for job, one in zip(jobs, done, strict=True):
            if not one.refused:
                click.echo(f"{one.answer:<9}  {safe(job.task)}  {safe(job.id)}")
    else:
        for answer, number in Counter(one.answer for one in done if not one.refused).items():
            click.echo(f"{answer:<9}  {count(number, 'job')}")
    for one in [one for one in done if one.refused][:MOST_LINES]:
        say(f"{one.id}: {one.refused}")
    left = sum(1 for one in done if one.refused)
    if left > MOST_LINES:
        say(f"{count(left, 'job')} could not be {verb.past}; the first {MOST_LINES} are listed.")
