"""Defects to plant in the ledger: what each breaks, where, and which examples should notice.

Two of our engines are the ledger, so the ledger cannot be the judge of them: the examples of the contract must be able
to tell a wrong rule from a right one. Each mutant here is one edit of one function, made in the memory of a process
that runs the examples and then ends. Nothing in `src` knows of it.

The Lua of the Redis engine is generated from the ledger. So the same mutants can be planted there: the rules are
generated from the wrong text, and the examples run on a server.
"""

import inspect
import json
import os
import sys
import tempfile
import textwrap
import traceback
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple, Never

import pytest

import holdfast.engines.memory  # noqa: F401 - for the forks

LEDGER = "holdfast.engines.ledger"
TABLES = "holdfast.engines.tables.tables"
OPTIONS = ["-q", "--tb=short", "-p", "no:cacheprovider", "-p", "holdfast.testing.plugin"]
MEMORY = "memory://"


class Mutant(NamedTuple):
    """In `where` (module and function), `right` becomes `wrong`; the examples in `noticed_by` fail."""

    name: str
    where: str
    right: str
    wrong: str
    noticed_by: str
    """The file of examples, without `test_` and `.py`."""


MUTANTS = (
    # Tokens, leases, reaping
    Mutant(
        "any token settles",
        "settle.settle",
        "job.token != settlement.token",
        "job.token is None",
        "guards",
    ),
    Mutant("any token renews", "leases._renew", " or job.token != renewal.token", "", "renew"),
    Mutant("any token starts", "settle.start", "job.token != one.token", "job.token is None", "exchange"),
    Mutant(
        "a settlement sent again is late",
        "settle.settle",
        "again = not reap and job.settled_token == settlement.token",
        "again = False",
        "guards",
    ),
    Mutant(
        "a lease renewed since it was listed is reaped",
        "settle._may_reap",
        "job.lease_expires == settlement.listed_expiry and ",
        "",
        "expired",
    ),
    Mutant(
        "a lease is reaped before it expires",
        "settle._may_reap",
        " and settlement.listed_expiry <= step.at.lease",
        "",
        "expired",
    ),
    Mutant(
        "the late owner of a reaped job hears that it settled",
        "settle.apply_settlement",
        "settled_token = job.settled_token if reap else settlement.token",
        "settled_token = settlement.token",
        "guards",
    ),
    Mutant(
        "a loss is not counted",
        "settle.apply_settlement",
        "job.losses + 1 if loss else job.losses",
        "job.losses",
        "expired",
    ),
    Mutant(
        "the death of a handler's process is no loss",
        "settle.apply_settlement",
        "loss = reap or settlement.loss",
        "loss = reap",
        "losses",
    ),
    Mutant(
        "an owner whose handler's process died takes the loss of the reaper back",
        "settle.settle",
        " and not settlement.loss:",
        ":",
        "losses",
    ),
    Mutant(
        "any owner's late outcome takes a loss back",
        "settle.settle",
        "if not reap and settlement.reason is Reason.WORKER_LOST and ",
        "if not reap and ",
        "losses",
    ),
    Mutant(
        "an owner that lives does not take its loss back",
        "settle.give_back_loss",
        "losses=job.losses - 1, ",
        "",
        "losses",
    ),
    Mutant(
        "a loss is taken back twice",
        "settle.give_back_loss",
        ", reaped_token=None",
        "",
        "losses",
    ),
    Mutant(
        "a loss of the last generation is taken back",
        "operate.revive",
        "reaped_token=None,",
        "",
        "losses",
    ),
    Mutant("a renewal keeps the error of a death", "leases._renew", ", loss_error=None", "", "disown"),
    Mutant("the error of a death outlives the lease", "ends.ended_record", "loss_error=None,", "", "disown"),
    Mutant(
        "a worker that is disowned again gets no error",
        "leases.disown",
        " or command.error is not None",
        "",
        "disown",
    ),
    Mutant(
        "a renewal shortens the lease",
        "leases._renew",
        "max(job.lease_expires, step",
        "min(job.lease_expires, step",
        "renew",
    ),
    Mutant(
        "expired leases of unknown tasks are listed at once",
        "leases.is_listed",
        "command.tasks is None or ",
        "True or ",
        "expired",
    ),
    Mutant(
        "the fence does not grow",
        "claim.leased_record",
        "now if now > last_fence else last_fence + 1",
        "max(last_fence, 1)",
        "claim",
    ),
    Mutant("the fence of a lane does not grow", "claim.grant", "max(job.fence, lane.fence)", "job.fence", "guards"),
    # Attempts and history
    Mutant(
        "a refund is ignored",
        "settle.apply_settlement",
        "job.attempt - 1 if settlement.refund else job.attempt",
        "job.attempt",
        "settle",
    ),
    Mutant(
        "a release costs an attempt",
        "settle.apply_settlement",
        "if settlement.refund else",
        "if settlement.refund and target is not JobState.QUEUED else",
        "settle",
    ),
    Mutant("a claim counts no attempt", "claim.leased_record", "job.attempt + 1", "job.attempt", "claim"),
    Mutant(
        "a release is written into the history",
        "settle.apply_settlement",
        "if counted and target in ENDS_A_RUN",
        "if before.state is JobState.RUNNING and not succeeded",
        "history",
    ),
    Mutant("a requeued job keeps its attempts", "operate.revive", "attempt=0,", "", "requeue"),
    Mutant(
        "a requeued job keeps its place",
        "operate.revive",
        "arrival=step.state.new_arrival(job.queue),",
        "",
        "requeue",
    ),
    # Claiming
    Mutant("a claim takes one too many", "claim.take", "- len(leases)", "- len(leases) + 1", "claim"),
    Mutant("a claim sent again takes new work", "claim.claim", "if not held:", "if True:", "claim_again"),
    Mutant("a prefetched job runs at once", "claim.leased_record", "rank < request.limit", "True", "exchange"),
    Mutant("what is past its expiry date is claimed", "claim.take", "job.expires <= step.now", "False", "expiry_dates"),
    Mutant(
        "what fell due last moves up first",
        "tables.Tables.due",
        "entry = index.due.first()",
        "entry = max(index.due.current_entries(), key=lambda late: (late.instant <= now, late.instant), default=None)",
        "claim",
    ),
    Mutant("a paused queue is claimed", "claim.claim", " or record.paused", "", "pause"),
    # Cancelling and ending
    Mutant("a cancelled job is retried", "settle.settle", "if job.cancel_asked and", "if False and", "cancel"),
    Mutant(
        "cancelling undoes a success",
        "settle.settle",
        "settlement.target not in TERMINAL",
        "settlement.target is not JobState.CANCELLED",
        "cancel",
    ),
    Mutant(
        "clear leaves running jobs alone",
        "scopes.clear_some",
        "cancel_anyway(step, job, Reason.CLEARED)",
        "if job.token is None:\n            cancel_anyway(step, job, Reason.CLEARED)",
        "clear",
    ),
    Mutant(
        "a resume makes an unknown queue known",
        "scopes.set_paused",
        "not paused and not _is_known(step, command.queue, command.lane)",
        "False",
        "pause",
    ),
    Mutant(
        "a queue with ended jobs is removed",
        "scopes.remove_queue",
        "sum(step.state.counts(name).values())",
        "step.state.depth(name)",
        "remove",
    ),
    Mutant(
        "a search with a filter forgets its limit",
        "reading.find",
        "if len(jobs) == command.limit:",
        "if False:",
        "find",
    ),
    Mutant("a paused queue is removed", "scopes.remove_queue", "queue.paused or ", "", "remove"),
    Mutant(
        "a queue with a paused lane is removed",
        "scopes.remove_queue",
        " or any(lane.paused for lane in lanes_of_queue)",
        "",
        "remove",
    ),
    Mutant(
        "a queue is removed under its worker",
        "scopes.remove_queue",
        " if name in worker.queues and worker.is_alive(step.now)",
        " if False",
        "remove",
    ),
    Mutant("a dead worker keeps its queue", "scopes.remove_queue", " and worker.is_alive(step.now)", "", "remove"),
    Mutant("a removed pool keeps its size", "scopes.remove_queue", "step.put(pool, None)", "pass", "remove"),
    Mutant(
        "an empty queue is reported twice",
        "scopes.emptied",
        "emptied_at=queue.totals.finished)",
        "emptied_at=queue.emptied_at)",
        "emptied",
    ),
    Mutant("stats names no ready task", "reading.queue_stats", "tuple(sorted(ready))", "()", "stats"),
    Mutant(
        "the result's time is the retention",
        "ends.ended_record",
        "visible_until=visible",
        "visible_until=result_until",
        "lifetimes",
    ),
    Mutant(
        "a finished job is pruned early",
        "prune.prune",
        "step.state.ended(step.now,",
        "step.state.ended(step.now + 1_000_000_000_000,",
        "prune",
    ),
    # Enqueueing
    Mutant("the depth limit is off by one", "enqueue.check_limits", "> limit.limit", "> limit.limit + 1", "limits"),
    Mutant(
        "a limit passes over the lanes that a pool chooses",
        "enqueue._additions",
        "job.lane if job.pool is None else chosen[job.queue, job.id]",
        "job.lane",
        "lane_limits",
    ),
    Mutant(
        "keyless jobs are counted in the lane of the first",
        "pools.take_turns",
        "added[lane] = more",
        "pass",
        "lane_limits",
    ),
    Mutant(
        "a job without a key waits for the lane whose turn it is",
        "pools.take_turns",
        "turn + min(pool.lanes, max(count, LANES_LOOKED_AT))",
        "turn + count",
        "lane_limits",
    ),
    Mutant(
        "the turn stays at the lane behind the last turn",
        "pools.place",
        "pool.turn + (int(lane) - pool.turn) % pool.lanes + 1",
        "pool.turn + 1",
        "lane_limits",
    ),
    Mutant(
        "jobs without a key take the room of others in their group",
        "pools.choose_lanes",
        "added[lane] = added.get(lane, 0) + 1",
        "pass",
        "lane_limits",
    ),
    Mutant(
        "a requeue counts the lane that the job had",
        "operate.requeue_one",
        "pools.lane_again(step, job, command.limits)",
        "job.lane",
        "lane_limits",
    ),
    Mutant(
        "a failed job keeps its key",
        "enqueue.key_holder",
        "is_taken(job, job.key_until, now)",
        "(job.live or now < job.visible_until)",
        "unique_keys",
    ),
    Mutant(
        "a succeeded job frees its key at once",
        "enqueue.key_holder",
        "is_taken(job, job.key_until, now)",
        "job.live",
        "unique_keys",
    ),
    Mutant(
        "a succeeded job frees its id at once",
        "enqueue.existing_id",
        "record.id_until, step.now",
        "0, step.now",
        "dedupe",
    ),
    Mutant(
        "twins in a group are both inserted",
        "enqueue._plan",
        "planned.keys[job.queue, job.task, job.unique_key] = job.id",
        "pass",
        "unique_keys",
    ),
    Mutant(
        "an id may name other work",
        "enqueue._differs",
        "return job.task != task or",
        "return False and",
        "dedupe",
    ),
    # Lanes, parents, pools
    Mutant(
        "a higher priority displaces the head of a lane",
        "lanes.admit",
        "if lane.head is None:",
        """head = None if lane.head is None else step.state.job(job.queue, lane.head)
    if head is not None and head.state is JobState.QUEUED and head.priority < job.priority:
        step.put_job(head, replace(head, state=JobState.BLOCKED, hold=Hold.LANE))
        lane = replace(lane, head=None)
    if lane.head is None:""",
        "lanes",
    ),
    Mutant(
        "the next in a lane starts while the head retries",
        "settle.apply_settlement",
        "step.put_job(before, replace(job, state=target, due=due))",
        """step.put_job(before, replace(job, state=target, due=due))
        following = None if job.lane is None else step.state.next_in_lane(job.queue, job.lane)
        if following is not None:
            step.put_job(following, as_waiting(step, replace(following, hold=following.hold & ~following.hold)))""",
        "lanes",
    ),
    Mutant(
        "lanes that are named come by name",
        "reading.lanes",
        "in command.lanes:",
        "in sorted(command.lanes):",
        "lanes",
    ),
    Mutant("a paused lane goes on", "step.as_waiting", ".paused:", ".paused and False:", "pause"),
    Mutant(
        "a failed parent releases its children",
        "parents.resolve_edge",
        "parent.state is not JobState.SUCCEEDED and not edge.any_end",
        "False",
        "parents",
    ),
    Mutant(
        "a child does not wait for all its parents", "parents.resolve_edge", "child.parents_left - 1", "0", "parents"
    ),
    Mutant(
        "a resized pool starts keyed jobs at once",
        "pools.place",
        "job.hold | Hold.EPOCH if pool.old_live else job.hold",
        "job.hold",
        "pools",
    ),
)


