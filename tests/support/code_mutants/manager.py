"""Bugs in the manager: its size, its children, their restarts and their jobs."""

from code_mutants.mutant import Mutant

SCALING, PARTS = "tests/unit/test_scaling.py", "tests/unit/test_manager_parts.py"
CHILDREN = "tests/services/test_manager_children.py"
DEAD_WORKERS = "tests/services/worker/test_dead_workers.py"
NOTIFICATIONS = "tests/contract/suite.py::test_notifications"
RUNS_AGAIN = f"{NOTIFICATIONS}::test_a_settlement_after_which_a_job_runs_again_notifies_its_queue"

MUTANTS = (
    Mutant(
        "the size falls at once",
        "manager/scaling.py",
        "if value > target and now - at < limits.idle_before_down_us",
        "if value > target and now < at",
        "Workers stop after each burst and are started again for the next one.",
        (SCALING,),
    ),
    Mutant(
        "jobs that do not wait start workers",
        "manager/scaling.py",
        "if load.due == 0 or load.oldest_wait_us < WAIT_BEFORE_UP_US:",
        "if load.due == 0:",
        "A busy moment starts processes for jobs that are done before these have started.",
        (SCALING,),
    ),
    Mutant(
        "other managers are not counted",
        "manager/scaling.py",
        "((own_capacity + load.other_capacity) * limits.slots)",
        "(own_capacity * limits.slots)",
        "Two managers start twice as many workers as the backlog needs.",
        (SCALING,),
    ),
    Mutant(
        "children that stop are not counted",
        "manager/scaling.py",
        "free = limits.max - counts.active - counts.stopping",
        "free = limits.max - counts.active",
        "There are more processes than --max allows.",
        (SCALING,),
    ),
    Mutant(
        "paused queues are load",
        "manager/upkeep.py",
        "if queue.due and not queue.paused and not is_foreign:",
        "if queue.due and not is_foreign:",
        "A paused queue keeps the largest number of workers running.",
        (PARTS,),
    ),
    Mutant(
        "the restart of a child that had worked is delayed like any other",
        "manager/restarts.py",
        "LONGEST_DELAY_US if running_since is None else LONGEST_DELAY_AFTER_WORK_US",
        "LONGEST_DELAY_US",
        "Beside jobs that kill their workers, all other jobs wait for minutes.",
        (PARTS,),
    ),
    Mutant(
        "children that die together count each",
        "manager/restarts.py",
        "if not self.failures or created_at > self._failed_at:",
        "if True:",
        "After eight workers are killed together the next start comes after 30 seconds.",
        (PARTS,),
    ),
    Mutant(
        "a lost child is not reported",
        "manager/children.py",
        "if not child.has_stopped:\n            self._on_lost(child)",
        "if child.has_stopped:\n            self._on_lost(child)",
        "The jobs of a killed worker wait until their leases expire.",
        (CHILDREN,),
    ),
    Mutant(
        "a recycled child counts until its end",
        "manager/child.py",
        "self.is_replaced |= reason in RECYCLED",
        "self.is_replaced |= False",
        "While a worker finishes its last jobs, it has no successor.",
        (CHILDREN,),
    ),
    Mutant(
        "the old child stops before the new one works",
        "manager/children.py",
        "if successor.state is ChildState.STARTING:\n                    return",
        "",
        "During a roll over fewer workers run than --min.",
        (CHILDREN,),
    ),
    Mutant(
        "a child that does not stop is not killed",
        "manager/children.py",
        "if child.kill_at is None or now < child.kill_at:",
        "if True:",
        "A manager whose worker hangs never ends.",
        (f"{CHILDREN}::test_a_child_that_does_not_stop_is_killed_and_reported_as_lost",),
    ),
    # Losses
    Mutant(
        "a manager keeps the cause of a death to itself",
        "manager/upkeep.py",
        "disown(*names, error=child.death())",
        "disown(*names)",
        "The record of a poison job does not say of what its workers died.",
        ("tests/processes/test_manager.py::test_the_jobs_of_a_killed_child_run_again_at_once[sqlite]",),
    ),
    Mutant(
        "the peak memory of a child is that of its manager",
        "manager/child.py",
        "is_own = end.peak_bytes > self._manager_peak_bytes",
        "is_own = True",
        "A large manager makes every dead worker look large.",
        (f"{CHILDREN}::test_a_dead_child_is_replaced_at_once_and_reported_as_lost",),
    ),
    Mutant(
        "a neighbour disowns a dead worker before its manager",
        "worker/dead_workers.py",
        "return tuple(name for name in dead if name not in left)",
        "return dead",
        "Now and then the cause of a death is missing.",
        (f"{DEAD_WORKERS}::test_a_dead_worker_is_left_to_its_manager_for_a_short_time",),
    ),
    Mutant(
        "a dead worker is left to a dead manager",
        "worker/dead_workers.py",
        "for record in records if record.worker not in dead for child",
        "for record in records for child",
        "When a manager and its worker are killed together, the jobs wait for one more second.",
        (f"{DEAD_WORKERS}::test_a_dead_worker_whose_manager_has_ended_too_is_disowned_at_once",),
    ),
    Mutant(
        "a job that runs again notifies no worker",
        "engines/ledger/settle.py",
        "if due <= step.now or reap:",
        "if False:",
        "The job of a killed worker waits for the poll of another one.",
        (f"{RUNS_AGAIN}[memory-loss]",),
    ),
    Mutant(
        "a later loss notifies no worker",
        "engines/ledger/settle.py",
        "if due <= step.now or reap:",
        "if due <= step.now:",
        "After its second loss a job waits for the poll of a worker, however long that is.",
        (f"{RUNS_AGAIN}[memory-later loss]",),
    ),
)
