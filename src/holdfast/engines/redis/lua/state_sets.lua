-- The state of a root, part 1: keys, the records of this call, and what is written at its end.
--
-- Nothing is written while rules run. What was read stays in tables, and changed records replace it there. A question
-- about a sorted set is answered from the stored set without the jobs that this call has changed, merged with those of
-- them that belong to the set now. `S.flush` compares each changed job with its stored record and writes the
-- difference: first what is removed, then what is added. So an error in a rule leaves no trace.
--
-- Keys of a root (Q, T, L, ID stand for encoded names):
--   meta               hash  format, arrival (the last one in use); born, tip and others: see history.lua
--   queues             zset  score 0, member queue
--   queue:Q            hash  paused, emptied_at, total:STATE, pooled (live jobs of a pool), and per state the number of jobs
--   jobs:Q             hash  id → record
--   payload:Q:ID       string  a payload above 8 KiB
--   ready:Q:T          zset  queued jobs; score -priority, member due (7 bytes) arrival (6 bytes) id
--   tasks:Q            set   every task that has a `ready:Q:T`, and perhaps tasks that had one
--   due:Q              zset  scheduled and retrying jobs; score due, member arrival (6 bytes) id
--   state:Q:STATE      zset  score arrival, member id; not for assigned and running jobs: `leases` has these
--   keys:Q             hash  task NUL unique_key → id
--   lanes:Q            hash  lane → record
--   lane:Q:L           zset  jobs held by the lane; score -priority, member arrival (6 bytes) id
--   epoch:Q            zset  jobs held by a resize; score arrival, member id
--   leases             zset  score lease_expires, member queue NUL id
--   claims             hash  claim id → number of leases that it holds
--   ended              zset  ended jobs; score kept_until, member queue NUL id
--   expiring           zset  waiting jobs with `expires`; score expires, member queue NUL id
--   idle_lanes         zset  empty lanes without a pause; score emptied, member queue NUL lane
--   parents            zset  score 0, member queue NUL id: parents that have edges
--   edges:Q:ID         zset  edges of a parent; score 2 * arrival + any_end, member queue NUL id of the child
--   ended_parents      zset  score 0, member queue NUL id: those of `parents` that have ended
--   pools, workers      hash  name → record, as a msgpack map
--   unfinished         hash  clears and resizes that are not done: name → record, see state_unfinished.lua

local S = {
  ENTRIES_PER_CALL = 1000, -- entries of one variadic command
  LIVE = { "scheduled", "blocked", "queued", "assigned", "running", "retrying" },
  WAITING = { scheduled = true, blocked = true, queued = true, retrying = true },
  BY_DUE = { scheduled = true, retrying = true },
  TERMINAL = { succeeded = true, failed = true, cancelled = true },
  HOLD_LANE = 1,
  HOLD_EPOCH = 16,
}