# --- Planting ---


def plant(mutant: Mutant) -> None:
    """Rewrite the function, and put it wherever the ledger holds the right one."""
    import_module(f"{LEDGER}.ledger")
    module, holder, name = place_of(mutant)
    right = getattr(holder, name)
    source = textwrap.dedent(checked_source(mutant, right))
    made: dict[str, Any] = {}
    exec(compile(source.replace(mutant.right, mutant.wrong), f"<mutant {mutant.name}>", "exec"), vars(module), made)
    setattr(holder, name, made[name])
    for other in [loaded for key, loaded in sys.modules.items() if key.startswith(LEDGER)]:
        for key, value in list(vars(other).items()):
            if value is right:
                setattr(other, key, made[name])
    rules: dict[Any, Any] = sys.modules[f"{LEDGER}.ledger"].RULES
    rules.update({command: made[name] for command, rule in rules.items() if rule is right})


def place_of(mutant: Mutant) -> tuple[ModuleType, Any, str]:
    """The module of the function, the module or class that has it, and its name."""
    module_name, _, path = mutant.where.partition(".")
    module = import_module(TABLES if module_name == "tables" else f"{LEDGER}.{module_name}")
    *outer, name = path.split(".")
    holder: Any = module
    for part in outer:
        holder = getattr(holder, part)
    return module, holder, name


