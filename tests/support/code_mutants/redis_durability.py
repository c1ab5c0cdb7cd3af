"""Bugs in the Redis engine: its durability class, lost histories, rights."""

from code_mutants.mutant import Mutant

DURABILITY = "tests/engines/test_redis_durability.py"
HISTORY = "tests/engines/test_redis_history.py"
RIGHTS = "tests/engines/test_redis_rights.py"

MUTANTS = (
    # The durability class
    Mutant(
        "a server that keeps nothing is accepted",
        "engines/redis/durability.py",
        'if known == "none" and self._wanted is None:',
        'if known == "never" and self._wanted is None:',
        "A restart of the server loses all jobs, and nothing has warned of it.",
        (f"{DURABILITY}::test_a_server_that_loses_jobs_is_refused_unless_the_user_asks_for_it",),
    ),
    Mutant(
        "a class that the server does not reach is accepted",
        "engines/redis/durability.py",
        "CLASSES.index(known) < CLASSES.index(self._wanted)",
        "CLASSES.index(known) < 0",
        "A user who sets durable gets a server that syncs once a second.",
        (f"{DURABILITY}::test_a_class_that_the_server_does_not_reach_is_refused",),
    ),
    Mutant(
        "every append-only file counts as durable",
        "engines/redis/durability.py",
        'if self.fsync == "always" and self.synced_in_rewrites else "fast"',
        'if self.synced_in_rewrites else "fast"',
        "Status shows a class that the server does not have.",
        (f"{DURABILITY}::test_the_class_is_what_the_server_does",),
    ),
    Mutant(
        "a stated class looks like a checked one",
        "engines/redis/durability.py",
        "return self._settings.fsync is None and self._wanted is not None",
        "return False",
        "Where CONFIG is forbidden, the user cannot state the class.",
        (f"{DURABILITY}::test_where_config_is_forbidden_the_class_may_be_stated",),
    ),
    Mutant(
        "a server that evicts keys is accepted",
        "engines/redis/durability.py",
        "if policy in (None, NO_EVICTION) or self._allow_eviction:",
        "if True:",
        "The server deletes jobs when its memory is full.",
        (f"{DURABILITY}::test_a_server_that_evicts_keys_is_refused_unless_it_is_allowed",),
    ),
    Mutant(
        "the settings are never read again",
        "engines/redis/durability.py",
        "if now - self._checked_at < CHECK_EVERY_US:",
        "if now:",
        "An operator is not told that the policy was changed to one that deletes jobs.",
        (f"{DURABILITY}::test_a_change_of_the_server_is_logged_while_the_engine_runs",),
    ),
    Mutant(
        "late replicas are not noticed",
        "engines/redis/durability.py",
        "if confirmed < self._replicas:",
        "if confirmed < 0:",
        "A write counts as copied although no replica has it.",
        (f"{DURABILITY}::test_a_write_waits_for_replicas_and_is_unknown_if_they_are_late",),
    ),
    Mutant(
        "a write that replicas lack is looked up at the primary",
        "core/enqueue.py",
        "if not unknown.found_by_reading:",
        "if False:",
        "The caller of a task is told that its job is safe, although no replica has it.",
        (f"{DURABILITY}::test_the_caller_of_a_task_hears_that_replicas_are_late",),
    ),
    # Lost histories
    Mutant(
        "the name of the history is not compared",
        "engines/redis/lua/history.lua",
        "if options.born ~= born or options.tip > tip then",
        "if options.tip > tip then",
        "A store that was emptied and filled again goes unnoticed.",
        (f"{HISTORY}::test_every_process_is_told_of_a_flush_and_goes_on",),
    ),
    Mutant(
        "the count of a run is not compared",
        "engines/redis/lua/history.lua",
        "if tip > tonumber(runs[later + 1]) then",
        "if false then",
        "After a failover the writes of other processes hide what was lost.",
        (f"{HISTORY}::test_writes_of_other_processes_do_not_hide_what_a_failover_has_lost",),
    ),
    Mutant(
        "a history keeps its name when a loss is noticed",
        "engines/redis/lua/history.lua",
        "if not born or (lost and options.born == born) then",
        "if not born then",
        "Only the processes that have seen the lost writes are told of the loss.",
        (f"{HISTORY}::test_writes_of_other_processes_do_not_hide_what_a_failover_has_lost",),
    ),
    Mutant(
        "every refused call emits an event",
        "engines/redis/history.py",
        "if before is not None and before.born != born:",
        "if before is not None:",
        "One loss causes as many alerts as calls were under way.",
        (f"{HISTORY}::test_all_calls_under_way_are_refused_and_one_event_is_emitted",),
    ),
    Mutant(
        "a lost history is not told to the callers of a batch",
        "core/enqueue.py",
        "except (EngineUnavailable, HistoryLost) as error:",
        "except EngineUnavailable as error:",
        "An enqueue after the loss is written as if nothing had happened.",
        (f"{HISTORY}::test_the_callers_of_a_task_are_told",),
    ),
    # Rights
    Mutant(
        "a right is missing",
        "engines/redis/acl.py",
        '    "zmscore",\n',
        "",
        "A user with the published rights cannot work.",
        (f"{RIGHTS}::test_the_rights_cover_every_command_in_the_source",),
    ),
)
