-- The fast path: enqueue and exchange of plain jobs, without the rules.
--
-- It carries out a call whole, or declines it before anything is written: then the rules carry it out, in the same call.
-- It is an optimisation. The rules alone do the same and store the same bytes. Each function names the rules
-- (docs/contract.md, section 4) that it states a second time. `tests/engines/test_redis_fast_path.py` sends the same
-- calls through both and compares every key.
--
-- A stored job is plain if it has no lane, no hold, no payload with a key of its own and no rare fields but `reply`, and
-- no cancel was requested. Keys are described in state_sets.lua, records in layout.lua.
--
-- This file has what the parts share, enqueue and get. fast_settle.lua and fast_claim.lua have the exchange.
local F = {
  QUEUED = 3, ASSIGNED = 4, RUNNING = 5, SUCCEEDED = 7, -- as records.STATES
  RESULT_SCOPE = 2, -- as records.SCOPES
  SHORTEST = 34, -- bytes of a record: the base part, and the length of the metadata
  SHORTEST_LEASED = 82, -- and the lease part
}

do
  local call, struct_pack, struct_unpack, byte = redis.call, struct.pack, struct.unpack, string.byte
  local BASE = records.BASE
  local QUEUED, RESULT_SCOPE = F.QUEUED, F.RESULT_SCOPE
  local CODECS = { json = 1, msgpack = 2 } -- as records.CODECS
  local RARE_FLAG = 4
  local REPLY_ALONE = "\129\165reply" -- a msgpack map with one entry begins so
  local ENTRIES_PER_CALL = 1000

  -- The values in as many calls as a variadic command needs.
  function F.write(command, key, values)
    local count = #values
    if count <= ENTRIES_PER_CALL then
      if count > 0 then
        call(command, key, unpack(values))
      end
      return
    end
    for first = 1, count, ENTRIES_PER_CALL do
      call(command, key, unpack(values, first, math.min(first + ENTRIES_PER_CALL - 1, count)))
    end
  end

  function F.read(key, fields)
    if #fields <= ENTRIES_PER_CALL then
      return call("HMGET", key, unpack(fields))
    end
    local found = {}
    for first = 1, #fields, ENTRIES_PER_CALL do
      for _, value in ipairs(call("HMGET", key, unpack(fields, first, math.min(first + ENTRIES_PER_CALL - 1, #fields)))) do
        found[#found + 1] = value
      end
    end
    return found
  end

  -- False: the name is encoded in keys, which the fast path leaves to the rules.
  function F.is_key_part(name)
    return not string.find(name, "[%c%%{}:]")
  end

  -- False: a clear, a resize or the end of a parent has work left that every call carries on.
  function F.nothing_waits(root)
    return call("EXISTS", root .. "unfinished") == 0 and call("EXISTS", root .. "ended_parents") == 0
  end

  -- Where the strings of a record begin, given its flags.
  function F.strings_of(flags)
    local at = 33
    if flags % 2 == 1 then
      at = at + 48
    end
    if flags % 4 >= 2 then
      at = at + 36
    end
    return flags >= RARE_FLAG and at + 4 or at
  end

  -- False: the record is cut. The rules repair it.
  function F.is_whole(raw)
    local size, at, strings = #raw, 33, 0
    if size < F.SHORTEST then
      return false
    end
    local flags, _, _, _, _, _, _, hash_length = byte(raw, 1, 8)
    if flags % 2 == 1 and size > 80 then
      local token_length, settled_length = byte(raw, 63, 64)
      at, strings = 81, byte(raw, 56) + token_length + settled_length
    end
    if flags % 4 >= 2 and size > at + 36 then
      strings = strings + math.max(struct_unpack("<I4", raw, at + 32) - 1, 0)
      at = at + 36
    end
    if flags % 8 >= RARE_FLAG and size > at + 4 then
      strings = strings + struct_unpack("<I4", raw, at)
      at = at + 4
    end
    local tail = at + strings + struct_unpack("<H", raw, 15) + hash_length + byte(raw, 32)
    return size > tail and size > tail + struct_unpack("<H", raw, tail)
  end

  -- Whether a record with flag 4 has no rare field but `reply`. `at`: where its rare fields begin.
  function F.has_reply_alone(raw, at)
    return string.sub(raw, at, at + 6) == REPLY_ALONE
  end

  -- As records.blob.
  function F.blob(raw, queue, id)
    return raw .. queue .. id .. struct_pack("<HH", #queue, #id)
  end

  -- Get

  -- RD1
  function F.get(command, this)
    local numbers, blobs = {}, { false }
    for place, key in ipairs(command.jobs) do
      local queue, id = key.queue, key.id
      if not F.is_key_part(queue) then
        return nil
      end
      local raw = call("HGET", this.root .. "jobs:" .. queue, id)
      if raw then
        if not F.is_whole(raw) or byte(raw) >= 16 then
          return nil
        end
        blobs[#blobs + 1] = F.blob(raw, queue, id)
      end
      numbers[place] = raw and #blobs - 1 or 0
    end
    return this.reply({ jobs = numbers }, blobs)
  end

  -- Enqueue

  local function is_plain_new(job, now)
    return job.lane == nil and job.pool == nil and job.unique_key == nil and job.key_scope == nil
      and job.key_window == nil and job.parents == nil and job.given == nil
      and job.expires == nil and job.payload == nil and job.delay == 0 and (job.due == nil or job.due <= now)
      and CODECS[job.codec] ~= nil
  end

  -- The new jobs by queue, or nil if one of them is not plain.
  -- E3: two of one id are left to the rules.
  local function by_queue(groups, now)
    local queues = {}
    local last_name, last, last_task
    for _, group in ipairs(groups) do
      if #group.limits > 0 then
        return nil
      end
      for _, job in ipairs(group.jobs) do
        if not is_plain_new(job, now) then
          return nil
        end
        local name, id = job.queue, job.id
        if name ~= last_name then
          last_name, last, last_task = name, queues[name], nil
          if last == nil then
            if not F.is_key_part(name) then
              return nil
            end
            last = { ids = {}, jobs = {}, seen = {}, tasks = {} }
            queues[name] = last
          end
        end
        if job.task ~= last_task then
          last_task = job.task
          if not F.is_key_part(last_task) then
            return nil
          end
          last.tasks[last_task] = true
        end
        if last.seen[id] then
          return nil
        end
        last.seen[id] = true
        last.ids[#last.ids + 1] = id
        last.jobs[#last.jobs + 1] = job
      end
    end
    return queues
  end

  -- S1, D1: no stored job has one of the ids. The first job of a queue is left to the rules.
  local function all_new(root, queues)
    for name, queue in pairs(queues) do
      if call("HEXISTS", root .. "queue:" .. name, "paused") == 0 then
        return false
      end
      for _, raw in ipairs(F.read(root .. "jobs:" .. name, queue.ids)) do
        if raw then
          return false
        end
      end
    end
    return true
  end

  -- Fails if a key that `insert` writes, and that was not read, is of another type.
  local function check_types(root, queues)
    for name, queue in pairs(queues) do
      call("ZCARD", root .. "state:" .. name .. ":queued")
      call("SCARD", root .. "tasks:" .. name)
      for task in pairs(queue.tasks) do
        call("ZCARD", root .. "ready:" .. name .. ":" .. task)
      end
    end
  end

  -- E1, E4, D11, N1: writes new jobs; all are due now.
  local function insert(root, name, queue, now)
    local stored, states, ready = {}, {}, {}
    for place, job in ipairs(queue.jobs) do
      local task, hash, id, arrival = job.task, job.payload_hash and ARGV[job.payload_hash] or "", job.id, job.arrival
      local flags, rare, rare_length = 0, "", ""
      if job.reply then
        flags, rare = RARE_FLAG, cmsgpack.pack({ reply = { job.reply } })
        rare_length = struct_pack("<I4", #rare)
      end
      stored[2 * place - 1] = id
      stored[2 * place] = struct_pack(
        BASE, flags, QUEUED, job.priority, 0, RESULT_SCOPE, CODECS[job.codec], #hash, arrival, #task, now, 0, now, 0
      ) .. rare_length .. task .. hash .. rare .. ARGV[job.tail]
      states[2 * place - 1] = arrival
      states[2 * place] = id
      local members = ready[task]
      if members == nil then
        members = {}
        ready[task] = members
      end
      members[#members + 1] = 0 - job.priority -- not -0
      members[#members + 1] = struct_pack(">I7I6", now, arrival) .. id
    end
    F.write("HSET", root .. "jobs:" .. name, stored)
    F.write("ZADD", root .. "state:" .. name .. ":queued", states)
    for task, members in pairs(ready) do
      F.write("ZADD", root .. "ready:" .. name .. ":" .. task, members)
      call("SADD", root .. "tasks:" .. name, task)
    end
    call("HINCRBY", root .. "queue:" .. name, "queued", #queue.jobs)
  end

  -- E1: the answer is in the order of the command.
  function F.enqueue(command, this)
    local root, now = this.root, this.at.wall
    local queues = by_queue(command.groups, now)
    if queues == nil or not F.nothing_waits(root) or not all_new(root, queues) then
      return nil
    end
    check_types(root, queues)
    local count = 0
    for _, group in ipairs(command.groups) do
      count = count + #group.jobs
    end
    local arrival = call("HINCRBY", root .. "meta", "arrival", count) - count
    local groups = {}
    for place, group in ipairs(command.groups) do
      local accepted = {}
      for number, job in ipairs(group.jobs) do
        arrival = arrival + 1
        job.arrival = arrival
        accepted[number] = { status = "created", id = job.id, state = "queued", arrival = arrival, generation = 0 }
      end
      groups[place] = { type = "accepted", jobs = accepted }
    end
    local topics = {}
    for name, queue in pairs(queues) do
      insert(root, name, queue, now)
      topics["queue:" .. name] = true
    end
    this.tip = H.advance(root, this.tip)
    this.publish(topics)
    return this.reply({ groups = groups }, { false })
  end
end