def checked_source(mutant: Mutant, right: Any) -> str:
    source = inspect.getsource(right)
    if source.count(mutant.right) != 1:
        raise LookupError(f"The mutant {mutant.name!r} fits {mutant.where} in {source.count(mutant.right)} places.")
    return source


def is_in_lua(mutant: Mutant) -> bool:
    """True if Redis has the function: not the tables of the memory engine, and not `Step`, which is Lua by hand."""
    return not mutant.where.startswith(("tables.", "step.Step"))


def plant_in_lua(mutant: Mutant | None) -> None:
    """Generate the Lua from the ledger with the mutant, and let the engine use it, without fast paths."""
    from tools.lua.build import make_rules

    from holdfast.engines.redis import engine, scripts

    texts = {}
    if mutant is not None:
        module, holder, name = place_of(mutant)
        source = checked_source(mutant, getattr(holder, name))
        text = Path(inspect.getfile(module)).read_text(encoding="utf-8")
        texts[module.__name__] = text.replace(source, source.replace(mutant.right, mutant.wrong))
    script = scripts.make_script({"rules": make_rules(texts)})
    vars(engine)["whole_script"] = lambda: script
    defaults = engine.RedisEngine.__init__.__kwdefaults__
    assert defaults is not None
    defaults.update(durability="none", fast_paths=False)


