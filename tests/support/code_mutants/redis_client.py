"""Bugs in the client of the Redis engine: replies, lost connections, limits of time, logins, formats."""

from code_mutants.mutant import Mutant

CONNECTION = "tests/engines/test_redis_connection.py"
ENGINE = "tests/engines/test_redis_connection_engine.py"

MUTANTS = (
    Mutant(
        "a cancelled request is forgotten",
        "engines/redis/connections.py",
        "        reply = self._loop.create_future()\n",
        "        reply = self._loop.create_future()\n"
        "        self._replies = deque(one for one in self._replies if not one.done())\n",
        "The next caller reads the reply to a request that was cancelled.",
        (f"{CONNECTION}::test_a_cancelled_command_leaves_no_reply_for_the_next",),
    ),
    Mutant(
        "a reply has no time limit",
        "engines/redis/connections.py",
        'self._end(CallTimeout(f"no reply within {self._timeout_s:g} s"))',
        "pass",
        "A server that hangs holds up its callers for ever.",
        (f"{CONNECTION}::test_the_limit_counts_for_each_request_from_the_time_it_was_sent",),
    ),
    Mutant(
        "an idle connection is used unseen",
        "engines/redis/connections.py",
        "return not self._poll(0)",
        "return True",
        "The first call after a restart of the server has an unknown outcome.",
        (f"{CONNECTION}::test_a_connection_that_ended_while_it_was_idle_is_replaced_without_an_error",),
    ),
    Mutant(
        "a write whose reply is lost counts as not written",
        "engines/redis/primary.py",
        "reads = verb in READ_VERBS",
        "reads = True",
        "An enqueue is carried out twice.",
        (f"{CONNECTION}::test_a_call_that_was_sent_and_not_answered_has_an_unknown_outcome",),
    ),
    Mutant(
        "the script is not sent again",
        "engines/redis/failures.py",
        'NO_SCRIPT = "NOSCRIPT"',
        'NO_SCRIPT = "NEVER"',
        "After SCRIPT FLUSH, or a failover, every call fails.",
        (f"{CONNECTION}::test_the_script_is_sent_once_and_again_after_the_server_has_forgotten_it",),
    ),
    Mutant(
        "a child keeps the sockets of its parent",
        "engines/redis/connections.py",
        "self._child_copy = forks.ChildCopy(self._socket.fileno)",
        "self._child_copy = None",
        "The server does not notice that the parent has ended while a forked child lives.",
        (f"{ENGINE}::test_a_forked_child_keeps_no_connection_of_its_parent_open",),
    ),
    Mutant(
        "another format is not noticed",
        "engines/redis/lua/history.lua",
        "if stored[5] and tonumber(stored[5]) ~= options.format then",
        "if false then",
        "An old release writes records that the new one cannot read.",
        (f"{ENGINE}::test_a_newer_format_is_refused_before_anything_is_written",),
    ),
)
