-- The state of a root, part 7: the jobs of a lane by arrival.
--
-- The set of a lane is in the order of priority, then arrival. So the jobs of one priority are neighbours, in the order
-- of their arrival: a run. A question about arrivals finds the runs and reads a few entries of each. Its cost grows with
-- the number of priorities in the lane, and not with the number of jobs.

do
  local call, sub, struct_unpack = redis.call, string.sub, struct.unpack
  local TERMINAL = S.TERMINAL
  local PAGE = 100 -- entries

  local runs_by_key = {} -- the runs of a set; what is stored does not change before the flush

  -- The runs of a set: the rank of the first entry, and the number of entries.
  local function runs_of(key)
    local runs = runs_by_key[key]
    if runs == nil then
      runs = {}
      runs_by_key[key] = runs
      local first = 0
      local entry = call("ZRANGE", key, first, first, "WITHSCORES")
      while entry[2] do
        local size = call("ZCOUNT", key, entry[2], entry[2])
        runs[#runs + 1] = { first = first, size = size, changed = 0 }
        first = first + size
        entry = call("ZRANGE", key, first, first, "WITHSCORES")
      end
    end
    return runs
  end

  -- The first entry of a run whose job is unchanged; nil: there is none. `run.changed` are in front of it.
  local function first_of_run(q, key, run)
    local count = 1
    while run.changed < run.size do
      local from = run.first + run.changed
      for _, member in ipairs(call("ZRANGE", key, from, from + math.min(count, run.size - run.changed) - 1)) do
        if q.stored[sub(member, 7)] == nil then
          return member
        end
        run.changed = run.changed + 1
      end
      count = PAGE
    end
    return nil
  end

  function S.earliest_in_lane(queue, lane)
    local q = S.of(queue)
    local key = S.lane_key(q, lane)
    local earliest, first
    for _, run in ipairs(runs_of(key)) do
      local member = first_of_run(q, key, run)
      local arrival = member and struct_unpack(">I6", member)
      if arrival and (earliest == nil or arrival < earliest) then
        earliest, first = arrival, member
      end
    end
    local job = first and S.job(queue, S.prefetch_members(q, key, { first }, 7)[1]) or nil
    for _, other in pairs(q.waiting[lane] or records.NOTHING) do
      if job == nil or other.arrival < job.arrival then
        job = other
      end
    end
    return job
  end

  -- How many entries of a run arrived before this number.
  local function count_below(key, run, below)
    local low, high = 0, run.size
    while low < high do
      local middle = math.floor((low + high) / 2)
      local member = call("ZRANGE", key, run.first + middle, run.first + middle)[1]
      if struct_unpack(">I6", member) < below then
        low = middle + 1
      else
        high = middle
      end
    end
    return low
  end

  -- The next entry of a run, from its end: the source as an item of a heap, latest arrival first; nil: it is at its end.
  local function next_of_run(key, source, page_size)
    if source.page[source.place] == nil then
      local last = source.first + source.left
      local count = math.min(page_size, source.left)
      source.page = count > 0 and call("ZRANGE", key, last - count, last - 1) or {}
      source.place, source.left = count, source.left - count
    end
    local member = source.page[source.place]
    if member == nil then
      return nil
    end
    source.place = source.place - 1
    return { { -struct_unpack(">I6", member) }, source, member }
  end

  -- The members of unchanged jobs that wait in a lane and arrived before `below`: the latest `limit` of them.
  local function waiting_members(q, key, below, limit)
    local runs, heap, members = runs_of(key), {}, {}
    local page_size = math.min(S.ENTRIES_PER_CALL, math.ceil(limit / math.max(1, #runs)))
    for _, run in ipairs(runs) do
      local left = below and count_below(key, run, below) or run.size
      heap[#heap + 1] = next_of_run(key, { first = run.first, left = left, page = {}, place = 0 }, page_size)
    end
    rt.heapify(heap)
    while heap[1] and #members < limit do
      local _, source, member = unpack(heap[1])
      if q.stored[sub(member, 7)] == nil then
        members[#members + 1] = member
      end
      local following = next_of_run(key, source, page_size)
      if following then
        rt.heapreplace(heap, following)
      else
        rt.heappop(heap)
      end
    end
    return members
  end

  -- Live jobs of a lane below an arrival, latest first; all of them without a limit. The head, and the jobs behind it.
  function S.live_in_lane(queue, lane, below, limit)
    local q = S.of(queue)
    local key = S.lane_key(q, lane)
    local record = S.lane(queue, lane)
    local ids = S.prefetch_members(q, key, waiting_members(q, key, below, limit or math.huge), 7)
    if record and record.head and q.stored[record.head] == nil then
      ids[#ids + 1] = record.head
    end
    local found = S.changed_jobs(q, function(job)
      return job.lane == lane and not TERMINAL[job.state] and (below == nil or job.arrival < below)
    end)
    for _, id in ipairs(ids) do
      local job = S.job(queue, id)
      if below == nil or job.arrival < below then
        found[#found + 1] = job
      end
    end
    return S.latest(found, limit or #found)
  end

  function S.live_jobs(queue, lane)
    if lane == nil then
      return S.live_below(queue, nil, nil)
    end
    return S.live_in_lane(queue, lane, nil, nil)
  end
end