do
  local call, concat, sub, format = redis.call, table.concat, string.sub, string.format
  local struct_pack = struct.pack
  local pack, unpack_record = records.pack, records.unpack
  local WAITING, BY_DUE, TERMINAL = S.WAITING, S.BY_DUE, S.TERMINAL
  local HOLD_LANE, HOLD_EPOCH = S.HOLD_LANE, S.HOLD_EPOCH
  local has_bit = function(hold, bit_value)
    return hold % (2 * bit_value) >= bit_value
  end
  S.has_bit = has_bit

  local root
  local queues = {} -- name → the tables of a queue, see `S.of`
  local claims = {} -- claim id → how many leases more or fewer it holds than stored
  local changed = false -- whether this call has changed a job
  S.opened = queues
  S.claim_changes = claims

  -- Begin a call at `now`. `verb` decides what happens when the server has no memory left.
  function S.begin(new_root, verb, now)
    root, S.root, S.now = new_root, new_root, now
    S.may_fill = verb == "enqueue" or verb == "requeue"
  end

  local encoded = {}

  -- A name as part of a key.
  function S.encode(name)
    local code = encoded[name]
    if code == nil then
      code = string.gsub(name, "[%c%%{}:]", function(character)
        return format("%%%02X", string.byte(character))
      end)
      encoded[name] = code
    end
    return code
  end

  -- The tables of a queue in this call. The maps by id hold only jobs that this call has changed.
  function S.of(name)
    local q = queues[name]
    if q == nil then
      local code = S.encode(name)
      q = {
        name = name,
        code = code,
        jobs_key = root .. "jobs:" .. code,
        queue_key = root .. "queue:" .. code,
        due_key = root .. "due:" .. code,
        keys_key = root .. "keys:" .. code,
        lanes_key = root .. "lanes:" .. code,
        epoch_key = root .. "epoch:" .. code,
        tasks_key = root .. "tasks:" .. code,
        state_keys = {},
        ready_keys = {},
        raw = {}, -- id → record as stored, false: there is none
        jobs = {}, -- id → job as it is now, false: there is none
        changed = {}, -- ids of changed jobs, in the order of their first change
        stored = {}, -- id → stored job of a changed one, false: it is new
        moved = {}, -- state → how many jobs more or fewer are in it than stored
        pooled_change = 0, -- how many live jobs of a pool more or fewer there are than stored
        ready = {}, -- task → id → job
        due = {}, -- id → job
        waiting = {}, -- lane → id → job
        epoch = {}, -- id → job
        leases = {}, -- id → job
        ended = {}, -- id → job
        expiring = {}, -- id → job
        keys = {}, -- task NUL key → id, false: free
        changed_keys = {}, -- task NUL key → true
        lanes = {}, -- lane → record, false: there is none
        stored_lanes = {}, -- lane → stored record of a changed one, false: it is new
        tasks = {}, -- task → true: has become ready in this call
      }
      queues[name] = q
    end
    return q
  end

  function S.state_key(q, state)
    local key = q.state_keys[state]
    if key == nil then
      key = root .. "state:" .. q.code .. ":" .. state
      q.state_keys[state] = key
    end
    return key
  end

  function S.ready_key(q, task)
    local key = q.ready_keys[task]
    if key == nil then
      key = root .. "ready:" .. q.code .. ":" .. S.encode(task)
      q.ready_keys[task] = key
    end
    return key
  end

  function S.lane_key(q, lane)
    return root .. "lane:" .. q.code .. ":" .. S.encode(lane)
  end

  function S.payload_key(q, id)
    return root .. "payload:" .. q.code .. ":" .. S.encode(id)
  end

  function S.ready_member(job)
    return struct_pack(">I7I6", job.due, job.arrival) .. job.id
  end

  function S.arrival_member(job)
    return struct_pack(">I6", job.arrival) .. job.id
  end

  -- Read these jobs of a queue in one call, unless they are known.
  function S.prefetch(q, ids)
    local missing = {}
    for _, id in ipairs(ids) do
      if q.raw[id] == nil and q.jobs[id] == nil then
        missing[#missing + 1] = id
      end
    end
    for first = 1, #missing, S.ENTRIES_PER_CALL do
      local last = math.min(first + S.ENTRIES_PER_CALL - 1, #missing)
      local found = call("HMGET", q.jobs_key, unpack(missing, first, last))
      for index = first, last do
        q.raw[missing[index]] = found[index - first + 1]
      end
    end
  end

  -- The rules stop here: the call repairs these jobs (state_repair.lua) and begins again. `members` of the set `key`
  -- name them. `lane`: a lane that counts jobs which are nowhere.
  function S.stop_to_repair(q, ids, key, members, lane)
    error({ damage = { queue = q.name, ids = ids, key = key, members = members, lane = lane } })
  end

  -- Read the jobs that these members of a sorted set name: their ids, which begin at `id_at`.
  function S.prefetch_members(q, key, members, id_at)
    local ids, lost, lost_members = {}, {}, {}
    for place, member in ipairs(members) do
      ids[place] = sub(member, id_at)
    end
    S.prefetch(q, ids)
    for place, id in ipairs(ids) do
      if q.raw[id] == false and q.stored[id] == nil then
        lost[#lost + 1], lost_members[#lost_members + 1] = id, members[place]
      end
    end
    if lost[1] then
      S.stop_to_repair(q, lost, key, lost_members)
    end
    return ids
  end

  -- Read jobs that are named by queue and id, and the lanes that are named with them.
  function S.prefetch_all(list)
    local ids, lanes = {}, {}
    for _, one in ipairs(list) do
      local of_queue = ids[one.queue]
      if of_queue == nil then
        of_queue = {}
        ids[one.queue], lanes[one.queue] = of_queue, {}
      end
      of_queue[#of_queue + 1] = one.id
      if one.lane ~= nil then
        lanes[one.queue][one.lane] = true
      end
    end
    for queue, of_queue in pairs(ids) do
      local q = queues[queue] or S.of(queue)
      if of_queue[2] then
        S.prefetch(q, of_queue)
        S.prefetch_lanes(q, lanes[queue])
      end
    end
  end

  function S.job(queue, id)
    local q = queues[queue] or S.of(queue)
    local job = q.jobs[id]
    if job == nil then
      local raw = q.raw[id]
      if raw == nil then
        raw = call("HGET", q.jobs_key, id)
        q.raw[id] = raw
      end
      if raw then
        local is_whole, unpacked = pcall(unpack_record, raw, queue, id)
        if not is_whole then
          S.stop_to_repair(q, { id })
        end
        job = unpacked
      end
      q.jobs[id] = job or false
    end
    return job or nil
  end

  S.job_of_fresh_id = S.job
  S.metadata = records.metadata

  -- A job of an answer, after the flush: its record, payload, queue and id.
  function S.blob(job)
    local q = queues[job.queue]
    local payload
    if type(job.tail) == "table" then
      payload = job.tail[2]
    elseif job.payload_apart then
      payload = call("GET", S.payload_key(q, job.id)) or ""
    end
    local raw = q.jobs[job.id] == job and q.raw[job.id] or pack(job)
    return records.blob(raw, payload, job.queue, job.id)
  end

  -- Changing jobs

  local function claim_of(token)
    return string.match(token, "^(.*)%.") or ""
  end
  S.claim_of = claim_of

  local function key_of(job)
    return job.task .. "\0" .. job.unique_key
  end

  -- The id that a key names; nil: none.
  function S.key_id(q, key)
    local id = q.keys[key]
    if id == nil then
      id = call("HGET", q.keys_key, key)
      q.keys[key] = id
    end
    return id or nil
  end

  local function leave(q, job, after)
    local state, id = job.state, job.id
    q.moved[state] = (q.moved[state] or 0) - 1
    if job.epoch ~= 0 and not TERMINAL[state] then
      q.pooled_change = q.pooled_change - 1
    end
    if state == "queued" then
      local ready = q.ready[job.task]
      if ready then
        ready[id] = nil
      end
    elseif BY_DUE[state] then
      q.due[id] = nil
    elseif TERMINAL[state] then
      q.ended[id] = nil
    end
    if job.expires ~= nil then
      q.expiring[id] = nil
    end
    local hold = job.hold
    if hold ~= 0 then
      if has_bit(hold, HOLD_LANE) and q.waiting[job.lane] then
        q.waiting[job.lane][id] = nil
      end
      q.epoch[id] = nil
    end
    if job.token ~= nil then
      q.leases[id] = nil
      local claim = claim_of(job.token)
      claims[claim] = (claims[claim] or 0) - 1
    end
    if job.unique_key ~= nil and (not after or after.generation ~= job.generation) then
      local key = key_of(job)
      if S.key_id(q, key) == id then
        q.keys[key], q.changed_keys[key] = false, true
      end
    end
  end

  local function enter(q, job)
    local state, id = job.state, job.id
    q.moved[state] = (q.moved[state] or 0) + 1
    if job.epoch ~= 0 and not TERMINAL[state] then
      q.pooled_change = q.pooled_change + 1
    end
    if state == "queued" then
      local ready = q.ready[job.task]
      if ready == nil then
        ready = {}
        q.ready[job.task] = ready
      end
      ready[id] = job
    elseif BY_DUE[state] then
      q.due[id] = job
    elseif TERMINAL[state] then
      q.ended[id] = job
    end
    if job.expires ~= nil and WAITING[state] then
      q.expiring[id] = job
    end
    if job.unique_key ~= nil and not TERMINAL[state] then
      local key = key_of(job)
      q.keys[key], q.changed_keys[key] = id, true
    end
    local hold = job.hold
    if hold ~= 0 then
      if has_bit(hold, HOLD_LANE) then
        local waiting = q.waiting[job.lane]
        if waiting == nil then
          waiting = {}
          q.waiting[job.lane] = waiting
        end
        waiting[id] = job
      end
      if has_bit(hold, HOLD_EPOCH) then
        q.epoch[id] = job
      end
    end
    if job.token ~= nil then
      q.leases[id] = job
      local claim = claim_of(job.token)
      claims[claim] = (claims[claim] or 0) + 1
    end
  end

  function S.swap_job(before, after)
    local job = after or before
    local q, id = queues[job.queue] or S.of(job.queue), job.id
    if q.stored[id] == nil then
      q.stored[id] = before or false
      q.changed[#q.changed + 1] = id
      changed = true
    end
    q.jobs[id] = after or false
    if before then
      leave(q, before, after)
    end
    if after then
      enter(q, after)
    end
    if S.any_edge() and (not before or not after or TERMINAL[before.state] ~= TERMINAL[after.state]) then
      S.mark_parent(job.queue, id)
    end
  end

  function S.has_changes()
    return changed
  end

  -- Whether a stored entry of this job still holds: the call has not changed it.
  function S.is_unchanged(q, id)
    return q.stored[id] == nil
  end

  function S.concat_name(queue, id)
    return concat({ queue, id }, "\0")
  end

  function S.split_name(name)
    local at = string.find(name, "\0", 1, true)
    return sub(name, 1, at - 1), sub(name, at + 1)
  end
end
