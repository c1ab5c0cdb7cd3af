"""Bugs in how the Redis engine uses a cluster or Sentinels."""

from code_mutants.mutant import Mutant

ENGINE = "tests/engines/test_redis_cluster.py"
CALLS = "tests/engines/test_redis_cluster_calls.py"
SENTINEL = "tests/engines/test_redis_sentinel.py"
ROUTER = "engines/redis/cluster.py"
APART = "engines/redis/queues_apart.py"
EXCHANGE = "engines/redis/exchange_apart.py"
NAMES = "engines/redis/queue_names.py"

_DOWN = (f"{ENGINE}::test_queues_of_other_primaries_go_on_while_one_is_down",)
_NAMES_DOWN = (f"{ENGINE}::test_all_queues_go_on_while_the_primary_with_their_names_is_down",)
_AGAIN = (f"{ENGINE}::test_a_claim_over_several_queues_that_was_sent_before_takes_nothing_new",)
_IN_ORDER = (f"{ENGINE}::test_a_claim_fills_its_limit_from_its_queues_in_order",)
_DROPPED = (f"{ENGINE}::test_the_name_of_a_queue_is_dropped_when_nothing_has_used_it_for_an_hour",)
_REFUSED = (f"{ENGINE}::test_what_crosses_queues_is_refused_by_name",)
_MOVES = (f"{CALLS}::test_a_call_waits_while_keys_move_and_goes_on_with_all_of_them",)

MUTANTS = (
    # Calls
    Mutant(
        "ASK is followed at once",
        ROUTER,
        "if await self._has_no_keys(node, slot):",
        "if True:",
        "A script runs with a part of its keys: jobs seem to be gone, and are enqueued a second time.",
        _MOVES,
    ),
    Mutant(
        "ASK is never followed",
        ROUTER,
        "if await self._has_no_keys(node, slot):",
        "if False:",
        "A queue stands still until an operator ends the migration, although all its keys have moved.",
        _MOVES,
    ),
    Mutant(
        "a moved slot is not remembered",
        ROUTER,
        "self.topology.learn(self.topology.slots.moved(slot, redirect.node))",
        "pass",
        "Calls of a slot that has moved go to the old node until they fail.",
        equivalent="The map is read from the new node after the first MOVED, and says the same.",
    ),
    Mutant(
        "a call waits without an end",
        ROUTER,
        "if not await pauses.pause():",
        "if await pauses.pause() is None:",
        "A producer hangs as long as a slot is moving.",
        (f"{CALLS}::test_a_slot_without_a_node_is_an_error_after_the_longest_wait",),
    ),
    # Queues apart
    Mutant(
        "ranks begin anew in each queue",
        EXCHANGE,
        "first_rank=count",
        "first_rank=0",
        "Two leases of one claim have the same token, and a worker loses sight of one of them.",
        _IN_ORDER,
    ),
    Mutant(
        "a claim over several queues is not remembered",
        EXCHANGE,
        "self._remember(claim.claim_id)",
        "pass",
        "A claim that is sent again takes more jobs than its worker has slots.",
        _AGAIN,
    ),
    Mutant(
        "one primary that is down fails every exchange",
        EXCHANGE,
        "if not isinstance(error, PASSING) or not answers:",
        "if True:",
        "A worker of several queues stands still when the primary of one of them is down.",
        _DOWN,
    ),
    Mutant(
        "one primary that is down fails every renewal",
        APART,
        'parts.some_or_raise("renew", passing=(*PASSING, OutcomeUnknown))',
        'parts.all_or_raise("renew")',
        "All jobs of a worker run again when the primary of one of its queues is down for long.",
        _DOWN,
    ),
    Mutant(
        "a part of an enqueue that was not carried out counts as nothing written",
        "engines/redis/calls_apart.py",
        "if reads or not self.answers:",
        "if True:",
        "A producer is told that nothing was written, although some groups were.",
        _DOWN,
    ),
    Mutant(
        "a group over several queues is accepted",
        APART,
        "elif job.queue != queue:",
        "elif False:",
        "A job is stored under another queue than it names, and nobody finds it.",
        _REFUSED,
    ),
    Mutant(
        "a queue is removed although a worker takes from it",
        APART,
        "if not serving:",
        "if True:",
        "The totals and the pool of a queue in use are gone.",
        (f"{ENGINE}::test_a_queue_that_a_worker_takes_from_is_not_removed",),
    ),
    Mutant(
        "names of queues are not written",
        APART,
        "names = self._names.due(queues)",
        "names = ()",
        "Lost jobs of a queue are never reaped, and ended ones are never pruned.",
        (f"{ENGINE}::test_a_queue_that_another_process_has_removed_is_found_again_after_its_next_job",),
    ),
    Mutant(
        "a list of queues that cannot be written stops the calls of all queues",
        NAMES,
        "except FAILURES as error:",
        "except ZeroDivisionError as error:",
        "If one primary is down or full, no job is accepted or claimed in the queues of the others.",
        _NAMES_DOWN,
    ),
    Mutant(
        "maintenance needs the list of queues",
        NAMES,
        "if self._last_read:",
        "if False:",
        "While one primary is down, no lost job of the others runs again.",
        _NAMES_DOWN,
    ),
    Mutant(
        "a heartbeat that cannot be written is a failure",
        APART,
        "except (EngineUnavailable, TimeoutError):",
        "except ZeroDivisionError:",
        "While one primary is down, workers claim nothing in the queues of the others.",
        (f"{ENGINE}::test_a_worker_keeps_its_leases_while_its_record_cannot_be_written",),
    ),
    Mutant(
        "the name of a queue with jobs is dropped",
        APART,
        "if not answer.queues)",
        ")",
        "A queue that was not used for an hour is not seen by reapers and pruners.",
        _DROPPED,
    ),
    Mutant(
        "the name of a queue in use is dropped",
        NAMES,
        'await self._command("ZRANGEBYSCORE", self._key, "-inf", oldest)',
        'await self._command("ZRANGEBYSCORE", self._key, "-inf", "+inf")',
        "Jobs of a queue that is used for the first time are not reaped for up to ten minutes.",
        _DROPPED,
    ),
    Mutant(
        "a store is opened in another mode",
        "engines/redis/servers.py",
        'if await primary.command("EXISTS", f"{self._root_in(other)}meta"):',
        "if False:",
        "After a change of the setting all jobs seem to be gone.",
        (f"{ENGINE}::test_a_namespace_is_not_opened_in_another_mode_than_its_jobs_are_stored",),
    ),
    # Sentinels
    Mutant(
        "the Sentinel of the lowest epoch counts",
        "engines/redis/sentinel.py",
        "return max(known,",
        "return min(known,",
        "A Sentinel that is cut off from the others names the old primary, and calls go there.",
        equivalent="All Sentinels of a test agree; one that disagrees would have to be cut off from the others.",
    ),
)
