"""Bugs in the client of PostgreSQL: connections, failures, the claim cursor, notifications, the feed."""

from code_mutants.mutant import Mutant

CLIENT = "tests/engines/test_postgres_client.py"
FAULTS = "tests/engines/test_postgres_faults.py"
NOTIFICATIONS = "tests/engines/test_postgres_notifications.py"
WIRE = "tests/engines/test_server_wire.py"
SCHEMA = "tests/engines/test_postgres_schema.py"
CURSOR = "tests/engines/test_postgres_plans.py"

MUTANTS = (
    # The claim cursor
    Mutant(
        "no number of dead entries makes a cursor pay",
        "engines/postgres/claim_cursor.py",
        "if not self._cursors and dead < DEAD_ENTRIES:",
        "if not self._cursors:",
        "While one transaction stays open, every claim reads the entries of all jobs claimed since.",
        (
            "tests/engines/test_postgres_bounds.py::test_a_claim_that_met_many_dead_entries_sets_a_cursor_at_its_first_job",
        ),
    ),
    Mutant(
        "a claim with a cursor never scans from the beginning again",
        "engines/postgres/claim_cursor.py",
        "            and now_us < self._whole_at[wanted.queue]\n",
        "",
        "A job of a higher priority that comes later waits until the queue is empty.",
        ("tests/engines/test_postgres_bounds.py::test_a_claim_scans_from_the_beginning_at_intervals",),
    ),
    Mutant(
        "shares per task are scanned from a cursor",
        "engines/postgres/claim_cursor.py",
        "            and all(task.limit is None for task in wanted.tasks)\n",
        "",
        "The cursor of one task hides the ready jobs of another one.",
        ("tests/engines/test_postgres_bounds.py::test_a_claim_with_shares_per_task_always_scans_from_the_beginning",),
    ),
    Mutant(
        "a cursor stays when its reason has gone",
        "engines/postgres/claim_cursor.py",
        "elif dead < DEAD_ENTRIES or name not in firsts:",
        "elif name not in firsts:",
        "After the open transaction has ended, the order of a queue stays inexact for ever.",
        ("tests/engines/test_postgres_bounds.py::test_the_cursor_is_dropped_when_a_whole_scan_meets_few_dead_entries",),
    ),
    Mutant(
        "a claim with a cursor does not move it",
        "engines/postgres/claim_cursor.py",
        "                if name in firsts:\n                    self._cursors[name] = firsts[name]",
        "                pass",
        "Between two whole scans the claims read more and more dead entries.",
        ("tests/engines/test_postgres_bounds.py::test_the_cursor_moves_with_each_claim",),
    ),
    Mutant(
        "whole scans come at the same interval however long they take",
        "engines/postgres/claim_cursor.py",
        "max(WHOLE_SCAN_INTERVAL_US, WHOLE_SCAN_US_PER_ENTRY * dead)",
        "WHOLE_SCAN_INTERVAL_US",
        "With a million dead entries a worker does nothing but scan.",
        ("tests/engines/test_postgres_bounds.py::test_the_interval_grows_with_the_time_that_a_whole_scan_takes",),
    ),
    # Connections
    Mutant(
        "a connection that died while idle is used",
        "engines/postgres/connections.py",
        "return not poller.poll(0)",
        "return True",
        "The first call after a restart of the server fails.",
        ("tests/engines/test_postgres_faults.py::test_the_first_call_after_a_restart_does_not_fail",),
    ),
    Mutant(
        "a caller that is served and cancelled keeps its connection",
        "engines/postgres/connections.py",
        "if waiter.done() and not waiter.cancelled():",
        "if False:",
        "The pool loses a connection for good, until no call gets one.",
        (
            "tests/engines/test_postgres_bounds.py::test_a_caller_that_is_cancelled_as_it_is_served_gives_its_connection_on",
        ),
    ),
    Mutant(
        "a connection comes back to a closed pool",
        "engines/postgres/connections.py",
        "if connection is not None and not self._closed and len(self._idle) < self._keep:",
        "if connection is not None and len(self._idle) < self._keep:",
        "A call that ends after the engine was closed leaves a connection open.",
        ("tests/engines/test_postgres_bounds.py::test_a_connection_that_comes_back_to_a_closed_pool_is_closed",),
    ),
    Mutant(
        "every connection of a handler's transaction stays open",
        "engines/postgres/connections.py",
        "and not self._closed and len(self._idle) < self._keep:",
        "and not self._closed:",
        "After a busy moment a worker keeps as many connections as it has slots.",
        ("tests/engines/test_postgres_bounds.py::test_a_pool_keeps_no_more_idle_connections_than_it_was_told",),
    ),
    Mutant(
        "a refused connection keeps its permit",
        "engines/postgres/connections.py",
        "self._count -= 1  # the permit is dropped: the server would refuse the next waiter too",
        "pass",
        "Each refusal of a busy server makes the pool smaller for good.",
        ("tests/engines/test_postgres_bounds.py::test_a_connection_that_the_server_refused_can_be_opened_later",),
    ),
    Mutant(
        "a cancelled statement leaves its connection in use",
        "engines/postgres/failures.py",
        "return _is_broken(error) or _sqlstate(error) in (_READ_ONLY, _CANCELLED)",
        "return _is_broken(error) or _sqlstate(error) == _READ_ONLY",
        "A session lock of the cancelled call stays, and others wait for it.",
        (
            "tests/engines/test_postgres_bounds.py::test_a_connection_is_not_used_again_after_a_cancelled_call_or_on_a_standby",
        ),
    ),
    Mutant(
        "a connection to a standby stays in use",
        "engines/postgres/failures.py",
        "return _is_broken(error) or _sqlstate(error) in (_READ_ONLY, _CANCELLED)",
        "return _is_broken(error) or _sqlstate(error) == _CANCELLED",
        "After a failover every call goes to the old server, which accepts no writes.",
        (
            "tests/engines/test_postgres_bounds.py::test_a_connection_is_not_used_again_after_a_cancelled_call_or_on_a_standby",
        ),
    ),
    Mutant(
        "a call that took too long is sent again",
        "engines/postgres/failures.py",
        " and not isinstance(error, TimeoutError | ValueError)",
        "",
        "A read from a server that hangs takes five times its limit.",
        ("tests/engines/test_postgres_bounds.py::test_a_read_that_took_too_long_is_not_sent_again",),
    ),
    Mutant(
        "a call that was sent counts as not sent",
        "engines/postgres/calls.py",
        "            progress.may_have_committed = True\n            rows = await",
        "            rows = await",
        "A write whose answer was lost is sent again, or reported as not written.",
        ("tests/engines/test_server_wire.py::test_an_enqueue_that_is_cut_off_is_unknown_and_safe_to_repeat",),
    ),
    Mutant(
        "a deadlock is not tried again",
        "engines/postgres/calls.py",
        "TRIES = 5",
        "TRIES = 1",
        "A call that met another one in the wrong order fails.",
        ("tests/engines/test_postgres_faults.py::test_a_call_is_repeated_after_a_deadlock",),
    ),
    Mutant(
        "a server that vanishes is not detected",
        "engines/postgres/connect.py",
        "        _set_tcp_options(connection)\n        _register",
        "        _register",
        "A worker waits for an answer from a host that has no power.",
        ("tests/engines/test_postgres_bounds.py::test_every_connection_detects_a_server_that_has_vanished",),
    ),
    Mutant(
        "the default isolation of a role changes the rules",
        "engines/postgres/connect.py",
        "settings |= ISOLATION | self._durability.settings",
        "settings |= self._durability.settings",
        "Under REPEATABLE READ a claim does not see what it waited for.",
        ("tests/engines/test_postgres_bounds.py::test_every_connection_reads_committed_rows_whatever_the_default_is",),
    ),
    Mutant(
        "a renewal may take a minute",
        "engines/postgres/renewal_connection.py",
        "STATEMENT_TIMEOUT_S = 5.0",
        "STATEMENT_TIMEOUT_S = 60.0",
        "On a dead connection there is no time for a second try before the lease expires.",
        (
            "tests/engines/test_postgres_bounds.py::test_a_renewal_that_hangs_leaves_time_for_a_second_one_before_the_fence",
        ),
    ),
    Mutant(
        "the connections of a closed loop stay",
        "engines/by_loop.py",
        "            self._by_loop.pop(other, None)\n        added",
        "            pass\n        added",
        "A program that makes a new event loop for each request keeps the connections of all.",
        (
            "tests/engines/test_postgres_bounds.py::test_connections_of_a_loop_that_was_closed_are_dropped_when_the_next_loop_comes",
        ),
    ),
    # Notifications and the feed
    Mutant(
        "pending topics have no limit",
        "engines/postgres/notifier.py",
        "if added and len(self._pending_topics) < MAX_PENDING_TOPICS:",
        "if added:",
        "While the server is away, the memory of a producer grows.",
        ("tests/engines/test_postgres_bounds.py::test_topics_that_cannot_be_sent_do_not_fill_the_memory",),
    ),
    Mutant(
        "room is notified for every job that ends",
        "engines/postgres/notifier.py",
        "with_room = self._closing or now_s - self._room_sent_at_s >= ROOM_INTERVAL_S",
        "with_room = True",
        "Every commit of a worker sends a notification that wakes all processes.",
        ("tests/engines/test_postgres_bounds.py::test_room_is_notified_at_intervals",),
    ),
    Mutant(
        "callers are not woken after a new connection",
        "engines/postgres/notifier.py",
        "if self._first_try_done.is_set() and self.receives:",
        "if False:",
        "What was notified while the connection was away is found by polling only.",
        ("tests/engines/test_postgres_notifications.py::test_a_notifier_whose_connection_is_ended_receives_again",),
    ),
    Mutant(
        "a probe that does not arrive is ignored",
        "engines/postgres/notifier.py",
        "if not await self._probe_arrives(connection):\n                        raise",
        "if False:\n                        raise",
        "A connection that stopped receiving stays in use for ever.",
        ("tests/engines/test_postgres_notifications.py::test_a_connection_that_stopped_receiving_is_replaced",),
    ),
    Mutant(
        "a process receives its own notifications a second time",
        "engines/postgres/notifier.py",
        "        if pid != own_pid:\n",
        "        if True:\n",
        "Every enqueue wakes the workers of its own process twice.",
        (
            "tests/engines/test_postgres_notifications.py::test_a_process_does_not_receive_its_own_notifications_a_second_time",
        ),
    ),
    Mutant(
        "a listener that has gone is served for ever",
        "engines/feed_channels.py",
        "for until_s, kinds in tuple(self._listeners.values()) if until_s > now_s",
        "for until_s, kinds in tuple(self._listeners.values())",
        "Every process publishes its events although no process listens.",
        ("tests/engines/test_postgres_bounds.py::test_a_listener_whose_announcements_stopped_is_not_served",),
    ),
    Mutant(
        "the lock of a listener is not taken again",
        "engines/postgres/feed.py",
        '        """The connection has ended, and the lock with it."""\n        self._holds_lock = False',
        '        """The connection has ended, and the lock with it."""',
        "A new process does not find a listener whose connection was cut once.",
        ("tests/engines/test_postgres_bounds.py::test_a_listener_takes_its_lock_again_on_a_new_connection",),
    ),
    Mutant(
        "pending messages of the feed have no limit",
        "engines/feed_channels.py",
        "if len(self._pending) < MAX_PENDING_MESSAGES:",
        "if True:",
        "While the server is away, the memory of a process grows with its events.",
        (
            "tests/engines/test_postgres_bounds.py::test_messages_of_the_feed_that_cannot_be_sent_do_not_fill_the_memory",
        ),
    ),
    # Calls
    Mutant(
        "a server with commits that do not wait counts as durable",
        "engines/postgres/durability.py",
        'self.settings = {SETTING: "on"}',
        "pass",
        "A crash of the server loses acknowledged jobs.",
        ("tests/engines/test_postgres_schema.py::test_a_class_decides_whether_commits_wait_for_the_disk",),
    ),
)
