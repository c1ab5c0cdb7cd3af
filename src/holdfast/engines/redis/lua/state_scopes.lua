-- The state of a root, part 6: lists of the whole root (leases, expiring, ended), and all jobs of a state or scope.

do
  local call = redis.call

  local function arrival_before(one, other)
    return one.arrival < other.arrival
  end

  local function arrival_after(one, other)
    return one.arrival > other.arrival
  end

  -- Lists of the whole root

  -- The unchanged jobs of names (queue NUL id) in a set of the root that `is_wanted` accepts, and the changed ones in
  -- `changed` of any queue.
  local function of_names(set, names, changed, is_wanted, limit)
    local found, of_queues = {}, {}
    for _, name in ipairs(names) do
      local queue = S.split_name(name)
      of_queues[queue] = of_queues[queue] or {}
      of_queues[queue][#of_queues[queue] + 1] = name
    end
    for queue, list in pairs(of_queues) do
      S.prefetch_members(S.of(queue), S.root .. set, list, #queue + 2)
    end
    for _, name in ipairs(names) do
      local queue, id = S.split_name(name)
      local job = S.of(queue).stored[id] == nil and S.job(queue, id)
      if job and is_wanted(job) and #found < limit then
        found[#found + 1] = job
      end
    end
    for _, q in pairs(S.opened) do
      for _, job in pairs(q[changed] or records.NOTHING) do
        if is_wanted(job) and #found < limit then
          found[#found + 1] = job
        end
      end
    end
    return found
  end

  local function count_changed()
    local count = 0
    for _, q in pairs(S.opened) do
      count = count + #q.changed
    end
    return count
  end

  function S.expiring(now, limit)
    local names = call("ZRANGEBYSCORE", S.root .. "expiring", "-inf", now, "LIMIT", 0, limit + count_changed())
    return of_names("expiring", names, "expiring", function(job)
      return job.expires <= now
    end, limit)
  end

  function S.ended(now, limit)
    local is_kept_by_edge = function(job)
      return S.any_edge() and #S.children(job.queue, job.id, 1) > 0
    end
    local at, found = 0, {}
    while true do
      local count = limit + count_changed()
      local names = call("ZRANGEBYSCORE", S.root .. "ended", "-inf", now, "LIMIT", at, count)
      local free = of_names("ended", names, at == 0 and "ended" or "none", function(job)
        return S.kept_until(job) <= now and not is_kept_by_edge(job)
      end, limit - #found)
      for _, job in ipairs(free) do
        found[#found + 1] = job
      end
      at = at + count
      if #found >= limit or #names < count then
        return found
      end
    end
  end

  -- Leases

  -- From a rank on; all of them without a number.
  local function leases(bound, is_wanted, first, count)
    local names = call("ZRANGEBYSCORE", S.root .. "leases", "-inf", bound, "LIMIT", first or 0, count or -1)
    return of_names("leases", names, "leases", is_wanted, math.huge)
  end

  function S.held_by(claim_id)
    local count = tonumber(call("HGET", S.root .. "claims", claim_id) or 0) + (S.claim_changes[claim_id] or 0)
    if count == 0 then
      return {}
    end
    return leases("+inf", function(job)
      return S.claim_of(job.token) == claim_id
    end)
  end

  -- A part of them, if they are many: another part at every call, because their tasks may not be wanted.
  function S.leases_until(instant)
    local count = math.max(S.ENTRIES_PER_CALL, S.limit or 0)
    local parts = math.ceil(call("ZCOUNT", S.root .. "leases", "-inf", instant) / count)
    return leases(instant, function(job)
      return job.lease_expires <= instant
    end, parts > 1 and S.now % parts * count or 0, count)
  end

  function S.leases_of(workers)
    local named = {}
    for _, worker in ipairs(workers) do
      named[worker] = true
    end
    return leases("+inf", function(job)
      return named[job.owner]
    end)
  end

  -- The client sends the checksum of the name: Lua has no such function.
  function S.reap_start(worker, count)
    return S.worker_crc % count
  end

  function S.first_rank()
    return S.claim_rank
  end

  -- Jobs of one state or scope, latest arrival first

  function S.changed_jobs(q, is_wanted)
    local found = {}
    for _, id in ipairs(q.changed) do
      local job = q.jobs[id]
      if job and is_wanted(job) then
        found[#found + 1] = job
      end
    end
    return found
  end

  -- The first `limit` of a list by arrival, latest first.
  local function latest(jobs, limit)
    table.sort(jobs, arrival_after)
    for index = #jobs, limit + 1, -1 do
      jobs[index] = nil
    end
    return jobs
  end
  S.latest = latest

  -- Unchanged jobs of a state below an arrival. Only `limit` of them, if there is one.
  local function listed(q, state, below, limit)
    local bound = below and "(" .. S.text_of(below) or "+inf"
    local count = limit and limit + #q.changed or -1
    local ids = call("ZREVRANGEBYSCORE", S.state_key(q, state), bound, "-inf", "LIMIT", 0, count)
    S.prefetch_members(q, S.state_key(q, state), ids, 1)
    local found = {}
    for _, id in ipairs(ids) do
      if q.stored[id] == nil then
        found[#found + 1] = S.job(q.name, id)
      end
    end
    return found
  end

  local function leased(q, state, below)
    return leases("+inf", function(job)
      return job.queue == q.name and (state == nil or job.state == state) and (below == nil or job.arrival < below)
    end)
  end

  local function extend(list, more)
    for _, value in ipairs(more) do
      list[#list + 1] = value
    end
  end

  function S.newest(queue, state, below, limit)
    local q = S.of(queue)
    if state == "assigned" or state == "running" then
      return latest(leased(q, state, below), limit)
    end
    local found = listed(q, state, below, limit)
    extend(found, S.changed_jobs(q, function(job)
      return job.state == state and (below == nil or job.arrival < below)
    end))
    return latest(found, limit)
  end

  -- Live jobs of a queue below an arrival, latest first; all of them without a limit.
  function S.live_below(queue, below, limit)
    local q = S.of(queue)
    local found = leased(q, nil, below)
    for state in pairs(S.WAITING) do
      extend(found, listed(q, state, below, limit))
    end
    extend(found, S.changed_jobs(q, function(job)
      return S.WAITING[job.state] and (below == nil or job.arrival < below)
    end))
    return latest(found, limit or #found)
  end

  -- Jobs with an epoch hold above an arrival, in the order of arrival.
  function S.epoch_held(queue, above, limit)
    local q = S.of(queue)
    local ids =
      call("ZRANGEBYSCORE", q.epoch_key, "(" .. S.text_of(above), "+inf", "LIMIT", 0, limit + #q.changed)
    S.prefetch_members(q, q.epoch_key, ids, 1)
    local found = {}
    for _, id in ipairs(ids) do
      if q.stored[id] == nil then
        found[#found + 1] = S.job(queue, id)
      end
    end
    for _, job in pairs(q.epoch) do
      if job.arrival > above then
        found[#found + 1] = job
      end
    end
    table.sort(found, arrival_before)
    for index = #found, limit + 1, -1 do
      found[index] = nil
    end
    return found
  end
end