class EmptyStore:
    """A pytest plugin: each example starts with an empty database."""

    def __init__(self, address: str) -> None:
        import redis

        self._client = redis.Redis.from_url(address)

    def pytest_runtest_setup(self) -> None:
        self._client.flushdb()


# --- The process under test ---


class FailureRecorder:
    """A pytest plugin: notes the first failure of an example's own assertions, and ends the run there.

    The audit after an example does not count, nor does a check inside the ledger: both are relatives of the accused.
    """

    def __init__(self) -> None:
        self.examples: list[str] = []

    def pytest_sessionstart(self, session: pytest.Session) -> None:
        self._session = session

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        crash = getattr(report.longrepr, "reprcrash", None)
        if report.failed and report.when == "call" and crash is not None:
            own = Path(crash.path).match("testing/contract/test_*.py")
            if own and crash.message.startswith(("AssertionError", "assert ", "Failed: ")):
                self.examples.append(f"{report.nodeid}: {crash.message.splitlines()[0]}")
                self._session.shouldfail = "an example notices it"


def run_examples(name: str, files: list[str], output: int, address: str) -> Never:
    """In a fork: plant the mutant, run the examples, and end with pytest's exit code. Says last what was caught."""
    os.dup2(output, 1)
    os.dup2(output, 2)
    caught = FailureRecorder()
    plugins: list[object] = [caught]
    code = 70
    try:
        mutant = next((mutant for mutant in MUTANTS if mutant.name == name), None)
        if address != MEMORY:
            plant_in_lua(mutant)
            plugins.append(EmptyStore(address))
        elif mutant is not None:
            plant(mutant)
        code = int(pytest.main([*OPTIONS, f"--holdfast-engine={address}", *files], plugins=plugins))
    except BaseException:
        traceback.print_exc()
    print(f"\n{json.dumps(caught.examples)}", flush=True)
    os._exit(code)


def main() -> None:
    """Read mutants and files from the arguments, as JSON, and an address; write a line of JSON for each as it is done.

    One process for many mutants, since starting Python takes longer than the examples do; one fork for each, since
    a planted process stays planted.
    """
    _, tasks, address = sys.argv
    for name, files in json.loads(tasks):
        with tempfile.TemporaryFile() as output:
            child = os.fork()
            if child == 0:
                run_examples(name, files, output.fileno(), address)
            _, status = os.waitpid(child, 0)
            output.seek(0)
            said = output.read().decode(errors="replace")
        *text, caught = said.rstrip().splitlines() or [""]
        verdict = {"code": os.waitstatus_to_exitcode(status), "caught": caught, "output": "\n".join(text)}
        print(json.dumps([name, verdict]), flush=True)


if __name__ == "__main__":
    main()
