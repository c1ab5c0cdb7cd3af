"""Bugs in handlers with a process of their own: what a child may know, how its end is noticed, what ends it."""

from code_mutants.mutant import Mutant

ISOLATION = "tests/processes/test_isolation.py"
HARM = f"{ISOLATION}::test_whatever_a_process_does_fails_only_its_own_job"
KEPT = f"{ISOLATION}::test_a_process_is_kept_and_there_is_one_per_slot_at_most"
NO_ACCESS = f"{ISOLATION}::test_a_process_has_no_access_to_the_store"
POISON = f"{ISOLATION}::test_a_poison_job_ends_with_its_cause_and_peak_memory"
KILLED_WORKER = f"{ISOLATION}::test_processes_end_with_a_killed_worker_within_a_second"

MUTANTS = (
    # What a child may know
    Mutant(
        "a child gets the settings of its worker",
        "isolation/environment.py",
        "name.startswith(PREFIX) or ",
        "",
        "The address of the store, with its password, is in the environment of every handler.",
        (NO_ACCESS,),
    ),
    Mutant(
        "a child gets copies of the store's address",
        "isolation/environment.py",
        "child[name] = WITHHELD if any(part in value for part in parts) else value",
        "child[name] = value",
        "The address of the store is in the environment of every handler, under the user's own name.",
        (NO_ACCESS,),
    ),
    Mutant(
        "a child may open the store",
        "core/isolated.py",
        "    if _is_child:\n        raise Unsupported(",
        "    if not _is_child:\n        return\n    if False:\n        raise Unsupported(",
        "A handler opens a store of its own, under an address that is not that of its worker.",
        (NO_ACCESS,),
    ),
    # What a handler leaves
    Mutant(
        "the next handler meets the folder and the environment of the last one",
        "isolation/child.py",
        "        self._process_state.restore()\n",
        "",
        "A handler that changes its current folder breaks the jobs after it.",
        (KEPT,),
    ),
    Mutant(
        "a child is used once",
        "isolation/children.py",
        "        if process.is_usable:\n            self._idle.append(process)",
        "        if process.is_usable and not process.pid:\n            self._idle.append(process)",
        "Each job waits for a new interpreter: 240 ms instead of 2.",
        (KEPT,),
    ),
    # The end of a child
    Mutant(
        "the death of a child is an exception of the handler",
        "worker/isolated.py",
        "raise ChildError(info, ProcessDied(info)) from None",
        "raise ChildError(info, Raised(None, info)) from None",
        "A job without a limit of attempts that kills its processes runs for ever.",
        (POISON,),
    ),
    Mutant(
        "our own kill is named as the cause",
        "worker/isolated.py",
        "return broken_info(peak_bytes) if gone.is_broken else died_info(gone.end.exit_code, peak_bytes)",
        "return died_info(gone.end.exit_code, peak_bytes)",
        "An operator looks for a lack of memory that there was not.",
        (HARM,),
    ),
    Mutant(
        "what a dead child has started lives on",
        "isolation/process.py",
        "        kill_session(self._process)  # what it has started",
        "        self._process.poll  # what it has started",
        "Processes that a handler has started pile up on the host.",
        (HARM,),
    ),
    Mutant(
        "a child has no limit of memory",
        "isolation/child.py",
        "        limit_memory(setup.memory_limit)\n",
        "        limit_memory(None)\n",
        "A handler with `memory_limit` takes the memory of the whole host.",
        (HARM,),
    ),
    # The end of the worker
    Mutant(
        "a child outlives its killed worker while it holds the GIL",
        "processes.py",
        "ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)",
        "ctypes.CDLL(None)",
        "A job runs on beside its next attempt, for as long as the call takes.",
        (KILLED_WORKER,),
    ),
)
