"""Bugs in the Redis engine."""

from code_mutants.mutant import Mutant

FAST = "tests/engines/test_redis_fast_path.py"
ENQUEUE = "engines/redis/lua/fast_path.lua"
SETTLE = "engines/redis/lua/fast_settle.lua"
CLAIM = "engines/redis/lua/fast_claim.lua"

_NOT_PLAIN = (f"{FAST}::test_a_job_that_is_not_plain_is_enqueued_by_the_rules",)
_NO_SUCCESS = (f"{FAST}::test_another_settlement_is_applied_by_the_rules",)
_WHOLE_WAY = (f"{FAST}::test_plain_jobs_take_the_fast_path_from_enqueue_to_success",)
_TASKS = (f"{FAST}::test_jobs_of_several_tasks_and_queues_are_claimed_in_order",)
_SECOND_LEASE = (f"{FAST}::test_a_second_lease_keeps_what_the_first_one_left",)
_CLAIMED_BY_RULES = (f"{FAST}::test_what_is_not_plain_is_claimed_by_the_rules",)

MUTANTS = (
    # The fast path: enqueue
    Mutant(
        "a job in a lane counts as plain",
        ENQUEUE,
        "job.lane == nil and ",
        "",
        "Two jobs of a lane run at once.",
        _NOT_PLAIN,
    ),
    Mutant(
        "a job with a delay counts as plain",
        ENQUEUE,
        "job.delay == 0 and ",
        "",
        "A job that is due later runs at once.",
        _NOT_PLAIN,
    ),
    Mutant(
        "a job with parents counts as plain",
        ENQUEUE,
        "job.parents == nil and ",
        "",
        "A child runs before its parent.",
        _NOT_PLAIN,
    ),
    Mutant(
        "a job with a key counts as plain",
        ENQUEUE,
        "job.unique_key == nil and ",
        "",
        "A second job of a key is accepted.",
        _NOT_PLAIN,
    ),
    Mutant(
        "an id that is taken is written again",
        ENQUEUE,
        "        if raw then\n          return false",
        "        if false then\n          return false",
        "A duplicate replaces a live job.",
        _NOT_PLAIN,
    ),
    Mutant(
        "a depth limit is not checked",
        ENQUEUE,
        "      if #group.limits > 0 then",
        "      if false then",
        "A full queue accepts more jobs.",
        (f"{FAST}::test_limits_and_ids_given_twice_are_checked_by_the_rules",),
    ),
    Mutant(
        "two jobs of one id in one call",
        ENQUEUE,
        "        last.seen[id] = true\n",
        "",
        "The second job replaces the first, which stays in the lists of its queue.",
        (f"{FAST}::test_limits_and_ids_given_twice_are_checked_by_the_rules",),
    ),
    Mutant(
        "the priority decides in the wrong direction",
        ENQUEUE,
        "0 - job.priority -- not -0",
        "job.priority",
        "Jobs of low priority run first.",
        _WHOLE_WAY,
    ),
    Mutant(
        "nobody is told of a call that has written",
        ENQUEUE,
        "    this.tip = H.advance(root, this.tip)\n",
        "",
        "A failover that loses the last jobs is not noticed.",
        _WHOLE_WAY,
    ),
    # The fast path: success
    Mutant(
        "any token settles",
        SETTLE,
        "    if sub(raw, token_start, token_start + token_length - 1) ~= token then",
        "    if false then",
        "A worker that has lost its lease settles the job of another one.",
        _NO_SUCCESS,
    ),
    Mutant(
        "a job with children ends alone",
        SETTLE,
        "    if #names > 0 and has_children(root, names) then",
        "    if false then",
        "The children of a job wait for ever.",
        (f"{FAST}::test_a_job_with_children_is_settled_by_the_rules",),
    ),
    Mutant(
        "an assigned job ends without a start",
        SETTLE,
        "state ~= RUNNING or ",
        "",
        "A success has no start time, and the counters of two states are wrong.",
        (f"{FAST}::test_the_success_of_an_assigned_job_is_settled_by_the_rules",),
    ),
    Mutant(
        "a record that nothing keeps is stored",
        SETTLE,
        " or (visible <= now and result <= now)",
        "",
        "A job without retention stays until the next prune.",
        _NO_SUCCESS,
    ),
    Mutant(
        "an ended job keeps its claim",
        SETTLE,
        "claims[claim] = (claims[claim] or 0) + 1",
        "claims[claim] = nil",
        "The hash of claims grows for ever.",
        _WHOLE_WAY,
    ),
    Mutant(
        "the settled token is forgotten",
        SETTLE,
        "char(0, token_length)",
        "char(0, 0)",
        "A settlement that is sent again is answered as lost.",
        _WHOLE_WAY,
    ),
    Mutant(
        "the note of a success is dropped",
        SETTLE,
        'settlement.note == "" and ',
        "",
        "An operator does not see the note.",
        _NO_SUCCESS,
    ),
    Mutant(
        "callers that wait are not notified",
        SETTLE,
        '            topics["reply:" .. process] = true\n',
        "",
        "A request is answered by the next poll.",
        (f"{FAST}::test_jobs_whose_callers_wait_take_the_fast_path_too",),
    ),
    Mutant(
        "any rare fields are kept by a success",
        SETTLE,
        "      if not F.has_reply_alone(raw, rest) then",
        "      if false then",
        "Retention and result TTL that were given at enqueue are ignored.",
        (f"{FAST}::test_a_job_with_other_rare_fields_is_settled_by_the_rules",),
    ),
    # The fast path: claim
    Mutant(
        "any rare fields are kept by a claim",
        CLAIM,
        "      if flags == 4 and not F.has_reply_alone(raw, owner_start) then",
        "      if false then",
        "A job runs after its `expires`, or with another lease than the one that was given.",
        _CLAIMED_BY_RULES,
    ),
    Mutant(
        "due jobs are not promoted",
        CLAIM,
        "          if first_due <= at.wall then",
        "          if false then",
        "A job that has fallen due waits while plain jobs come.",
        _CLAIMED_BY_RULES,
    ),
    Mutant(
        "a claim sent again takes new jobs",
        CLAIM,
        '      or call("HEXISTS", root .. "claims", claim.claim_id) == 1\n',
        "",
        "Jobs of a lost answer stay leased and do not run.",
        _CLAIMED_BY_RULES,
    ),
    Mutant(
        "a paused queue gives jobs",
        CLAIM,
        '"paused") == "0" then',
        '"paused") then',
        "A pause has no effect.",
        (f"{FAST}::test_a_paused_queue_gives_nothing_and_a_later_due_time_is_answered",),
    ),
    Mutant(
        "a second lease has the fence of the first",
        CLAIM,
        "now > fence and now or fence + 1",
        "fence",
        "A system outside cannot tell the new owner from the old one.",
        _SECOND_LEASE,
    ),
    Mutant(
        "a second lease forgets the settled token",
        CLAIM,
        "#token, settled_length, started",
        "#token, 0, started",
        "The record cannot be read any more.",
        _SECOND_LEASE,
    ),
    Mutant(
        "tasks are claimed one after the other",
        CLAIM,
        "    if one.score ~= other.score then\n      return one.score < other.score\n    elseif",
        "    if",
        "A job of high priority waits behind other tasks.",
        _TASKS,
    ),
    Mutant(
        "the limit of a task is ignored",
        CLAIM,
        "share = terms.limit or left",
        "share = left",
        "A task takes the slots of the others.",
        _TASKS,
    ),
    Mutant(
        "prefetched jobs run",
        CLAIM,
        "      local runs = rank < claim.limit",
        "      local runs = true",
        "Jobs that wait in a worker have a start time.",
        _TASKS,
    ),
    Mutant(
        "claimed jobs stay in the list of queued ones",
        CLAIM,
        '        F.write("ZREM", root .. "state:" .. name .. ":queued", plan.ids)\n',
        "",
        "Running jobs are shown as queued, too.",
        _WHOLE_WAY,
    ),
    Mutant(
        "unfinished work is not carried on",
        ENQUEUE,
        'call("EXISTS", root .. "unfinished") == 0 and ',
        "",
        "A clear whose process has ended is never finished while plain jobs come.",
        (f"{FAST}::test_unfinished_work_is_left_to_the_rules",),
    ),
)
