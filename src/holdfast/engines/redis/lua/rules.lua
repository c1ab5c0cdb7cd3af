-- The rules of Holdfast. Generated from src/holdfast/engines/ledger by `make lua`: change the ledger, not this file.
-- Each function is headed by its file and function there. A comment such as `-- L3` names a rule of docs/contract.md.
-- The state is `S` (state.lua), the step `step` (step.lua), the helpers `rt` (runtime.lua).

R.TRANSITIONS = {
  [""] = { ["blocked"] = true, ["queued"] = true, ["scheduled"] = true },
  ["scheduled"] = { ["blocked"] = true, ["cancelled"] = true, ["queued"] = true },
  ["blocked"] = { ["cancelled"] = true, ["queued"] = true, ["scheduled"] = true },
  ["queued"] = { ["assigned"] = true, ["blocked"] = true, ["cancelled"] = true, ["running"] = true },
  ["assigned"] = {
    ["blocked"] = true,
    ["cancelled"] = true,
    ["failed"] = true,
    ["queued"] = true,
    ["retrying"] = true,
    ["running"] = true,
  },
  ["running"] = {
    ["blocked"] = true,
    ["cancelled"] = true,
    ["failed"] = true,
    ["queued"] = true,
    ["retrying"] = true,
    ["scheduled"] = true,
    ["succeeded"] = true,
  },
  ["retrying"] = { ["blocked"] = true, ["cancelled"] = true, ["queued"] = true },
  ["succeeded"] = {},
  ["failed"] = {},
  ["cancelled"] = {},
}

local Hold = { NONE = 0, LANE = 1, PARENTS = 2, PAUSED = 4, ARRIVING = 8, EPOCH = 16 }
local ALIVE_FOR_INTERVALS = 3
local ENDS_A_RUN = { ["cancelled"] = true, ["failed"] = true, ["retrying"] = true }
local FAILED_RETENTION = 2592000000000
local FOREVER = 4611686018427387904
local INTERVAL_IF_UNKNOWN = 10000000
local JOBS_PER_READ = 1000
local KEEP_FIRST = 1
local KEEP_LAST = 19
local LANES_LOOKED_AT = 1000
local LEASED = { ["assigned"] = true, ["running"] = true }
local LIVE = {
  ["assigned"] = true,
  ["blocked"] = true,
  ["queued"] = true,
  ["retrying"] = true,
  ["running"] = true,
  ["scheduled"] = true,
}
local MOST_EXPIRED = 1000
local MOST_PROMOTED = 1000
local NOT_FOUND = { status = "not_found" }
local REAPED_BY_ALL_AFTER = 10
local RESULT_TTL = 3600000000
local RETENTION = 86400000000
local SILENT_AFTER_INTERVALS = 10
local SILENT_AT_LEAST = 3600000000
local TERMINAL = { ["cancelled"] = true, ["failed"] = true, ["succeeded"] = true }
local WAITING = { ["blocked"] = true, ["queued"] = true, ["retrying"] = true, ["scheduled"] = true }

local function copy_Accepted(record)
  return {
    status = record.status,
    id = record.id,
    state = record.state,
    arrival = record.arrival,
    generation = record.generation,
    position = record.position,
    depth = record.depth,
    result = record.result,
    codec = record.codec,
    lane = record.lane,
  }
end

local function copy_Given(record)
  return {
    max_attempts = record.max_attempts,
    max_losses = record.max_losses,
    timeout = record.timeout,
    lease_len = record.lease_len,
    result_ttl = record.result_ttl,
    retention = record.retention,
  }
end

local function copy_JobRecord(record)
  return {
    queue = record.queue,
    id = record.id,
    task = record.task,
    tail = record.tail,
    codec = record.codec,
    payload_hash = record.payload_hash,
    priority = record.priority,
    lane = record.lane,
    unique_key = record.unique_key,
    key_scope = record.key_scope,
    key_window = record.key_window,
    expires = record.expires,
    reply = record.reply,
    given = record.given,
    state = record.state,
    hold = record.hold,
    generation = record.generation,
    arrival = record.arrival,
    created = record.created,
    due = record.due,
    parents_left = record.parents_left,
    attempt = record.attempt,
    losses = record.losses,
    owner = record.owner,
    token = record.token,
    fence = record.fence,
    lease_expires = record.lease_expires,
    lease_len = record.lease_len,
    max_attempts = record.max_attempts,
    max_losses = record.max_losses,
    started = record.started,
    last_started = record.last_started,
    progress = record.progress,
    cancel_asked = record.cancel_asked,
    cancel_note = record.cancel_note,
    settled_token = record.settled_token,
    finished = record.finished,
    reason = record.reason,
    note = record.note,
    result = record.result,
    last_error = record.last_error,
    history = record.history,
    visible_until = record.visible_until,
    result_until = record.result_until,
    key_until = record.key_until,
    epoch = record.epoch,
    pool_key = record.pool_key,
    reaped_token = record.reaped_token,
    loss_error = record.loss_error,
    payload_apart = record.payload_apart,
    pool_hash_hi = record.pool_hash_hi,
    pool_hash_lo = record.pool_hash_lo,
  }
end

local function copy_LaneRecord(record)
  return {
    kind = "LaneRecord",
    queue = record.queue,
    lane = record.lane,
    head = record.head,
    depth = record.depth,
    paused = record.paused,
    totals = record.totals,
    fence = record.fence,
    emptied = record.emptied,
  }
end

local function copy_PoolRecord(record)
  return {
    kind = "PoolRecord",
    name = record.name,
    lanes = record.lanes,
    epoch = record.epoch,
    turn = record.turn,
    old_live = record.old_live,
  }
end

local function copy_QueueRecord(record)
  return {
    kind = "QueueRecord",
    queue = record.queue,
    paused = record.paused,
    totals = record.totals,
    emptied_at = record.emptied_at,
  }
end

local function copy_Totals(record)
  return { succeeded = record.succeeded, failed = record.failed, cancelled = record.cancelled }
end

local function copy_WorkerRecord(record)
  return {
    kind = "WorkerRecord",
    worker = record.worker,
    tasks = record.tasks,
    queues = record.queues,
    host = record.host,
    pid = record.pid,
    process = record.process,
    slots = record.slots,
    busy = record.busy,
    started = record.started,
    interval = record.interval,
    seen = record.seen,
    stop_asked = record.stop_asked,
    children = record.children,
    min_children = record.min_children,
    max_children = record.max_children,
  }
end

-- model/lifetimes.py: later
-- `start` plus `duration`, at most `FOREVER`.
function R.later(start, duration)
  local end_ = start + duration
  return end_ < FOREVER and end_ or FOREVER
end

-- model/lifetimes.py: untils
-- The end of each lifetime of a job that ends in `state` at `now`: visible, result, key.
function R.untils(job, state, now, result_ttl, retention)
  local given = job.given
  if given.retention ~= nil then
    retention = given.retention
  elseif retention == nil then
    retention = state == "failed" and FAILED_RETENTION or RETENTION
  end
  if given.result_ttl ~= nil then
    result_ttl = given.result_ttl
  elseif result_ttl == nil then
    result_ttl = RESULT_TTL
  end
  local result = R.later(now, result_ttl)
  return R.later(now, retention), result, R.key_until(job, state, now, result)
end

-- model/lifetimes.py: key_until
-- How long the id or key stays taken. A failed or cancelled job frees it at once.
function R.key_until(job, state, finished, result_until)
  if state ~= "succeeded" then
    return finished
  end
  local scope = job.key_scope
  -- the default
  if scope == "result" then
    return result_until
  end
  if scope == "window" then
    return math.max(finished, R.later(job.created, job.key_window))
  end
  return scope == "incomplete" and finished or FOREVER
end

-- model/history.py: extend
-- The history with one more entry. If it gets too long, entries in the middle are dropped.
function R.extend(history, entry)
  local longer = rt.extended(history, entry)
  if #longer <= KEEP_FIRST + KEEP_LAST then
    return longer
  end
  return rt.concat(rt.slice(longer, 0, KEEP_FIRST), rt.slice(longer, -KEEP_LAST))
end

-- model/records.py: Totals.plus
-- With `count` more jobs that ended in this state.
function R.Totals_plus(self, target, count)
  if target == "succeeded" then
    local copy_1 = copy_Totals(self)
    copy_1.succeeded = self.succeeded + count
    return copy_1
  elseif target == "failed" then
    local copy_2 = copy_Totals(self)
    copy_2.failed = self.failed + count
    return copy_2
  else
    local copy_3 = copy_Totals(self)
    copy_3.cancelled = self.cancelled + count
    return copy_3
  end
end

-- model/records.py: WorkerRecord.is_alive
-- True if the last heartbeat is at most three intervals old.
function R.WorkerRecord_is_alive(self, now)
  return now - self.seen <= ALIVE_FOR_INTERVALS * (self.interval ~= 0 and self.interval or INTERVAL_IF_UNKNOWN)
end

-- engines/ledger/step.py: as_waiting
-- The job with the state and hold in which it waits from now on.
function R.as_waiting(step, job)
  -- E4: blocked if something holds it, else scheduled until it is due, else queued.
  if job.hold == Hold.NONE and job.lane == nil then
    local state = job.due <= step.now and "queued" or "scheduled"
    if job.state == state then
      return job
    end
    local copy_1 = copy_JobRecord(job)
    copy_1.state = state
    return copy_1
  end
  local hold = bit.band(job.hold, bit.bnot(Hold.PAUSED))
  if hold ~= 0 then
    local copy_2 = copy_JobRecord(job)
    copy_2.hold = hold
    copy_2.state = "blocked"
    return copy_2
  end
  if job.due > step.now then
    local copy_3 = copy_JobRecord(job)
    copy_3.hold = hold
    copy_3.state = "scheduled"
    return copy_3
  end
  -- U2: the head of a paused lane is held from the time it would be queued.
  if job.lane ~= nil and step.lane(job.queue, job.lane).paused then
    local copy_4 = copy_JobRecord(job)
    copy_4.hold = Hold.PAUSED
    copy_4.state = "blocked"
    return copy_4
  end
  local copy_5 = copy_JobRecord(job)
  copy_5.hold = hold
  copy_5.state = "queued"
  return copy_5
