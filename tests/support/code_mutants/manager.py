"""Bugs in the manager: its size, its children, their restarts and their jobs."""

from code_mutants.mutant import Mutant

SCALING, PARTS = "tests/unit/test_scaling.py", "tests/unit/test_manager_parts.py"
CHILDREN = "tests/services/test_manager_children.py"

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
)
