-- The state of a root, part 3: queues and lanes.

do
  local call = redis.call
  local NAMES = { "paused", "emptied_at", "total:succeeded", "total:failed", "total:cancelled", "pooled" }
  local IDLE_LANES_PER_CALL = 1000
  local FIELDS = {} -- of the hash queue:Q
  for _, name in ipairs(NAMES) do
    FIELDS[#FIELDS + 1] = name
  end
  for _, state in ipairs(records.STATES) do
    FIELDS[#FIELDS + 1] = state
  end

  -- Queues

  local queue_changes = {} -- name → true
  S.queue_changes = queue_changes

  -- Read the hash of a queue: its record and its counters.
  local function read_queue(q)
    if q.counts == nil then
      local values = call("HMGET", q.queue_key, unpack(FIELDS))
      q.counts = {}
      q.pooled = tonumber(values[6] or 0)
      for index, state in ipairs(records.STATES) do
        q.counts[state] = tonumber(values[#NAMES + index] or 0)
      end
      q.record = values[1]
        and {
          kind = "QueueRecord",
          queue = q.name,
          paused = values[1] == "1",
          emptied_at = tonumber(values[2]),
          totals = {
            succeeded = tonumber(values[3]),
            failed = tonumber(values[4]),
            cancelled = tonumber(values[5]),
          },
        }
    end
  end

  function S.queue(name)
    local q = S.opened[name] or S.of(name)
    if q.counts == nil then
      read_queue(q)
    end
    return q.record or nil
  end

  function S.swap_queue(record, there)
    local q = S.of(record.queue)
    read_queue(q)
    q.record = there and record
    q.removed = not there
    queue_changes[record.queue] = true
  end

  function S.queues()
    local names = {}
    for _, name in ipairs(call("ZRANGE", S.root .. "queues", 0, -1)) do
      if not queue_changes[name] then
        names[#names + 1] = name
      end
    end
    for name in pairs(queue_changes) do
      names[#names + 1] = name
    end
    table.sort(names, rt.less)
    local found = {}
    for _, name in ipairs(names) do
      found[#found + 1] = S.queue(name)
    end
    return found
  end

  function S.counts(name)
    local q = S.of(name)
    read_queue(q)
    local counts = {}
    for state, count in pairs(q.counts) do
      count = count + (q.moved[state] or 0)
      if count ~= 0 then
        counts[state] = count
      end
    end
    return counts
  end

  function S.depth(name)
    local counts, depth = S.counts(name), 0
    for _, state in ipairs(S.LIVE) do
      depth = depth + (counts[state] or 0)
    end
    return depth
  end

  function S.count_pooled(name)
    local q = S.of(name)
    read_queue(q)
    return q.pooled + q.pooled_change
  end

  function S.write_queue_record(q)
    local is_changed = queue_changes[q.name]
    local record = q.record
    if is_changed and not record then
      S.remove("ZREM", S.root .. "queues", q.name)
      return
    end
    if is_changed then
      S.add("ZADD", S.root .. "queues", "0", q.name)
      S.add("HSET", q.queue_key, "paused", record.paused and "1" or "0")
      S.add("HSET", q.queue_key, "emptied_at", S.text_of(record.emptied_at))
      for state, total in pairs(record.totals) do
        S.add("HSET", q.queue_key, "total:" .. state, S.text_of(total))
      end
    end
    if q.pooled_change ~= 0 then
      read_queue(q)
      S.add("HSET", q.queue_key, "pooled", S.text_of(q.pooled + q.pooled_change))
    end
    for state, change in pairs(q.moved) do
      if change ~= 0 then
        read_queue(q)
        S.add("HSET", q.queue_key, state, S.text_of(q.counts[state] + change))
      end
    end
  end

  function S.last_arrival()
    if S.arrival == nil then
      S.arrival = tonumber(call("HGET", S.root .. "meta", "arrival") or 0)
      S.stored_arrival = S.arrival
    end
    return S.arrival
  end

  function S.new_arrival()
    S.arrival = S.last_arrival() + 1
    return S.arrival
  end

  -- Lanes

  local LANE = "<BI4I6I6I6I7I7" -- paused, depth, the three totals, fence, emptied; behind it the id of the head
  local LANE_BYTES = 37
  S.LANE = LANE

  local function unpack_lane(raw, queue, lane)
    local paused, depth, succeeded, failed, cancelled, fence, emptied = struct.unpack(LANE, raw)
    return {
      kind = "LaneRecord",
      queue = queue,
      lane = lane,
      head = #raw > LANE_BYTES and string.sub(raw, LANE_BYTES + 1) or nil,
      depth = depth,
      paused = paused == 1,
      totals = { succeeded = succeeded, failed = failed, cancelled = cancelled },
      fence = fence,
      emptied = emptied,
    }
  end

  local function pack_lane(lane)
    local totals = lane.totals
    return struct.pack(
      LANE, lane.paused and 1 or 0, lane.depth, totals.succeeded, totals.failed, totals.cancelled, lane.fence,
      lane.emptied
    ) .. (lane.head or "")
  end

  function S.prefetch_lanes(q, lanes)
    local missing = {}
    for lane in pairs(lanes) do
      if q.lanes[lane] == nil then
        missing[#missing + 1] = lane
      end
    end
    for first = 1, #missing, S.ENTRIES_PER_CALL do
      local last = math.min(first + S.ENTRIES_PER_CALL - 1, #missing)
      for index, raw in ipairs(call("HMGET", q.lanes_key, unpack(missing, first, last))) do
        local lane = missing[first + index - 1]
        q.lanes[lane] = raw and unpack_lane(raw, q.name, lane)
      end
    end
  end

  -- Stops the rules if the head of an unchanged lane is missing.
  local function check_head(q, id)
    if q.raw[id] == nil then
      q.raw[id] = call("HGET", q.jobs_key, id)
    end
    if not q.raw[id] and q.stored[id] == nil then
      S.stop_to_repair(q, { id })
    end
  end

  function S.lane(queue, lane)
    local q = S.opened[queue] or S.of(queue)
    local record = q.lanes[lane]
    if record == nil then
      local raw = call("HGET", q.lanes_key, lane)
      record = raw and unpack_lane(raw, queue, lane)
      q.lanes[lane] = record
    end
    if record and record.head and q.stored_lanes[lane] == nil and not S.is_repairing then
      check_head(q, record.head)
    end
    return record or nil
  end

  function S.swap_lane(record, there)
    local q, lane = S.of(record.queue), record.lane
    if q.stored_lanes[lane] == nil then
      q.stored_lanes[lane] = S.lane(record.queue, lane) or false
    end
    q.lanes[lane] = there and record
    q.lane_changed = true
  end

  function S.lanes(queue)
    local q = S.of(queue)
    local stored = call("HGETALL", q.lanes_key)
    for index = 1, #stored, 2 do
      if q.lanes[stored[index]] == nil then
        q.lanes[stored[index]] = unpack_lane(stored[index + 1], queue, stored[index])
      end
    end
    local found = {}
    for _, record in pairs(q.lanes) do
      if record then
        found[#found + 1] = record
      end
    end
    table.sort(found, function(one, other)
      return rt.less(one.lane, other.lane)
    end)
    return found
  end

  local function idle_since(lane)
    return lane and lane.depth == 0 and not lane.paused and lane.emptied
  end

  function S.write_lane(q, lane, before, after)
    if after then
      S.add("HSET", q.lanes_key, lane, pack_lane(after))
    elseif before then
      S.remove("HDEL", q.lanes_key, lane)
    end
    local was, is = idle_since(before), idle_since(after)
    local member = q.name .. "\0" .. lane
    if was and not is then
      S.remove("ZREM", S.root .. "idle_lanes", member)
    elseif is and was ~= is then
      S.add("ZADD", S.root .. "idle_lanes", S.text_of(is), member)
    end
  end

  -- Lanes that have been empty since then; a part of them, if they are many.
  function S.idle_lanes(emptied_before)
    local key, first = S.root .. "idle_lanes", 0
    local count = call("ZCOUNT", key, "-inf", emptied_before)
    if count > IDLE_LANES_PER_CALL then
      -- Another part at every call: the lanes of a pool stay in the set.
      first = S.now % math.ceil(count / IDLE_LANES_PER_CALL) * IDLE_LANES_PER_CALL
    end
    local names = call("ZRANGEBYSCORE", key, "-inf", emptied_before, "LIMIT", first, IDLE_LANES_PER_CALL)
    local lanes, found = {}, {}
    for _, name in ipairs(names) do
      local queue, lane = S.split_name(name)
      lanes[queue] = lanes[queue] or {}
      lanes[queue][lane] = true
    end
    for queue, of_queue in pairs(lanes) do
      S.prefetch_lanes(S.of(queue), of_queue)
    end
    for _, name in ipairs(names) do
      local queue, lane = S.split_name(name)
      if S.of(queue).stored_lanes[lane] == nil then
        found[#found + 1] = S.lane(queue, lane)
      end
    end
    for _, q in pairs(S.opened) do
      for lane in pairs(q.stored_lanes) do
        local since = idle_since(q.lanes[lane])
        if since and since <= emptied_before then
          found[#found + 1] = q.lanes[lane]
        end
      end
    end
    return found
  end
end