end

-- engines/ledger/lanes.py: admit
-- Add a job to its lane; the answer is the job and the number of live jobs before it.
function R.admit(step, job)
  assert(job.lane ~= nil)
  local lane = step.lane(job.queue, job.lane)
  -- L1: the first live job is the head.
  if lane.head == nil then
    local copy_1 = copy_LaneRecord(lane)
    copy_1.head = job.id
    copy_1.depth = lane.depth + 1
    step.put(lane, copy_1)
    return job, lane.depth
  end
  -- L2, L3: the others wait, whatever their priority. L6: requeued and replaced jobs too.
  local copy_2 = copy_LaneRecord(lane)
  copy_2.depth = lane.depth + 1
  step.put(lane, copy_2)
  local copy_3 = copy_JobRecord(job)
  copy_3.hold = bit.bor(job.hold, Hold.LANE)
  return copy_3, lane.depth
end

-- engines/ledger/lanes.py: leave_lane
-- The job has ended: count it, and if it was the head, choose the next one.
function R.leave_lane(step, job)
  assert(job.lane ~= nil)
  local lane = step.lane(job.queue, job.lane)
  -- L7: the depth shrinks at once. L9: totals count ends.
  local record = copy_LaneRecord(lane)
  record.depth = lane.depth - 1
  record.totals = R.Totals_plus(lane.totals, job.state, 1)
  if record.depth == 0 then
    -- L8: the command that ends the last job reports the lane as emptied.
    step.emptied[#step.emptied + 1] = { queue = job.queue, lane = job.lane }
    local copy_1 = copy_LaneRecord(record)
    copy_1.head = nil
    copy_1.emptied = step.now
    step.put(lane, copy_1)
  elseif record.head == job.id then
    -- L3, L4: the lane goes on when its head has ended, in the same write. A head that is due later holds the lane.
    local following = R.next_head(step, job.queue, job.lane)
    local copy_2 = copy_LaneRecord(record)
    copy_2.head = following.id
    step.put(lane, copy_2)
    local copy_3 = copy_JobRecord(following)
    copy_3.hold = bit.band(following.hold, bit.bnot(Hold.LANE))
    step.put_job(following, R.as_waiting(step, copy_3))
  else
    step.put(lane, record)
  end
end

-- engines/ledger/lanes.py: next_head
-- The best of the jobs that wait, or the earliest.
function R.next_head(step, queue, lane)
  -- L4: by priority, then arrival.
  local best = S.next_in_lane(queue, lane)
  -- L5: if something else holds the best one too, the earliest arrival. It can only wait for jobs that came before it,
  -- and those have left this lane; the best one may wait for a job behind it, and the lane would stop for ever.
  if best ~= nil and best.hold ~= Hold.LANE then
    best = S.earliest_in_lane(queue, lane)
  end
  assert(best ~= nil)
  return best
end

-- engines/ledger/lanes.py: lane_depth
-- Live jobs in a lane.
function R.lane_depth(step, queue, lane)
  local record = S.lane(queue, lane)
  return record == nil and 0 or record.depth
end

-- engines/ledger/lanes.py: set_lane_paused
-- Pause or resume a lane. False: it was paused, or not paused, already.
function R.set_lane_paused(step, queue, name, paused)
  local lane = step.lane(queue, name)
  if lane.paused == paused then
    return false
  end
  local copy_1 = copy_LaneRecord(lane)
  copy_1.paused = paused
  step.put(lane, copy_1)
  -- U2: a queued head is held at once, and a head that only the pause holds goes on.
  local head = lane.head ~= nil and S.job(queue, lane.head) or nil
  if head ~= nil and (head.state == "queued" or head.hold == Hold.PAUSED) then
    step.put_job(head, R.as_waiting(step, head))
  end
  return true
end

-- engines/ledger/pools.py: place
-- The job in the lane that was chosen for it, and held if its pool is being resized.
function R.place(step, job, wanted, lane)
  local pool = R.declare_pool(step, job.queue, wanted.lanes)
  if wanted.key == nil then
    -- O2: the turn goes on behind this lane.
    local turn = pool.turn + (tonumber(lane) - pool.turn) % pool.lanes + 1
    local copy_1 = copy_PoolRecord(pool)
    copy_1.turn = turn
    step.put(pool, copy_1)
    local copy_2 = copy_JobRecord(job)
    copy_2.lane = lane
    copy_2.epoch = pool.epoch
    copy_2.pool_key = nil
    return copy_2
  end
  -- O3: a keyed job waits for the jobs of an older size.
  local hold = pool.old_live ~= 0 and bit.bor(job.hold, Hold.EPOCH) or job.hold
  local copy_3 = copy_JobRecord(job)
  copy_3.lane = lane
  copy_3.epoch = pool.epoch
  copy_3.pool_key = wanted.key
  copy_3.hold = hold
  return copy_3
end

-- engines/ledger/pools.py: choose_lanes
-- The lanes of those of a group's new jobs that go to a pool, by queue and id.
function R.choose_lanes(step, jobs, limits)
  local chosen = {}
  local list_1 = {}
  for _, job in ipairs(jobs) do
    if job.pool ~= nil then
      list_1[#list_1 + 1] = job.queue
    end
  end
  for _, item in ipairs(rt.counted(list_1)) do
    local queue, _ = item[1], item[2]
    local pool = S.pool(queue)
    local added = {}
    local keyless = {}
    local list_2 = {}
    for _, job in ipairs(jobs) do
      if job.queue == queue then
        list_2[#list_2 + 1] = job
      end
    end
    for _, job in ipairs(list_2) do
      local lane = job.lane
      if job.pool ~= nil then
        -- E8: a pool that is not stored yet has the lanes of its first job.
        pool = pool or { kind = "PoolRecord", name = queue, lanes = job.pool.lanes, epoch = 1, turn = 0, old_live = 0 }
        if job.pool.key == nil then
          keyless[#keyless + 1] = job
        else
          lane = rt.integer(rt.key_lane(job.pool.key, pool.lanes))
          chosen[queue .. "\0" .. job.id] = lane
        end
      end
      if lane ~= nil then
        added[lane] = (added[lane] or 0) + 1
      end
    end
    -- E8: jobs without a key come last, and leave the others their room.
    assert(pool ~= nil)
    local lanes = R.take_turns(step, pool, #keyless, limits, added)
    for place_3, job in ipairs(keyless) do
      local index = place_3 - 1
      chosen[queue .. "\0" .. job.id] = lanes[index + 1]
    end
  end
  return chosen
end

-- engines/ledger/pools.py: take_turns
-- The lanes of the next jobs without a key: round-robin, without lanes that are full.
function R.take_turns(step, pool, count, limits, added)
  -- O2: full with what is stored and `added`. Round again: only lanes that had room.
  local found = {}
  local turn, behind, again = pool.turn, pool.turn, 0
  local end_ = turn + math.min(pool.lanes, math.max(count, LANES_LOOKED_AT))
  while #found < count and (turn < end_ or again < #found) do
    local lane
    if turn < end_ then
      lane = rt.integer(turn % pool.lanes)
      turn = turn + 1
    else
      lane = found[again + 1]
      again = again + 1
    end
    local more = (added[lane] or 0) + 1
    if R.has_room(step, limits, pool.name, lane, more) then
      added[lane] = more
      found[#found + 1] = lane
      behind = tonumber(lane) + 1
    end
  end
  -- E8: none has room. The limit then refuses the lane whose turn it is.
  while #found < count do
    found[#found + 1] = rt.integer(behind % pool.lanes)
  end
  return found
end

-- engines/ledger/pools.py: has_room
-- Whether the limits on this lane have room for so many jobs more.
function R.has_room(step, limits, queue, lane, more)
  local all_1 = true
  for _, limit in ipairs(limits) do
    if limit.queue == queue and (limit.each_lane or limit.lane == lane) then
      if R.lane_depth(step, queue, lane) + more > limit.limit then
        all_1 = false
        break
      end
    end
  end
  return all_1
end

-- engines/ledger/pools.py: place_again
-- A requeued job in the lane that `lane_again` has chosen.
function R.place_again(step, job, lane)
  local pool = S.pool(job.queue)
  if pool == nil or job.epoch == 0 or lane == nil then
    return job
  end
  return R.place(step, job, { lanes = pool.lanes, key = job.pool_key }, lane)
end

-- engines/ledger/pools.py: lane_again
-- The lane of a requeued job.
function R.lane_again(step, job, limits)
  -- O5: by the present size.
  local pool = S.pool(job.queue)
  if pool == nil or job.epoch == 0 then
    return job.lane
  end
  if job.pool_key == nil then
    return R.take_turns(step, pool, 1, limits, {})[1]
  end
  return rt.integer(rt.key_lane(job.pool_key, pool.lanes))
end

-- engines/ledger/pools.py: leave_pool
-- A job of a pool has ended: the last one of an older size releases the jobs that are held.
function R.leave_pool(step, job)
  -- O3: `old_live` counts down.
  local pool = S.pool(job.queue)
  if pool == nil or job.epoch >= pool.epoch or pool.old_live == 0 then
    return
  end
  R._set_old(step, pool, pool.old_live - 1)
end

-- engines/ledger/pools.py: recount
-- Count the jobs of the older size again, after a record could not be read and was replaced.
function R.recount(step, name)
  local pool = S.pool(name)
  if pool ~= nil and pool.old_live ~= 0 then
    local sum_1 = 0
    for _, job in ipairs(S.live_jobs(name, nil)) do
      if 0 < job.epoch and job.epoch < pool.epoch then
        sum_1 = sum_1 + 1
      end
    end
    R._set_old(step, pool, sum_1)
  end
end

-- engines/ledger/pools.py: _set_old
function R._set_old(step, pool, count)
  local copy_1 = copy_PoolRecord(pool)
  copy_1.old_live = count
  step.put(pool, copy_1)
  if count == 0 then
    R.release_held(step, S.held_by_epoch(pool.name))
  end
end

-- engines/ledger/pools.py: release_held
-- Release jobs that waited for an older size.
function R.release_held(step, jobs)
  for _, held in ipairs(jobs) do
    local copy_1 = copy_JobRecord(held)
    copy_1.hold = bit.band(held.hold, bit.bnot(Hold.EPOCH))
    step.put_job(held, R.as_waiting(step, copy_1))
  end
end

-- engines/ledger/pools.py: declare_pool
function R.declare_pool(step, name, lanes)
  -- O1: where the pool exists, the stored number of lanes wins.
  local pool = S.pool(name)
  if pool == nil then
    pool = { kind = "PoolRecord", name = name, lanes = lanes, epoch = 1, turn = 0, old_live = 0 }
    step.queue(name)
    step.put(nil, pool)
  end
  return pool
end

-- engines/ledger/pools.py: put_pool
function R.put_pool(step, command)
  local before = S.pool(command.name)
  local pool = R.declare_pool(step, command.name, command.lanes)
  return { at = step.at, pool = pool, changed = before == nil }
end

-- engines/ledger/pools.py: resize
function R.resize(step, command)
  -- O4: not for the same number, and not while an earlier resize goes on. An unknown pool is declared.
  local before = S.pool(command.name)
  local pool = R.declare_pool(step, command.name, command.lanes)
  if pool.lanes == command.lanes or pool.old_live ~= 0 then
    return { at = step.at, pool = pool, changed = before == nil }
  end
  -- O3: the next epoch.
  local old = S.count_pooled(command.name)
  local after = copy_PoolRecord(pool)
  after.lanes = command.lanes
  after.epoch = pool.epoch + 1
  after.old_live = old
  step.put(pool, after)
  return { at = step.at, pool = after, changed = true }
end

-- engines/ledger/pools.py: pools
function R.pools(step, command)
  -- RD5: without a read of the other pools.
  if command.name == nil then
    return { at = step.at, pools = S.pools() }
  end
  local pool = S.pool(command.name)
  return { at = step.at, pools = pool == nil and {} or {pool} }
end

-- engines/ledger/pools.py: is_pool_lane
function R.is_pool_lane(step, queue, lane)
  local pool = S.pool(queue)
  return pool ~= nil and rt.is_ascii(lane) and rt.is_decimal(lane) and tonumber(lane) < pool.lanes
end

-- engines/ledger/ends.py: finish
-- End a job: void its lease, set its three lifetimes, free its lane, notify the callers that wait.
function R.finish(step, before, target, reason, job, note, settled_token, result, result_ttl, retention)
  job = job or before
  local now = step.now
  -- K1, K2, K3, K4, K5: in `model/lifetimes.py`.
  local visible, result_until, key = R.untils(job, target, now, result_ttl, retention)
  local after = R.ended_record(job, target, now, reason, note, settled_token or job.settled_token, result, {visible, result_until, key})
  step.put_job(before, after)
  step.count_end(job.queue, target, 1)
  -- N2: producers that wait for room. N3: callers that wait for the job.
  step.topics["room:" .. job.queue] = true
  for _, process in ipairs(job.reply) do
    step.topics["reply:" .. process] = true
  end
  if job.lane ~= nil then
    R.leave_lane(step, after)
  end
  if job.epoch ~= 0 then
    R.leave_pool(step, after)
  end
  -- K6, P8: all lifetimes have passed, and no child waits for it.
  if visible <= now and result_until <= now and key <= now and #S.children(job.queue, job.id, 1) == 0 then
    step.drop_job(after)
  end
end

-- engines/ledger/ends.py: ended_record
-- The record of a job that has ended. `lifetimes`: as from `untils`.
function R.ended_record(job, target, now, reason, note, settled_token, result, lifetimes)
  local item_1 = lifetimes
  local visible, result_until, key = item_1[1], item_1[2], item_1[3]
  -- W4: an ended record has no token, no lease expiry and no hold. A13: the error of a loss is with the lease.
  local copy_2 = copy_JobRecord(job)
  copy_2.state = target
  copy_2.hold = Hold.NONE
  copy_2.parents_left = 0
  copy_2.token = nil
  copy_2.lease_expires = nil
  copy_2.loss_error = nil
  copy_2.settled_token = settled_token
  copy_2.finished = now
  copy_2.reason = reason
  copy_2.note = note
  copy_2.result = result
  copy_2.visible_until = visible
  copy_2.result_until = result_until
  copy_2.key_until = key
  return copy_2
end

-- engines/ledger/ends.py: end_attempt
-- Write a counted run that did not succeed into the history.
function R.end_attempt(job, outcome, error, now)
  -- H3: under its generation. H4: the first entry and the last ones stay.
  local entry = {
    number = job.attempt,
    generation = job.generation,
    worker = job.owner,
    started = job.last_started or now,
    ended = now,
    outcome = outcome,
    error = error,
  }
  local copy_1 = copy_JobRecord(job)
  copy_1.history = R.extend(job.history, entry)
  return copy_1
end

-- engines/ledger/ends.py: cancel_waiting
-- End a job without a lease.
function R.cancel_waiting(step, job, reason, note)
  R.finish(step, job, "cancelled", reason, nil, note)
end

-- engines/ledger/ends.py: cancel_anyway
-- End a job with or without a lease; a run counts as cancelled, and its token is void.
function R.cancel_anyway(step, job, reason, note)
  if job.state == "running" then
    -- H1: a cleared run is in the history.
    local ended = R.end_attempt(job, "cancelled", nil, step.now)
    R.finish(step, job, "cancelled", reason, ended, note)
  else
    R.finish(step, job, "cancelled", reason, nil, note)
  end
end

-- engines/ledger/parents.py: link
-- Write edges to the parents that have not ended; the answer is their number, and whether a parent has failed.
function R.link(step, child, arrival, parents)
  local left, failed = 0, false
  local seen = {}
  for _, parent in ipairs(parents) do
    local job = S.job(parent.job.queue, parent.job.id)
    if not seen[parent.job.queue .. "\0" .. parent.job.id] then
      seen[parent.job.queue .. "\0" .. parent.job.id] = true
      -- P2: an ended parent needs no edge. P4: the others are counted.
      if job ~= nil and not TERMINAL[job.state] then
        step.put(nil, { kind = "Edge", parent = parent.job, child = child, arrival = arrival, any_end = parent.any_end })
        left = left + 1
      elseif not parent.any_end and (job == nil or job.state ~= "succeeded") then
        -- P3: it failed or was cancelled. No record: it was cancelled in this group, and its lifetimes are 0.
        failed = true
      end
    end
  end
  return left, failed
end

-- engines/ledger/parents.py: resolve
-- Resolve the edges of ended parents, and those of the children that this ends.
function R.resolve(step, budget)
  -- P6: at most a number per step; later commands resolve the rest.
  while true do
    if budget <= 0 then
      break
    end
    local name = S.ended_parents()
    if name == nil then
      break
    end
    budget = budget - R.resolve_one(step, name, budget)
  end
end

-- engines/ledger/parents.py: resolve_one
-- Resolve edges of one ended parent; the answer is their number. The parent is deleted if only they kept it.
function R.resolve_one(step, name, budget)
  local parent = S.job(name[1], name[2])
  assert(parent ~= nil)
  local function order_1(a, b)
    if a.child.queue ~= b.child.queue then
      return rt.less(a.child.queue, b.child.queue)
    end
    return rt.less(a.child.id, b.child.id)
  end
  local edges = rt.sorted(S.children(name[1], name[2], budget), order_1)
  for _, edge in ipairs(edges) do
    step.put(edge, nil)
    R.resolve_edge(step, parent, edge)
  end
  -- P8: the last edge is resolved.
  if math.max(parent.visible_until, parent.result_until, parent.key_until) <= step.now and #S.children(name[1], name[2], 1) == 0 then
    step.drop_job(parent)
  end
  return #edges
end

-- engines/ledger/parents.py: resolve_edge
function R.resolve_edge(step, parent, edge)
  -- P9: an edge does not apply to a later job of that id.
  local child = S.job(edge.child.queue, edge.child.id)
  if child == nil or child.arrival ~= edge.arrival or bit.band(child.hold, Hold.PARENTS) == 0 then
    return
  end
  -- P5: an end without success cancels the child, unless the edge accepts any end.
  if parent.state ~= "succeeded" and not edge.any_end then
    local note = parent.id .. " " .. parent.state
    R.cancel_waiting(step, child, "parent_failed", note)
    return
  end
  -- P4: the hold ends with the last parent.
  local left = child.parents_left - 1
  local hold = left ~= 0 and child.hold or bit.band(child.hold, bit.bnot(Hold.PARENTS))
  local copy_1 = copy_JobRecord(child)
  copy_1.parents_left = left
  copy_1.hold = hold
  step.put_job(child, R.as_waiting(step, copy_1))
end

-- engines/ledger/enqueue.py: enqueue
function R.enqueue(step, command)
  -- E1: groups are decided in order, and each gets its own answer.
  local groups = {}
  for _, group in ipairs(command.groups) do
    groups[#groups + 1] = R.enqueue_group(step, group)
  end
  R.resolve(step, 1000)
  return { at = step.at, groups = groups }
end

-- engines/ledger/enqueue.py: enqueue_group
function R.enqueue_group(step, group)
  -- E1, E2: ids, keys and parents of all jobs first, then the limits, then the writes.
  local plans = R._plan(step, group)
  if rt.kind(plans) ~= nil then
    return plans
  end
  local created = {}
  for _, plan in ipairs(plans) do
    if plan.existing == nil then
      created[#created + 1] = plan.job
    end
  end
  local chosen = R.choose_lanes(step, created, group.limits)
  local full = R.check_limits(step, group, created, chosen)
  if full ~= nil then
    return full
  end
  -- E5: a limit on lanes makes no depth of the queue exact.
  local limited = {}
  for _, limit in ipairs(group.limits) do
    if limit.lane == nil and not limit.each_lane then
      limited[limit.queue] = true
    end
  end
  local answers = {}
  local inserted = {}
  for _, plan in ipairs(plans) do
    local answer
    if plan.existing == nil then
      local lane = chosen[plan.job.queue .. "\0" .. plan.job.id]
      answer = R.insert_job(step, plan.job, lane, limited[plan.job.queue] == true)
      inserted[plan.job.queue .. "\0" .. plan.job.id] = answer
    else
      answer = R.answer_existing(step, plan.job, plan.existing, inserted)
    end
    answers[#answers + 1] = answer
  end
  return { kind = "GroupAccepted", jobs = answers }
end

-- engines/ledger/enqueue.py: _plan
function R._plan(step, group)
  local plans = {}
  local planned = { ids = {}, keys = {} }
  for _, job in ipairs(group.jobs) do
    local existing = R.existing_id(step, job, planned)
    if rt.kind(existing) == "GroupConflict" or rt.kind(existing) == "GroupOrphan" then
      return existing
    end
    if existing == nil then
      planned.ids[job.queue .. "\0" .. job.id] = job
      if job.unique_key ~= nil then
        planned.keys[job.queue .. "\0" .. job.task .. "\0" .. job.unique_key] = job.id
      end
    end
    plans[#plans + 1] = { job = job, existing = existing }
  end
  return plans
end

-- engines/ledger/enqueue.py: existing_id
-- The id of the job that answers for a new one; None: it is to be inserted.
function R.existing_id(step, job, planned)
  -- S1, D1: the id is looked at before the key. E3: inside a group the first of two wins.
  local twin = planned.ids[job.queue .. "\0" .. job.id]
  if twin ~= nil then
    return R._differs(job, twin.task, twin.payload_hash) and { kind = "GroupConflict", job = { queue = job.queue, id = job.id } } or job.id
  end
  -- E9: in `_record`. D9: a duplicate of another task or payload is a conflict.
  local record = R._record(step, job)
  -- D8: with a key, the scope governs the key, and the id is taken until the result lapses.
  if record ~= nil and R.is_taken(record, record.unique_key ~= nil and record.result_until or record.key_until, step.now) then
    return R._differs(job, record.task, record.payload_hash) and { kind = "GroupConflict", job = { queue = job.queue, id = job.id } } or job.id
  end
  if job.unique_key ~= nil then
    local holder = planned.keys[job.queue .. "\0" .. job.task .. "\0" .. job.unique_key]
    if holder == nil then
      holder = R.key_holder(S, job.queue, job.task, job.unique_key, step.now)
      if holder ~= nil and planned.ids[job.queue .. "\0" .. holder] ~= nil then
        -- this group replaces that job, and frees its key
        holder = nil
      end
    end
    if holder ~= nil then
      return holder
    end
  end
  -- P1: a parent exists, or stands earlier in the group.
  for _, parent in ipairs(job.parents) do
    if planned.ids[parent.job.queue .. "\0" .. parent.job.id] == nil and S.job(parent.job.queue, parent.job.id) == nil then
      return { kind = "GroupOrphan", parent = parent.job }
    end
  end
  return nil
end

-- engines/ledger/enqueue.py: _record
function R._record(step, job)
  -- E9: a store that enforces unique names need not look a fresh id up.
  local state = S
  if job.fresh_id then
    return state.job_of_fresh_id(job.queue, job.id)
  end
  return state.job(job.queue, job.id)
end

-- engines/ledger/enqueue.py: _differs
-- True if the same id stands for another call.
function R._differs(job, task, payload_hash)
  -- D9: another task, or another payload where both have a hash.
  return job.task ~= task or job.payload_hash ~= "" and payload_hash ~= "" and job.payload_hash ~= payload_hash
end

-- engines/ledger/enqueue.py: is_taken
-- True if this record keeps its id or key, so that a new job is a duplicate. `until`: when it expires.
function R.is_taken(job, until_, now)
  -- D3, D7: a live job keeps it; a succeeded one until that instant; a failed or cancelled one does not.
  return LIVE[job.state] == true or job.state == "succeeded" and now < until_
end

-- engines/ledger/enqueue.py: key_holder
-- The id of the job that keeps this key, so that a new job is a duplicate. None: the key is free.
function R.key_holder(state, queue, task, unique_key, now)
  -- S1, D10: a live holder, or a succeeded one until its `key_until`.
  local job = state.key_taker(queue, task, unique_key)
  return job ~= nil and R.is_taken(job, job.key_until, now) and job.id or nil
end

-- engines/ledger/enqueue.py: check_limits
-- The first limit that the group would exceed. `chosen`: the lanes of jobs that go to a pool.
function R.check_limits(step, group, created, chosen)
  -- E6, E7: in the order given, when every job is planned and none is written. E8: in `_additions`.
  for _, limit in ipairs(group.limits) do
    local list_1 = {}
    for _, job in ipairs(created) do
      if job.queue == limit.queue then
        list_1[#list_1 + 1] = job
      end
    end
    for _, item in ipairs(R._additions(limit, list_1, chosen)) do
      local lane, more = item[1], item[2]
      local depth = R.depth_of(step, limit.queue, lane)
      if depth + more > limit.limit then
        return { kind = "GroupFull", queue = limit.queue, lane = lane, depth = depth, limit = limit.limit }
      end
    end
  end
  return nil
end

-- engines/ledger/enqueue.py: _additions
-- How many of these jobs would be added to the queue, or to each lane, that the limit is about.
function R._additions(limit, jobs, chosen)
  if #jobs == 0 then
    return {}
  end
  if limit.lane == nil and not limit.each_lane then
    return {{nil, #jobs}}
  end
  -- E8: in the lane that a job names or that was chosen for it; E7: lanes in the order of the group.
  local named = {}
  for _, job in ipairs(jobs) do
    local lane
    if job.pool == nil then
      lane = job.lane
    else
      lane = chosen[job.queue .. "\0" .. job.id]
    end
    if lane ~= nil then
      named[#named + 1] = lane
    end
  end
  local list_1 = {}
  for _, item in ipairs(rt.counted(named)) do
    local lane, more = item[1], item[2]
    if limit.each_lane or lane == limit.lane then
      list_1[#list_1 + 1] = {lane, more}
    end
  end
  return list_1
end

-- engines/ledger/enqueue.py: depth_of
-- Live jobs in a queue or in one lane of it.
function R.depth_of(step, queue, lane)
  return lane == nil and S.depth(queue) or R.lane_depth(step, queue, lane)
end

-- engines/ledger/enqueue.py: record_of
-- The record of a new job, before it has a lane.
function R.record_of(step, new, old, arrival, hold, parents_left)
  -- E4: a due time in the past counts as now.
  local due = new.due == nil and step.now + new.delay or math.max(step.now, new.due)
  -- D11: the default scope.
  local scope = new.key_scope
  if scope == nil then
    scope = new.unique_key == nil and "result" or "incomplete"
  end
  -- D4: a replacement counts its generation and its fence on.
  return {
    queue = new.queue,
    id = new.id,
    task = new.task,
    tail = new.tail,
    codec = new.codec,
    payload_hash = new.payload_hash,
    priority = new.priority,
    lane = new.lane,
    unique_key = new.unique_key,
    key_scope = scope,
    key_window = new.key_window,
    expires = new.expires,
    reply = new.reply == nil and {} or {new.reply},
    given = new.given,
    state = "queued",
    hold = hold,
    generation = old == nil and 0 or old.generation + 1,
    arrival = arrival,
    created = step.now,
    due = due,
    parents_left = parents_left,
    attempt = 0,
    losses = 0,
    owner = "",
    fence = old == nil and 0 or old.fence,
    lease_len = 0,
    max_attempts = 0,
    max_losses = 0,
    cancel_asked = false,
    cancel_note = "",
    note = "",
    history = {},
    visible_until = 0,
    result_until = 0,
    key_until = 0,
    epoch = 0,
  }
end

-- engines/ledger/enqueue.py: insert_job
-- Write a new job in place of the record that has its id, if there is one. `chosen`: its lane in its pool.
function R.insert_job(step, new, chosen, counted)
  -- D2, D4, D7: no record keeps that id.
  step.queue(new.queue)
  local old = R._record(step, new)
  if old ~= nil and #S.children(new.queue, new.id, 1) > 0 then
    -- P7: the children get the end of the old job, not that of the new one.
    R.resolve_one(step, {new.queue, new.id})
    old = S.job(new.queue, new.id)
  end
  local arrival = S.new_arrival(new.queue)
  local left, parent_failed = 0, false
  if #new.parents > 0 then
    left, parent_failed = R.link(step, { queue = new.queue, id = new.id }, arrival, new.parents)
  end
  local hold = (left ~= 0 or parent_failed) and Hold.PARENTS or Hold.NONE
  local job = R.record_of(step, new, old, arrival, hold, left)
  if new.pool ~= nil and chosen ~= nil then
    job = R.place(step, job, new.pool, chosen)
  end
  local position
  if job.lane ~= nil then
    job, position = R.admit(step, job)
  end
  job = R.as_waiting(step, job)
  step.put_job(old, job)
  if job.state == "scheduled" then
    -- N1: workers that wait look again when the job is due.
    step.topics["queue:" .. job.queue] = true
  end
  -- E5: in a lane its depth, elsewhere that of the queue if the group has a limit on it.
  local depth
  if position ~= nil then
    depth = position + 1
  else
    depth = counted and S.depth(new.queue) or nil
  end
  if parent_failed then
    -- P3: created, and cancelled at once.
    R.cancel_waiting(step, job, "parent_failed", "a parent had failed before")
    local copy_1 = copy_JobRecord(job)
    copy_1.state = "cancelled"
    job = copy_1
  end
  return {
    status = "created",
    id = job.id,
    state = job.state,
    arrival = job.arrival,
    generation = job.generation,
    position = position,
    depth = depth,
    codec = "json",
    lane = job.lane,
  }
end

-- engines/ledger/enqueue.py: answer_existing
-- The job that was there first answers for the new one.
function R.answer_existing(step, new, job_id, inserted)
  -- E3: a duplicate is answered, not failed.
  local job = S.job(new.queue, job_id)
  -- the first of the two was cancelled when it was inserted, and its lifetimes are 0
  if job == nil then
    local first = inserted[new.queue .. "\0" .. job_id]
    local copy_1 = copy_Accepted(first)
    copy_1.status = "duplicate"
    copy_1.position = nil
    copy_1.depth = nil
    return copy_1
  end
  if new.reply ~= nil and LIVE[job.state] == true and not rt.contains(job.reply, new.reply) then
    -- D12: the second caller is notified too.
    local after = copy_JobRecord(job)
    after.reply = rt.extended(job.reply, new.reply)
    step.put_job(job, after)
    job = after
  end
  -- D5, D6: completed while the result is kept, duplicate after that.
  local completed = job.state == "succeeded" and step.now < job.result_until
  return {
    status = completed and "completed" or "duplicate",
    id = job.id,
    state = job.state,
    arrival = job.arrival,
    generation = job.generation,
    result = completed and job.result or nil,
    codec = job.codec,
    lane = job.lane,
  }
end

-- engines/ledger/claim.py: claim
-- Leases in claim order, and when the next waiting job of these queues falls due.
function R.claim(step, request)
  -- T2: a claim sent again answers the leases it still holds, and takes nothing new.
  local held = S.held_by(request.claim_id)
  local function order_1(a, b)
    return rt.rank_of(a.token) < rt.rank_of(b.token)
  end
  local leases = rt.sorted(held, order_1)
  local next_due
  -- S3: the queues in the order given.
  for _, wanted in ipairs(request.queues) do
    local record = S.queue(wanted.queue)
    -- C5, U1: a paused queue gives no job and no `next_due`.
    if not (record == nil or record.paused) then
      -- C1: jobs that are due become ready, also where the claim takes nothing.
      R.promote_due(step, wanted.queue)
      if #held == 0 then
        -- S2, R1, C2, C3, L8: in `take`. T1, T3, A1: in `grant`.
        R.take(step, request, wanted, leases)
      end
      -- C4: the earliest of all queues of the claim.
      local due = S.next_due(wanted.queue)
      if due ~= nil and (next_due == nil or due < next_due) then
        next_due = due
      end
    end
  end
  return leases, next_due
end

-- engines/ledger/claim.py: promote_due
-- Let jobs that have fallen due become ready.
function R.promote_due(step, queue)
  -- C1: in (due, arrival) order, a bounded number.
  for job in S.due(queue, step.now, MOST_PROMOTED) do
    step.put_job(job, R.as_waiting(step, job))
  end
end

-- engines/ledger/claim.py: take
function R.take(step, request, wanted, leases)
  -- C2: the limits of queue and task cap running and assigned jobs together.
  local first = S.first_rank()
  local left = request.limit + request.prefetch - first - #leases
  if wanted.limit ~= nil then
    left = math.min(left, wanted.limit)
  end
  if left <= 0 then
    return
  end
  local shares = {}
  for _, task in ipairs(wanted.tasks) do
    shares[#shares + 1] = task.limit or left
  end
  local heads = R._heads(step, wanted, shares)
  local expired = 0
  while left > 0 and #heads > 0 do
    local item_2 = heads[1]
    local _, task, job, following = item_2[1], item_2[2], item_2[3], item_2[4]
    if job.expires ~= nil and job.expires <= step.now then
      -- C3: the claim goes on, and leaves the queue after a bounded number of them.
      R.cancel_waiting(step, job, "expired", "")
      R.resolve(step, 1000)
      -- a job of its lane or a child may come first now
      heads = R._heads(step, wanted, shares)
      expired = expired + 1
      if expired == MOST_EXPIRED then
        return
      end
    else
      leases[#leases + 1] = R.grant(step, job, request, wanted.tasks[task + 1], first + #leases)
      left = left - 1
      shares[task + 1] = shares[task + 1] - 1
      local head = shares[task + 1] > 0 and left > 0 and R._head(task, following) or nil
      if head == nil then
        rt.heappop(heads)
      else
        rt.heapreplace(heads, head)
      end
    end
  end
end

-- engines/ledger/claim.py: _heads
-- The first ready job of each task that still has a share, as a heap.
function R._heads(step, wanted, shares)
  -- R1: of the tasks that the claim names.
  local heads = {}
  for place_1, task in ipairs(wanted.tasks) do
    local index = place_1 - 1
    if shares[index + 1] > 0 then
      local about = math.floor(shares[index + 1] / #wanted.tasks) + 1
      local head = R._head(index, S.ready(wanted.queue, task.task, about))
      if head ~= nil then
        heads[#heads + 1] = head
      end
    end
  end
  rt.heapify(heads)
  return heads
end

-- engines/ledger/claim.py: _head
function R._head(task, jobs)
  -- S2: priority, due, arrival.
  local job = jobs()
  return job ~= nil and {{-job.priority, job.due, job.arrival}, task, job, jobs} or nil
end

-- engines/ledger/claim.py: grant
-- Give the lease: a new token, a higher fence, one more attempt.
function R.grant(step, job, request, terms, rank)
  local after
  if job.lane == nil then
    after = R.leased_record(job, request, terms, rank, step.at, job.fence)
  else
    local lane = step.lane(job.queue, job.lane)
    after = R.leased_record(job, request, terms, rank, step.at, math.max(job.fence, lane.fence))
    local copy_1 = copy_LaneRecord(lane)
    copy_1.fence = after.fence
    step.put(lane, copy_1)
  end
  step.put_job(job, after)
  return after
end

-- engines/ledger/claim.py: leased_record
-- The record of a job with a new lease. `last_fence`: of the job, or of its lane if that is higher.
function R.leased_record(job, request, terms, rank, at, last_fence)
  local now, given = at.wall, job.given
  local lease_len = given.lease_len or terms.lease_len
  -- C2: the first `limit` jobs run, the next `prefetch` are assigned.
  local runs = rank < request.limit
  -- T3: above the last fence of the job and of its lane, and at least the wall time.
  local copy_1 = copy_JobRecord(job)
  copy_1.state = runs and "running" or "assigned"
  copy_1.attempt = job.attempt + 1  -- A1
  copy_1.owner = request.worker
  copy_1.token = request.claim_id .. "." .. rt.integer(rank)  -- T1
  copy_1.fence = now > last_fence and now or last_fence + 1
  copy_1.lease_expires = at.lease + lease_len
  copy_1.lease_len = lease_len
  copy_1.max_attempts = given.max_attempts or terms.max_attempts
  copy_1.max_losses = given.max_losses or terms.max_losses
  copy_1.started = runs and job.started == nil and now or job.started
  copy_1.last_started = runs and now or job.last_started
  copy_1.progress = nil
  return copy_1
end

-- engines/ledger/settle.py: exchange
function R.exchange(step, command)
  -- G8: commands run one after the other here, so no job is locked and nothing is `busy`.
  -- W2: settlements, then children, then starts, then due jobs and the claim.
  local settled = {}
  for _, settlement in ipairs(command.settlements) do
    settled[#settled + 1] = R.settle(step, settlement)
  end
  R.resolve(step, 1000)
  local started = {}
  for _, one in ipairs(command.starts) do
    started[#started + 1] = R.start(step, one)
  end
  local leases, next_due
  if command.claim == nil then
    leases, next_due = {}, nil
  else
    leases, next_due = R.claim(step, command.claim)
  end
  -- L8
  return {
    at = step.at,
    settled = settled,
    started = started,
    emptied = step.emptied,
    leases = leases,
    next_due = next_due,
  }
end

-- engines/ledger/settle.py: settle
function R.settle(step, settlement)
  local job = S.job(settlement.queue, settlement.id)
  -- G1: there is no record.
  if job == nil then
    return "gone"
  end
  local reap = settlement.listed_expiry ~= nil
  -- G2: only the current token settles; the owner's last one is answered again.
  if job.token ~= settlement.token then
    -- A11: the process of its handler has died, so the loss that the reaper has counted stays.
    if not reap and settlement.reason == "worker_lost" and not settlement.loss then
      R.give_back_loss(step, job, settlement.token)
    end
    local again = not reap and job.settled_token == settlement.token
    return again and "applied" or "lost"
  end
  -- G3: the lease was renewed or began to run after the reaper listed it.
  if reap and not R._may_reap(step, job, settlement) then
    return "lost"
  end
  -- A3: settling an assigned job implies its start, except for a release and a reap.
  if job.state == "assigned" and not reap and settlement.target ~= "queued" then
    job = R.begin_attempt(step, job)
  end
  -- G4: a job with a cancel request does not run again.
  if job.cancel_asked and not TERMINAL[settlement.target] then
    R.apply_settlement(step, job, settlement, "cancelled", "asked", job.cancel_note)
    return "cancelled_instead"
  end
  -- G5: cancelling without a note of its own keeps the note of the cancel request.
  local note = settlement.note
  if settlement.target == "cancelled" then
    note = note ~= "" and note or job.cancel_note
  end
  R.apply_settlement(step, job, settlement, settlement.target, settlement.reason, note)
  return "applied"
end

-- engines/ledger/settle.py: _may_reap
-- Whether the lease is still the one that the reaper listed, and has expired.
function R._may_reap(step, job, settlement)
  assert(settlement.listed_expiry ~= nil)
  if settlement.refund and job.state == "running" then
    -- it began to run after it was listed, so its attempt counts
    return false
  end
  return job.lease_expires == settlement.listed_expiry and settlement.listed_expiry <= step.at.lease
end

-- engines/ledger/settle.py: give_back_loss
-- The owner of a reaped lease reports that it lives.
function R.give_back_loss(step, job, token)
  -- A8: the loss does not count any more; a job that has ended stays as it is.
  if LIVE[job.state] == true and job.reaped_token == token then
    local copy_1 = copy_JobRecord(job)
    copy_1.losses = job.losses - 1
    copy_1.reaped_token = nil
    step.put_job(job, copy_1)
  end
end

-- engines/ledger/settle.py: apply_settlement
function R.apply_settlement(step, before, settlement, target, reason, note)
  local reap = settlement.listed_expiry ~= nil
  local succeeded = target == "succeeded"
  local job = before
  -- H1: a counted run that did not succeed; H2: under the name of its outcome.
  local counted = before.state == "running" and not settlement.refund
  if counted and ENDS_A_RUN[target] then
    job = R.end_attempt(job, R.outcome_of(target, settlement.reason), settlement.error, step.now)
  end
  local error = settlement.error or job.last_error
  -- G7
  local settled_token
  if reap then
    settled_token = job.settled_token
  else
    settled_token = settlement.token
  end
  -- W5
  local last_error = not succeeded and error or nil
  -- A6, A11
  local loss = reap or settlement.loss
  -- a plain success changes none of these
  if loss or settlement.refund or last_error ~= job.last_error then
    local copy_1 = copy_JobRecord(job)
    copy_1.attempt = settlement.refund and job.attempt - 1 or job.attempt  -- A4
    copy_1.losses = loss and job.losses + 1 or job.losses
    copy_1.reaped_token = reap and settlement.token or job.reaped_token  -- A8
    copy_1.last_error = last_error
    job = copy_1
  end
  -- W6
  if settlement.progress ~= nil then
    local copy_2 = copy_JobRecord(job)
    copy_2.progress = settlement.progress
    job = copy_2
  end
  if TERMINAL[target] then
    -- W5
    R.finish(step, before, target, reason, job, note, settled_token, succeeded and settlement.result or nil, settlement.result_ttl, settlement.retention)
    return
  end
  local copy_3 = copy_JobRecord(job)
  copy_3.settled_token = settled_token
  copy_3.token = nil
  copy_3.lease_expires = nil
  copy_3.loss_error = nil
  copy_3.reason = reason
  copy_3.note = note
  job = copy_3
  if target == "queued" then
    -- W3: a release keeps its due time.
    step.put_job(before, R.as_waiting(step, job))
  else
    -- W1: written as retrying or scheduled, also if it is due at once.
    local due = settlement.due == nil and step.now + settlement.delay or math.max(step.now, settlement.due)
    local copy_4 = copy_JobRecord(job)
    copy_4.state = target
    copy_4.due = due
    step.put_job(before, copy_4)
    -- N1: it can be claimed now, or a reaper, which claims nothing, has set when it falls due.
    if due <= step.now or reap then
      step.topics["queue:" .. job.queue] = true
    end
  end
end

-- engines/ledger/settle.py: outcome_of
-- How the history names a run that did not succeed.
function R.outcome_of(target, reason)
  -- H2: by the reason first, then by the target.
  if reason == "worker_lost" then
    return "worker_lost"
  end
  if reason == "timeout" then
    return "timed_out"
  end
  return target == "cancelled" and "cancelled" or "failed"
end

-- engines/ledger/settle.py: start
function R.start(step, one)
  -- A2: the checks in this order.
  local job = S.job(one.queue, one.id)
  if job == nil or job.token ~= one.token then
    return "lost"
  end
  if job.cancel_asked then
    return "cancel"
  end
  if job.state == "running" then
    return "started"
  end
  if R.scope_paused(step, job) then
    return "hold"
  end
  R.begin_attempt(step, job)
  return "started"
end

-- engines/ledger/settle.py: begin_attempt
-- Let an assigned job run.
function R.begin_attempt(step, job)
  -- A1: the attempt was counted at the claim.
  local after = copy_JobRecord(job)
  after.state = "running"
  after.started = job.started or step.now
  after.last_started = step.now
  step.put_job(job, after)
  return after
end

-- engines/ledger/settle.py: scope_paused
-- Whether the job's queue or lane is paused.
function R.scope_paused(step, job)
  if step.queue(job.queue).paused then
    return true
  end
  return job.lane ~= nil and step.lane(job.queue, job.lane).paused
end

-- engines/ledger/leases.py: renew
function R.renew(step, command)
  -- T4: accepted while the token is the current one, also after the expiry.
  -- PF4: `at.lease` is the store's own clock; a time that a process has seen is not part of it.
  -- T9: commands run one after the other here, so no job is locked and nothing is `busy`.
  -- T5: extended, also if the answer is `cancel` or `hold`.
  local list_1 = {}
  for _, renewal in ipairs(command.jobs) do
    list_1[#list_1 + 1] = R._renew(step, renewal)
  end
  return { at = step.at, jobs = list_1 }
end

-- engines/ledger/leases.py: _renew
function R._renew(step, renewal)
  local job = S.job(renewal.queue, renewal.id)
  if job == nil or job.token ~= renewal.token or job.lease_expires == nil then
    return { status = "lost" }
  end
  local expires = math.max(job.lease_expires, step.at.lease + job.lease_len)
  local progress = renewal.progress or job.progress
  -- A13: its owner lives.
  local copy_1 = copy_JobRecord(job)
  copy_1.lease_expires = expires
  copy_1.progress = progress
  copy_1.loss_error = nil
  step.put_job(job, copy_1)
  if job.cancel_asked then
    return { status = "cancel", lease_expires = expires }
  end
  if job.state == "assigned" and R.scope_paused(step, job) then
    return { status = "hold", lease_expires = expires }
  end
  return { status = "held", lease_expires = expires }
end

-- engines/ledger/leases.py: expired
function R.expired(step, command)
  -- PF4: by the store's own clock.
  -- T6: of the tasks named, and of every task after a long time.
  local list_1 = {}
  for _, job in ipairs(S.leases_until(step.at.lease)) do
    if R.is_listed(step, command, job) then
      list_1[#list_1 + 1] = job
    end
  end
  local function order_2(a, b)
    if a.lease_expires ~= b.lease_expires then
      return a.lease_expires < b.lease_expires
    end
    if a.queue ~= b.queue then
      return rt.less(a.queue, b.queue)
    end
    return rt.less(a.id, b.id)
  end
  local overdue = rt.sorted(list_1, order_2)
  -- T7: reapers that list at the same time begin at different places.
  if #overdue > 0 then
    local start = S.reap_start(command.worker, #overdue)
    overdue = rt.concat(rt.slice(overdue, start), rt.slice(overdue, 0, start))
  end
  local list_3 = {}
  for _, job in ipairs(rt.slice(overdue, 0, command.limit)) do
    list_3[#list_3 + 1] = R._listed(job)
  end
  return { at = step.at, leases = list_3 }
end

-- engines/ledger/leases.py: is_listed
function R.is_listed(step, command, job)
  assert(job.lease_expires ~= nil)
  local late = step.at.lease - job.lease_expires
  return command.tasks == nil or rt.contains(command.tasks, job.task) or late > REAPED_BY_ALL_AFTER * job.lease_len
end

-- engines/ledger/leases.py: _listed
function R._listed(job)
  assert(job.token ~= nil)
  assert(job.lease_expires ~= nil)
  return {
    queue = job.queue,
    id = job.id,
    task = job.task,
    token = job.token,
    owner = job.owner,
    lease_expires = job.lease_expires,
    state = job.state,
    attempt = job.attempt,
    losses = job.losses,
    max_attempts = job.max_attempts,
    max_losses = job.max_losses,
    cancel_asked = job.cancel_asked,
    loss_error = job.loss_error,
  }
end

-- engines/ledger/leases.py: disown
function R.disown(step, command)
  -- PF4: by the store's own clock.
  -- T8: all leases of these workers expire now at the latest.
  local function order_1(a, b)
    if a.queue ~= b.queue then
      return rt.less(a.queue, b.queue)
    end
    return rt.less(a.id, b.id)
  end
  local leases = rt.sorted(S.leases_of(command.workers), order_1)
  for _, job in ipairs(leases) do
    assert(job.lease_expires ~= nil)
    -- A13: an error replaces an earlier one; without one, that stays.
    if job.lease_expires > step.at.lease or command.error ~= nil then
      local expires = math.min(job.lease_expires, step.at.lease)
      local error = command.error or job.loss_error
      local copy_2 = copy_JobRecord(job)
      copy_2.lease_expires = expires
      copy_2.loss_error = error
      step.put_job(job, copy_2)
    end
  end
  local list_3 = {}
  for _, job in ipairs(leases) do
    list_3[#list_3 + 1] = { queue = job.queue, id = job.id }
  end
  return { at = step.at, leases = list_3 }
end

-- engines/ledger/leases.py: heartbeat
function R.heartbeat(step, command)
  -- WK1: the record as sent, but `seen` and `stop_asked` are the engine's.
  local before = S.worker(command.worker.worker)
  local stop = before ~= nil and before.stop_asked
  local copy_1 = copy_WorkerRecord(command.worker)
  copy_1.seen = step.now
  copy_1.stop_asked = stop
  step.put(before, copy_1)
  return { at = step.at, stop = stop }
end

-- engines/ledger/leases.py: workers
function R.workers(step, command)
  return { at = step.at, workers = S.workers() }
end

-- engines/ledger/leases.py: stop_worker
function R.stop_worker(step, command)
  local worker = S.worker(command.worker)
  if worker ~= nil then
    -- WK2: the next heartbeat answers `stop`. N4: the worker is notified.
    local copy_1 = copy_WorkerRecord(worker)
    copy_1.stop_asked = true
    step.put(worker, copy_1)
    step.topics["worker:" .. command.worker] = true
  end
  return { at = step.at, found = worker ~= nil }
end

-- engines/ledger/leases.py: forget_worker
function R.forget_worker(step, command)
  -- WK1: a worker that ends removes its record.
  local worker = S.worker(command.worker)
  if worker ~= nil then
    step.put(worker, nil)
  end
  return { at = step.at, found = worker ~= nil }
end

-- engines/ledger/operate.py: cancel
function R.cancel(step, command)
  local answers = {}
  for _, job_id in ipairs(command.ids) do
    answers[#answers + 1] = R.cancel_one(step, command, job_id)
    R.resolve(step, 1000)
  end
  return { at = step.at, jobs = answers }
end

-- engines/ledger/operate.py: cancel_one
function R.cancel_one(step, command, job_id)
  local job = S.job(command.queue, job_id)
  -- X3: absent or ended.
  if job == nil then
    return { status = "not_found" }
  end
  if TERMINAL[job.state] then
    return { status = "finished", state = job.state }
  end
  -- X1: a waiting job ends at once.
  if WAITING[job.state] then
    R.cancel_waiting(step, job, "asked", command.note)
    return { status = "cancelled", state = "cancelled" }
  end
  -- X2: a leased job is marked, and the first note stays. N4: its worker is notified.
  if not job.cancel_asked then
    local copy_1 = copy_JobRecord(job)
    copy_1.cancel_asked = true
    copy_1.cancel_note = command.note
    step.put_job(job, copy_1)
  end
  step.topics["worker:" .. job.owner] = true
  return { status = "requested", state = job.state }
end

-- engines/ledger/operate.py: requeue
function R.requeue(step, command)
  local list_1 = {}
  for _, job_id in ipairs(command.ids) do
    list_1[#list_1 + 1] = R.requeue_one(step, command, job_id)
  end
  return { at = step.at, jobs = list_1 }
end

-- engines/ledger/operate.py: requeue_one
function R.requeue_one(step, command, job_id)
  local job = S.job(command.queue, job_id)
  if job == nil then
    return NOT_FOUND
  end
  -- RQ1: failed or cancelled, its key free, its queue or lane not full.
  if not (job.state == "failed" or job.state == "cancelled") then
    return { status = "wrong_state", state = job.state }
  end
  if #S.children(job.queue, job.id, 1) > 0 then
    -- P7: its children get this end before it is requeued. P8: only its edges may have kept the record.
    R.resolve_one(step, {job.queue, job.id})
    if S.job(job.queue, job.id) == nil then
      return NOT_FOUND
    end
  end
  local key = job.unique_key
  if key ~= nil and R.key_holder(S, job.queue, job.task, key, step.now) ~= nil then
    return { status = "key_taken", state = job.state }
  end
  local lane = R.lane_again(step, job, command.limits)
  local any_1 = false
  for _, limit in ipairs(command.limits) do
    if R.is_full(step, limit, job, lane) then
      any_1 = true
      break
    end
  end
  if any_1 then
    return { status = "queue_full", state = job.state }
  end
  local after = R.place_again(step, R.revive(step, job), lane)
  if after.lane ~= nil then
    -- L6: at the tail.
    local _
    after, _ = R.admit(step, after)
  end
  after = R.as_waiting(step, after)
  step.put_job(job, after)
  return { status = "done", state = after.state }
end

-- engines/ledger/operate.py: revive
-- The record of an ended job as it begins again.
function R.revive(step, job)
  -- RQ2: everything about the last generation is cleared, but history, last error, fence, reply and `expires` stay.
  -- H3, P9, T3, W5: so history and last error stay, the child has no parents, and its fence grows.
  local copy_1 = copy_JobRecord(job)
  copy_1.generation = job.generation + 1
  copy_1.arrival = S.new_arrival(job.queue)
  copy_1.due = step.now
  copy_1.hold = Hold.NONE
  copy_1.attempt = 0
  copy_1.losses = 0
  copy_1.reaped_token = nil
  copy_1.started = nil
  copy_1.last_started = nil
  copy_1.progress = nil
  copy_1.cancel_asked = false
  copy_1.cancel_note = ""
  copy_1.finished = nil
  copy_1.reason = nil
  copy_1.note = ""
  copy_1.result = nil
  copy_1.visible_until = 0
  copy_1.result_until = 0
  copy_1.key_until = 0
  return copy_1
end

-- engines/ledger/operate.py: is_full
-- Whether this limit leaves no room for a requeued job in the lane `ahead`.
function R.is_full(step, limit, job, ahead)
  -- RQ1: a limit on lanes is about the lane that the job will go to.
  if limit.queue ~= job.queue then
    return false
  end
  local lane = limit.lane
  if limit.each_lane or lane ~= nil then
    if ahead == nil or not (lane == nil or lane == ahead) then
      return false
    end
    lane = ahead
  end
  return R.depth_of(step, limit.queue, lane) >= limit.limit
end

-- engines/ledger/operate.py: trigger
function R.trigger(step, command)
  local list_1 = {}
  for _, job_id in ipairs(command.ids) do
    list_1[#list_1 + 1] = R.trigger_one(step, command, job_id)
  end
  return { at = step.at, jobs = list_1 }
end

-- engines/ledger/operate.py: trigger_one
function R.trigger_one(step, command, job_id)
  local job = S.job(command.queue, job_id)
  if job == nil then
    return NOT_FOUND
  end
  -- TR1: only a due time can be moved.
  if job.state == "queued" then
    return { status = "done", state = job.state }
  end
  if not (job.state == "scheduled" or job.state == "retrying") then
    return { status = "wrong_state", state = job.state }
  end
  local copy_1 = copy_JobRecord(job)
  copy_1.due = step.now
  local after = R.as_waiting(step, copy_1)
  step.put_job(job, after)
  return { status = "done", state = after.state }
end

-- engines/ledger/operate.py: delete
function R.delete(step, command)
  -- DL1: ended jobs only.
  local list_1 = {}
  for _, job_id in ipairs(command.ids) do
    list_1[#list_1 + 1] = R.delete_one(step, command, job_id)
  end
  return { at = step.at, jobs = list_1 }
end

-- engines/ledger/operate.py: delete_one
function R.delete_one(step, command, job_id)
  local job = S.job(command.queue, job_id)
  if job == nil then
    return NOT_FOUND
  end
  if not TERMINAL[job.state] then
    return { status = "wrong_state", state = job.state }
  end
  if #S.children(job.queue, job.id, 1) > 0 then
    -- P7: the children get the end first.
    R.resolve_one(step, {job.queue, job.id})
  end
  if S.job(job.queue, job.id) ~= nil then
    step.drop_job(job)
  end
  return { status = "done", state = job.state }
end

-- engines/ledger/operate.py: amend
function R.amend(step, command)
  local list_1 = {}
  for _, job_id in ipairs(command.ids) do
    list_1[#list_1 + 1] = R.amend_one(step, command, job_id)
  end
  return { at = step.at, jobs = list_1 }
end

-- engines/ledger/operate.py: amend_one
function R.amend_one(step, command, job_id)
  local job = S.job(command.queue, job_id)
  if job == nil then
    return NOT_FOUND
  end
  -- AM2, AM4: a part that does not fit the state refuses all of them.
  local ended = TERMINAL[job.state] == true
  if command.priority ~= nil and ended then
    return { status = "wrong_state", state = job.state }
  end
  if command.due ~= nil and (not WAITING[job.state] or job.state == "queued") then
    return { status = "wrong_state", state = job.state }
  end
  -- AM1, AM3: on an ended job the lifetimes, on a live one `given` and `reply`.
  local after = ended and R._amend_ended(job, command, step.now) or R._amend_live(step, job, command)
  if not rt.equal(after, job) then
    step.put_job(job, after)
  end
  return { status = "done", state = after.state }
end

-- engines/ledger/operate.py: _amend_ended
-- Compute the lifetimes again from the end of the job; the key follows the result if its scope says so.
function R._amend_ended(job, command, now)
  assert(job.finished ~= nil)
  local visible, result = job.visible_until, job.result_until
  if command.retention ~= nil then
    visible = R.later(job.finished, command.retention)
  end
  if command.result_ttl ~= nil then
    result = R.later(job.finished, command.result_ttl)
  end
  local key = R.key_until(job, job.state, job.finished, result)
  if job.unique_key ~= nil and job.key_until <= now then
    -- it has lapsed, and another job may have taken it
    key = job.key_until
  end
  local copy_1 = copy_JobRecord(job)
  copy_1.visible_until = visible
  copy_1.result_until = result
  copy_1.key_until = key
  return copy_1
end

-- engines/ledger/operate.py: _amend_live
function R._amend_live(step, job, command)
  local given = job.given
  if command.retention ~= nil then
    local copy_1 = copy_Given(given)
    copy_1.retention = command.retention
    given = copy_1
  end
  if command.result_ttl ~= nil then
    local copy_2 = copy_Given(given)
    copy_2.result_ttl = command.result_ttl
    given = copy_2
  end
  local due = job.due
  if command.due ~= nil then
    due = math.max(step.now, command.due)
    -- N1
    step.topics["queue:" .. job.queue] = true
  end
  local reply = job.reply
  if command.reply ~= nil and not rt.contains(reply, command.reply) then
    reply = rt.extended(reply, command.reply)
  end
  local priority = command.priority or job.priority
  local copy_3 = copy_JobRecord(job)
  copy_3.given = given
  copy_3.due = due
  copy_3.reply = reply
  copy_3.priority = priority
  return copy_3
end

-- engines/ledger/scopes.py: pause
function R.pause(step, command)
  return R.set_paused(step, command, true)
end

-- engines/ledger/scopes.py: resume
function R.resume(step, command)
  return R.set_paused(step, command, false)
end

-- engines/ledger/scopes.py: set_paused
function R.set_paused(step, command, paused)
  -- U3: a pause gives an unknown queue or lane a record; a resume of one changes nothing.
  if not paused and not R._is_known(step, command.queue, command.lane) then
    return { at = step.at, count = 0, changed = false }
  end
  -- U4: the answer counts the live jobs of the scope.
  local queue = step.queue(command.queue)
  local changed
  if command.lane ~= nil then
    changed = R.set_lane_paused(step, command.queue, command.lane, paused)
    return { at = step.at, count = step.lane(command.queue, command.lane).depth, changed = changed }
  end
  -- U1: claims read the flag.
  changed = queue.paused ~= paused
  if changed then
    local copy_1 = copy_QueueRecord(queue)
    copy_1.paused = paused
    step.put(queue, copy_1)
    if not paused then
      -- N1
      step.topics["queue:" .. command.queue] = true
    end
  end
  return { at = step.at, count = S.depth(command.queue), changed = changed }
end

-- engines/ledger/scopes.py: _is_known
function R._is_known(step, queue, lane)
  local value_1
  if lane == nil then
    value_1 = S.queue(queue)
  else
    value_1 = S.lane(queue, lane)
  end
  return value_1 ~= nil
end

-- engines/ledger/scopes.py: clear
function R.clear(step, command)
  -- CL1: every live job. CL2: the latest arrival first, so that lanes promote few of the jobs that end next.
  local jobs = S.to_clear(command.queue, command.lane)
  R.clear_some(step, jobs)
  return { at = step.at, count = #jobs, changed = true }
end

-- engines/ledger/scopes.py: clear_some
-- End these jobs.
function R.clear_some(step, jobs)
  for _, listed in ipairs(jobs) do
    -- its lane may have promoted it: then it has a new record
    local job = S.job(listed.queue, listed.id)
    assert(job ~= nil)
    R.cancel_anyway(step, job, "cleared", "")
  end
  R.resolve(step, 1000)
end

-- engines/ledger/scopes.py: emptied
function R.emptied(step, command)
  -- EM1: true for one caller each time the queue runs empty.
  local queue = S.queue(command.queue)
  if queue == nil or queue.totals.succeeded + queue.totals.failed + queue.totals.cancelled <= queue.emptied_at or S.depth(command.queue) ~= 0 then
    return { at = step.at, emptied = false }
  end
  local copy_1 = copy_QueueRecord(queue)
  copy_1.emptied_at = queue.totals.succeeded + queue.totals.failed + queue.totals.cancelled
  step.put(queue, copy_1)
  return { at = step.at, emptied = true }
end

-- engines/ledger/scopes.py: remove_queue
function R.remove_queue(step, command)
  -- RM1: only a queue without jobs, pause and live workers.
  local name = command.queue
  local queue, lanes_of_queue = S.queue(name), S.lanes(name)
  if queue == nil then
    return { at = step.at, status = "not_found", jobs = 0, workers = {} }
  end
  local jobs = rt.sum(S.counts(name))
  if jobs ~= 0 then
    return { at = step.at, status = "has_jobs", jobs = jobs, workers = {} }
  end
  local test_3 = queue.paused
  if not test_3 then
    local any_2 = false
    for _, lane in ipairs(lanes_of_queue) do
      if lane.paused then
        any_2 = true
        break
      end
    end
    test_3 = any_2
  end
  if test_3 then
    return { at = step.at, status = "paused", jobs = 0, workers = {} }
  end
  local serving = {}
  for _, worker in ipairs(S.workers()) do
    if rt.contains(worker.queues, name) and R.WorkerRecord_is_alive(worker, step.now) then
      serving[#serving + 1] = worker
    end
  end
  if #serving > 0 then
    local names = {}
    for _, worker in ipairs(serving) do
      names[#names + 1] = worker.worker
    end
    return { at = step.at, status = "served", jobs = 0, workers = names }
  end
  -- RM2: its lanes, its pool, its totals and its name.
  for _, lane in ipairs(lanes_of_queue) do
    step.put(lane, nil)
  end
  local pool = S.pool(name)
  if pool ~= nil then
    step.put(pool, nil)
  end
  step.put(queue, nil)
  return { at = step.at, status = "removed", jobs = 0, workers = {} }
end

-- engines/ledger/prune.py: prune
-- `chosen` is another engine's choice of what to take, when the ledger only follows it.
function R.prune(step, command, chosen)
  -- PR1: waiting jobs past their `expires` first, since they may be deletable at once.
  local late = {}
  for _, job in ipairs(S.expiring(step.now, command.limit + 1)) do
    late[#late + 1] = { queue = job.queue, id = job.id }
  end
  local function order_2(a, b)
    if a.queue ~= b.queue then
      return rt.less(a.queue, b.queue)
    end
    return rt.less(a.id, b.id)
  end
  local expired = rt.sorted(chosen == nil and rt.slice(late, 0, command.limit) or chosen.expired, order_2)
  local job
  for _, key in ipairs(expired) do
    job = S.job(key.queue, key.id)
    -- not cancelled already by a parent before it
    if job ~= nil and WAITING[job.state] == true then
      R.cancel_waiting(step, job, "expired", "")
    end
  end
  R.resolve(step, 1000)
  -- PR1, K6: ended jobs whose three lifetimes have passed, and that no edge keeps.
  local over = {}
  for _, job in ipairs(S.ended(step.now, command.limit + 1)) do
    over[#over + 1] = { queue = job.queue, id = job.id }
  end
  local function order_4(a, b)
    if a.queue ~= b.queue then
      return rt.less(a.queue, b.queue)
    end
    return rt.less(a.id, b.id)
  end
  local deleted = rt.sorted(chosen == nil and rt.slice(over, 0, command.limit) or chosen.deleted, order_4)
  for _, key in ipairs(deleted) do
    job = S.job(key.queue, key.id)
    assert(job ~= nil)
    step.drop_job(job)
  end
  -- PR2: workers without heartbeats, and lanes that have been empty for a day.
  local silent = {}
  for _, worker in ipairs(S.workers()) do
    if R.is_silent(worker, step.now) then
      silent[#silent + 1] = worker
    end
  end
  for _, worker in ipairs(silent) do
    step.put(worker, nil)
  end
  for _, lane in ipairs(S.idle_lanes(step.now - RETENTION)) do
    if not R.is_pool_lane(step, lane.queue, lane.lane) then
      -- L9: the queue's totals have counted its jobs
      step.put(lane, nil)
    end
  end
  local more = math.max(#late, #over) > command.limit or S.ended_parents() ~= nil
  local names = {}
  for _, worker in ipairs(silent) do
    names[#names + 1] = worker.worker
  end
  return { at = step.at, deleted = deleted, expired = expired, workers = names, more = more }
end

-- engines/ledger/prune.py: is_silent
function R.is_silent(worker, now)
  return now - worker.seen > math.max(SILENT_AFTER_INTERVALS * worker.interval, SILENT_AT_LEAST)
end

-- engines/ledger/reading.py: now
function R.now(step, command)
  return { at = step.at }
end

-- engines/ledger/reading.py: get
function R.get(step, command)
  -- RD1: a job that is due and not promoted yet is read as scheduled or retrying.
  local list_1 = {}
  for _, key in ipairs(command.jobs) do
    list_1[#list_1 + 1] = S.job(key.queue, key.id) or false
  end
  return { at = step.at, jobs = list_1 }
end

-- engines/ledger/reading.py: find
-- Newest arrival first. The cursor is the last arrival looked at.
function R.find(step, command)
  -- RD3: never more than `scan` rows; the cursor goes on even where no row matched.
  local jobs = {}
  local below, looked_at = command.cursor, 0
  local least = R._has_filter(command) and JOBS_PER_READ or 0
  while true do
    -- One more than is wanted, to know whether there is more.
    local count = math.min(math.max(command.limit - #jobs, least), command.scan - looked_at)
    local page = S.newest(command.queue, command.state, below, count + 1)
    for _, job in ipairs(rt.slice(page, 0, count)) do
      if #jobs == command.limit then
        return { at = step.at, jobs = jobs, cursor = below }
      end
      looked_at, below = looked_at + 1, job.arrival
      if R._matches(job, command) then
        jobs[#jobs + 1] = job
      end
    end
    if #page <= count then
      return { at = step.at, jobs = jobs }
    end
    if #jobs == command.limit or looked_at == command.scan then
      return { at = step.at, jobs = jobs, cursor = below }
    end
  end
end

-- engines/ledger/reading.py: _has_filter
function R._has_filter(find)
  return find.task ~= nil or find.lane ~= nil or find.since ~= nil or next(find.metadata) ~= nil
end

-- engines/ledger/reading.py: _matches
function R._matches(job, find)
  local test_2 = (find.task == nil or job.task == find.task) and (find.lane == nil or job.lane == find.lane) and (find.since == nil or job.created >= find.since)
  if test_2 then
    local all_1 = true
    for name, value in pairs(find.metadata) do
      if S.metadata(job)[name] ~= value then
        all_1 = false
        break
      end
    end
    test_2 = all_1
  end
  return test_2
end

-- engines/ledger/reading.py: stats
function R.stats(step, command)
  local names = command.queues
  if names == nil then
    local list_1 = {}
    for _, record in ipairs(S.queues()) do
      list_1[#list_1 + 1] = record.queue
    end
    names = list_1
  end
  local list_2 = {}
  for _, name in ipairs(names) do
    list_2[#list_2 + 1] = R.queue_stats(step, name)
  end
  return { at = step.at, queues = list_2 }
end

-- engines/ledger/reading.py: queue_stats
function R.queue_stats(step, name)
  -- RD2: `due` is the queued jobs and those that have fallen due. RD4: tasks with queued jobs.
  local state = S
  local record = state.queue(name) or {
    kind = "QueueRecord",
    queue = name,
    paused = false,
    totals = { succeeded = 0, failed = 0, cancelled = 0 },
    emptied_at = 0,
  }
  local counts = rt.copy(state.counts(name))
  local fallen, since = state.count_due(name, step.now)
  local ready = state.first_ready(name)
  local oldest = rt.least_value(ready)
  if since ~= nil and (oldest == nil or since < oldest) then
    oldest = since
  end
  return {
    queue = name,
    paused = record.paused,
    counts = counts,
    due = (counts["queued"] or 0) + fallen,
    oldest_due = oldest,
    next_due = state.next_due(name),
    totals = record.totals,
    ready_tasks = rt.sorted_keys(ready),
    clearing = state.is_clearing(name),
  }
end

-- engines/ledger/reading.py: lanes
function R.lanes(step, command)
  -- RD5: without a read of the other lanes.
  if command.lanes == nil then
    return { at = step.at, lanes = S.lanes(command.queue) }
  end
  local found = {}
  for _, name in ipairs(command.lanes) do
    local lane = S.lane(command.queue, name)
    if lane ~= nil then
      found[#found + 1] = lane
    end
  end
  return { at = step.at, lanes = found }
end
