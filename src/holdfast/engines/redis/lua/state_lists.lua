-- The state of a root, part 5: the questions about lists of jobs.
--
-- Each is answered from a stored sorted set without the jobs that this call has changed, merged with those of them
-- that belong to the set now.

do
  local call, sub = redis.call, string.sub
  local BY_DUE = S.BY_DUE
  local PAGE = 100
  local MAX_READY = 256 -- entries that one read of ready jobs takes, however many the claim asks for

  local function ready_before(one, other)
    if one.priority ~= other.priority then
      return one.priority > other.priority
    elseif one.due ~= other.due then
      return one.due < other.due
    end
    return one.arrival < other.arrival
  end

  local function due_before(one, other)
    if one.due ~= other.due then
      return one.due < other.due
    end
    return one.arrival < other.arrival
  end

  local function lane_before(one, other)
    if one.priority ~= other.priority then
      return one.priority > other.priority
    end
    return one.arrival < other.arrival
  end

  local function sorted(jobs, before)
    local list = {}
    for _, job in pairs(jobs or records.NOTHING) do
      list[#list + 1] = job
    end
    if list[2] then
      table.sort(list, before)
    end
    return list
  end

  local function none()
    return nil
  end

  -- An iterator over two ordered sources: `next_stored()`, and a list.
  local function merged(next_stored, list, before)
    if list[1] == nil then
      return next_stored
    end
    local index, stored = 1, next_stored()
    return function()
      local other = list[index]
      if other ~= nil and (stored == nil or before(other, stored)) then
        index = index + 1
        return other
      end
      local found = stored
      if found ~= nil then
        stored = next_stored()
      end
      return found
    end
  end

  -- The ready jobs of a set that are unchanged, in order.
  local function unchanged(q, key, count, is_wanted)
    local at, members, page, index, is_last = 0, {}, {}, 0, false
    return function()
      while true do
        index = index + 1
        if page[index] == nil then
          if is_last then
            return nil
          end
          members = call("ZRANGE", key, at, at + count - 1)
          is_last, at, index = #members < count, at + count, 0
          page = S.prefetch_members(q, key, members, 14)
        else
          local id = page[index]
          if q.stored[id] == nil then
            local job = S.job(q.name, id)
            if job.state ~= "queued" then -- the entry is left over from a record that was repaired
              S.stop_to_repair(q, {}, key, { members[index] })
            end
            if is_wanted == nil or is_wanted(job) then
              return job
            end
          end
        end
      end
    end
  end

  function S.ready(queue, task, about)
    local q = S.of(queue)
    local cleared = S.lanes_being_cleared(queue)
    if cleared == true then
      return none
    end
    local is_wanted
    if next(cleared) then
      is_wanted = function(job)
        return job.lane == nil or not cleared[job.lane]
      end
    end
    local list = sorted(q.ready[task], ready_before)
    if is_wanted then
      local kept = {}
      for _, job in ipairs(list) do
        if is_wanted(job) then
          kept[#kept + 1] = job
        end
      end
      list = kept
    end
    local stored = unchanged(q, S.ready_key(q, task), math.min(about, MAX_READY), is_wanted)
    return merged(stored, list, ready_before)
  end

  -- The first unchanged entry of a sorted set: its member and score. `skips` remembers how many changed ones are first.
  local function first_unchanged(q, key, id_at, skips)
    local at, count = skips[key] or 0, 1
    while true do
      local page = call("ZRANGE", key, at, at + count - 1, "WITHSCORES")
      for index = 1, #page, 2 do
        if q.stored[sub(page[index], id_at)] == nil then
          skips[key] = at
          return page[index], page[index + 1]
        end
        at = at + 1
      end
      skips[key] = at
      if #page < 2 * count then
        return nil
      end
      count = PAGE
    end
  end

  -- The job of that entry; nil: there is none.
  local function first_job(q, key, id_at, skips)
    local member = first_unchanged(q, key, id_at, skips)
    return member and S.job(q.name, S.prefetch_members(q, key, { member }, id_at)[1]) or nil
  end

  local due_skips, lane_skips = {}, {}

  function S.next_due(queue)
    local q = S.of(queue)
    local _, score = first_unchanged(q, q.due_key, 7, due_skips)
    local first = score and tonumber(score) or nil
    for _, job in pairs(q.due) do
      if first == nil or job.due < first then
        first = job.due
      end
    end
    return first
  end

  function S.due(queue, now, limit)
    local first = S.next_due(queue)
    if first == nil or first > now then
      return none
    end
    local q = S.of(queue)
    local members = call("ZRANGEBYSCORE", q.due_key, "-inf", now, "LIMIT", 0, limit + #q.changed)
    local ids = S.prefetch_members(q, q.due_key, members, 7)
    local list, place = {}, 0
    for _, job in ipairs(sorted(q.due, due_before)) do
      if job.due <= now then
        list[#list + 1] = job
      end
    end
    local next_job = merged(function()
      while true do
        place = place + 1
        local id = ids[place]
        if id == nil then
          return nil
        elseif q.stored[id] == nil then
          return S.job(queue, id)
        end
      end
    end, list, due_before)
    local left = limit
    return function()
      left = left - 1
      if left < 0 then
        return nil
      end
      return next_job()
    end
  end

  function S.count_due(queue, now)
    local q = S.of(queue)
    local count = call("ZCOUNT", q.due_key, "-inf", now)
    for _, job in pairs(q.stored) do
      if job and BY_DUE[job.state] and job.due <= now then
        count = count - 1
      end
    end
    for _, job in pairs(q.due) do
      if job.due <= now then
        count = count + 1
      end
    end
    return count, count > 0 and S.next_due(queue) or nil
  end

  function S.first_ready(queue)
    local q = S.of(queue)
    local tasks, found = {}, {}
    for _, task in ipairs(call("SMEMBERS", q.tasks_key)) do
      tasks[task] = true
    end
    for task in pairs(q.ready) do
      tasks[task] = true
    end
    for task in pairs(tasks) do
      local first = first_job(q, S.ready_key(q, task), 14, {})
      local other = sorted(q.ready[task], ready_before)[1]
      if other ~= nil and (first == nil or ready_before(other, first)) then
        first = other
      end
      if first ~= nil then
        found[task] = first.due
      end
    end
    return found
  end

  function S.key_taker(queue, task, unique_key)
    local id = S.key_id(S.of(queue), task .. "\0" .. unique_key)
    return id and S.job(queue, id)
  end

  -- Lanes

  function S.next_in_lane(queue, lane)
    local q = S.of(queue)
    local best = first_job(q, S.lane_key(q, lane), 7, lane_skips)
    for _, job in pairs(q.waiting[lane] or records.NOTHING) do
      if best == nil or lane_before(job, best) then
        best = job
      end
    end
    if best == nil and not S.is_repairing then -- the lane counts jobs that wait
      S.stop_to_repair(q, {}, nil, nil, lane)
    end
    return best
  end
end
