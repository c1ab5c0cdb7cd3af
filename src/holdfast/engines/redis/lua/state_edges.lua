-- The state of a root, part 4: edges between parents and children; pools and workers.

do
  local call = redis.call
  local TERMINAL = S.TERMINAL

  -- Edges

  local edges = {} -- name of a parent → name of a child → edge, false: removed
  local ended_parents = {} -- name → whether it belongs to the set, for names that this call has changed
  local has_edges -- whether `parents` has a member
  local edges_changed = false
  local changed_first = 0 -- how many of the stored set `ended_parents` come first and were changed by this call
  local PAGE = 100

  -- Whether any edge exists, or existed when the call began.
  function S.any_edge()
    if has_edges == nil then
      has_edges = call("EXISTS", S.root .. "parents") == 1
    end
    return has_edges or edges_changed
  end

  local function edges_key(queue, id)
    return S.root .. "edges:" .. S.encode(queue) .. ":" .. S.encode(id)
  end

  function S.children(queue, id, limit)
    if not S.any_edge() then
      return {}
    end
    local changes = edges[queue .. "\0" .. id] or {}
    local found, removed = {}, 0
    for _, edge in pairs(changes) do
      removed = removed + 1
      if edge then
        found[#found + 1] = edge
      end
    end
    table.sort(found, function(one, other)
      return one.arrival < other.arrival
    end)
    local last = limit and limit + removed - 1 or -1
    local stored = call("ZRANGE", edges_key(queue, id), 0, last, "WITHSCORES")
    for index = 1, #stored, 2 do
      if changes[stored[index]] == nil then
        local child_queue, child_id = S.split_name(stored[index])
        local score = tonumber(stored[index + 1])
        found[#found + 1] = {
          kind = "Edge",
          parent = { queue = queue, id = id },
          child = { queue = child_queue, id = child_id },
          arrival = math.floor(score / 2),
          any_end = score % 2 == 1,
        }
      end
    end
    while limit and #found > limit do
      found[#found] = nil
    end
    return found
  end

  -- Names that this call has added to the set: a heap, the first name on top. Some may have left the set again.
  local added = {}

  local function push(name)
    local place = #added + 1
    while place > 1 do
      local above = math.floor(place / 2)
      if not rt.less(name, added[above]) then
        break
      end
      added[place], place = added[above], above
    end
    added[place] = name
  end

  local function pop()
    local count = #added
    local name, place = added[count], 1
    added[count] = nil
    while 2 * place < count do
      local below = 2 * place
      if below + 1 < count and rt.less(added[below + 1], added[below]) then
        below = below + 1
      end
      if not rt.less(added[below], name) then
        break
      end
      added[place], place = added[below], below
    end
    if count > 1 then
      added[place] = name
    end
  end

  local counts = {} -- name of a parent → how many edges it has now, for parents with changed edges

  local function has_children(queue, id)
    local count = counts[queue .. "\0" .. id]
    if count ~= nil then
      return count > 0
    end
    return #S.children(queue, id, 1) > 0
  end

  function S.mark_parent(queue, id)
    local job, name = S.job(queue, id), queue .. "\0" .. id
    local belongs = job ~= nil and TERMINAL[job.state] and has_children(queue, id) or false
    if belongs and not ended_parents[name] then
      push(name)
    end
    ended_parents[name] = belongs
  end

  local function swap_edge(edge, there)
    local parent, child = edge.parent.queue .. "\0" .. edge.parent.id, edge.child.queue .. "\0" .. edge.child.id
    local changes = edges[parent]
    if changes == nil then
      changes = {}
      edges[parent] = changes
      counts[parent] = call("ZCARD", edges_key(edge.parent.queue, edge.parent.id))
    end
    local was_there = changes[child]
    if was_there == nil then
      was_there = counts[parent] > 0 and call("ZMSCORE", edges_key(edge.parent.queue, edge.parent.id), child)[1]
    end
    counts[parent] = counts[parent] + (there and 1 or 0) - (was_there and 1 or 0)
    changes[child] = there and edge
    edges_changed = true
    S.mark_parent(edge.parent.queue, edge.parent.id)
  end

  function S.ended_parents()
    if not S.any_edge() then
      return nil
    end
    while added[1] and not ended_parents[added[1]] do
      pop()
    end
    local first, stored = added[1], nil
    repeat
      local name
      stored = call("ZRANGE", S.root .. "ended_parents", changed_first, changed_first + PAGE - 1)
      for _, one in ipairs(stored) do
        if ended_parents[one] == nil then
          name = one
          break
        end
        changed_first = changed_first + 1
      end
      if name and (first == nil or rt.less(name, first)) then
        first = name
      end
    until name or #stored < PAGE
    if first == nil then
      return nil
    end
    local queue, id = S.split_name(first)
    if S.job(queue, id) == nil then
      local key = #S.children(queue, id, 1) == 0 and S.root .. "ended_parents" or nil
      S.stop_to_repair(S.of(queue), { id }, key, { first })
    end
    return { queue, id }
  end

  local function write_edges()
    for parent, changes in pairs(edges) do
      local queue, id = S.split_name(parent)
      local key = edges_key(queue, id)
      for child, edge in pairs(changes) do
        if edge then
          S.add("ZADD", key, S.text_of(2 * edge.arrival + (edge.any_end and 1 or 0)), child)
        else
          S.remove("ZREM", key, child)
        end
      end
      if counts[parent] > 0 then
        S.add("ZADD", S.root .. "parents", "0", parent)
      else
        S.remove("ZREM", S.root .. "parents", parent)
      end
    end
    for name, belongs in pairs(ended_parents) do
      if belongs then
        S.add("ZADD", S.root .. "ended_parents", "0", name)
      else
        S.remove("ZREM", S.root .. "ended_parents", name)
      end
    end
  end

  -- Pools, workers

  local KEYS_OF_KINDS = { PoolRecord = "pools", WorkerRecord = "workers" }
  local small = { pools = {}, workers = {}, unfinished = {} } -- name → record, false: there is none
  local small_changes = { pools = {}, workers = {}, unfinished = {} } -- name → true

  -- False: there is none, or it is cut. The next one of that name replaces it.
  local function unpack_small(raw)
    local is_whole, record = pcall(cmsgpack.unpack, raw or "")
    return is_whole and record or false
  end

  function S.small_record(set, name)
    local record = small[set][name]
    if record == nil then
      record = unpack_small(call("HGET", S.root .. set, name))
      small[set][name] = record
    end
    return record or nil
  end

  -- All of a set, by name.
  function S.small_records(set)
    local stored = call("HGETALL", S.root .. set)
    for index = 1, #stored, 2 do
      if small[set][stored[index]] == nil then
        small[set][stored[index]] = unpack_small(stored[index + 1])
      end
    end
    local names, found = {}, {}
    for name, record in pairs(small[set]) do
      if record then
        names[#names + 1] = name
      end
    end
    table.sort(names, rt.less)
    for index, name in ipairs(names) do
      found[index] = small[set][name]
    end
    return found
  end

  function S.swap_small(set, name, record)
    small[set][name] = record
    small_changes[set][name] = true
  end

  function S.pool(name)
    return S.small_record("pools", name)
  end
  function S.pools()
    return S.small_records("pools")
  end
  function S.worker(name)
    return S.small_record("workers", name)
  end
  function S.workers()
    return S.small_records("workers")
  end

  function S.swap(record, there)
    local kind = record.kind
    if kind == "QueueRecord" then
      S.swap_queue(record, there)
    elseif kind == "LaneRecord" then
      S.swap_lane(record, there)
    elseif kind == "Edge" then
      swap_edge(record, there)
    else
      S.swap_small(KEYS_OF_KINDS[kind], record.name or record.worker, there and record)
    end
  end

  function S.has_small_changes()
    if edges_changed or next(S.queue_changes) then
      return true
    end
    for _, names in pairs(small_changes) do
      if next(names) then
        return true
      end
    end
    for _, q in pairs(S.opened) do
      if q.lane_changed then
        return true
      end
    end
    return false
  end

  function S.write_small_records()
    write_edges()
    for set, names in pairs(small_changes) do
      for name in pairs(names) do
        local record = small[set][name]
        if record then
          S.add("HSET", S.root .. set, name, cmsgpack.pack(record))
        else
          S.remove("HDEL", S.root .. set, name)
        end
      end
    end
  end
end
