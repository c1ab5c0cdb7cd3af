-- The state of a root, part 2: writing the changes of a call.

do
  local call, pack = redis.call, records.pack
  local WAITING, BY_DUE, TERMINAL = S.WAITING, S.BY_DUE, S.TERMINAL
  local HOLD_LANE, HOLD_EPOCH, has_bit = S.HOLD_LANE, S.HOLD_EPOCH, S.has_bit

  local removals, additions = {}, {} -- per command: key → its arguments
  local texts = {} -- number → its text: most jobs of a call share their instants

  local function text_of(number)
    local text = texts[number]
    if text == nil then
      text = string.format("%.0f", number + 0) -- not -0
      texts[number] = text
    end
    return text
  end
  S.text_of = text_of

  local function arguments(commands, command, key)
    local by_key = commands[command]
    if by_key == nil then
      by_key = {}
      commands[command] = by_key
    end
    local list = by_key[key]
    if list == nil then
      list = {}
      by_key[key] = list
    end
    return list
  end

  local function remove(command, key, member)
    local list = arguments(removals, command, key)
    list[#list + 1] = member
  end

  -- Two arguments per entry: score and member, or field and value.
  local function add(command, key, first, second)
    local list = arguments(additions, command, key)
    local length = #list
    list[length + 1], list[length + 2] = first, second
  end
  S.remove, S.add = remove, add

  local function send(commands, entry_size)
    local most = S.ENTRIES_PER_CALL * entry_size
    for command, by_key in pairs(commands) do
      for key, list in pairs(by_key) do
        for first = 1, #list, most do
          call(command, key, unpack(list, first, math.min(first + most - 1, #list)))
        end
      end
    end
  end

  local SIZES = { Z = "ZCARD", H = "HLEN", S = "SCARD" } -- by the first letter of a command

  -- Fails if a key that will be written is of another type, before anything is written.
  local function check_types(commands)
    for command, by_key in pairs(commands) do
      local size = SIZES[string.sub(command, 1, 1)]
      for key in pairs(by_key) do
        call(size, key)
      end
    end
  end

  -- The indexes of one job

  local function write_ready(q, id, before, after)
    local was, is = before and before.state == "queued", after and after.state == "queued"
    if not was and not is then
      return
    end
    local member = is and S.ready_member(after)
    if was and is and before.task == after.task and S.ready_member(before) == member then
      if before.priority == after.priority then
        return
      end
    elseif was then
      remove("ZREM", S.ready_key(q, before.task), S.ready_member(before))
    end
    if is then
      add("ZADD", S.ready_key(q, after.task), text_of(-after.priority), member)
      q.tasks[after.task] = true
    end
  end

  local function write_due(q, id, before, after)
    local was, is = before and BY_DUE[before.state], after and BY_DUE[after.state]
    if was and not (is and before.arrival == after.arrival) then
      remove("ZREM", q.due_key, S.arrival_member(before))
    end
    if is and not (was and before.arrival == after.arrival and before.due == after.due) then
      add("ZADD", q.due_key, text_of(after.due), S.arrival_member(after))
    end
  end

  local function write_list(q, id, before, after)
    local was, is = before and before.state, after and after.state
    if was == is and before.arrival == after.arrival then
      return
    end
    if before and not before.token and was ~= is then
      remove("ZREM", S.state_key(q, was), id)
    end
    if after and not after.token then
      add("ZADD", S.state_key(q, is), after.arrival, id)
    end
  end

  local function write_holds(q, id, before, after)
    local was = before and before.hold ~= 0 and has_bit(before.hold, HOLD_LANE)
    local is = after and after.hold ~= 0 and has_bit(after.hold, HOLD_LANE)
    local same = was and is and before.lane == after.lane and before.arrival == after.arrival
    if was and not same then
      remove("ZREM", S.lane_key(q, before.lane), S.arrival_member(before))
    end
    if is and not (same and before.priority == after.priority) then
      add("ZADD", S.lane_key(q, after.lane), text_of(-after.priority), S.arrival_member(after))
    end
    was = before and before.hold ~= 0 and has_bit(before.hold, HOLD_EPOCH)
    is = after and after.hold ~= 0 and has_bit(after.hold, HOLD_EPOCH)
    if was and not is then
      remove("ZREM", q.epoch_key, id)
    end
    if is and not (was and before.arrival == after.arrival) then
      add("ZADD", q.epoch_key, after.arrival, id)
    end
  end

  local function kept_until(job)
    return math.max(job.visible_until, job.result_until, job.key_until)
  end
  S.kept_until = kept_until

  -- A member that keeps its name: `was` and `is` are its scores, nil or false for "not in the set".
  local function write_score(set, q, id, was, is)
    if was and not is then
      remove("ZREM", S.root .. set, q.name .. "\0" .. id)
    elseif is and was ~= is then
      add("ZADD", S.root .. set, text_of(is), q.name .. "\0" .. id)
    end
  end

  local function write_payload(q, id, before, after)
    if after and type(after.tail) == "table" then
      q.new_payloads[#q.new_payloads + 1] = { S.payload_key(q, id), after.tail[2] }
    elseif not (after and after.payload_apart) then
      q.gone_payloads[#q.gone_payloads + 1] = S.payload_key(q, id)
    end
  end

  local function write_job(q, id, before, after)
    if not before and not after then
      return
    end
    write_ready(q, id, before, after)
    write_due(q, id, before, after)
    write_list(q, id, before, after)
    if (before and before.hold ~= 0) or (after and after.hold ~= 0) then
      write_holds(q, id, before, after)
    end
    if (before and before.lease_expires) or (after and after.lease_expires) then
      write_score("leases", q, id, before and before.lease_expires, after and after.lease_expires)
    end
    local was, is = before and TERMINAL[before.state], after and TERMINAL[after.state]
    if was or is then
      write_score("ended", q, id, was and kept_until(before), is and kept_until(after))
    end
    if (before and before.expires) or (after and after.expires) then
      was = before and WAITING[before.state] and before.expires
      is = after and WAITING[after.state] and after.expires
      write_score("expiring", q, id, was, is)
    end
    if (before and before.payload_apart) or (after and type(after.tail) == "table") then
      write_payload(q, id, before, after)
    end
    if after then
      local raw = pack(after)
      q.raw[id] = raw
      add("HSET", q.jobs_key, id, raw)
    else
      q.raw[id] = false
      remove("HDEL", q.jobs_key, id)
    end
  end

  local function write_queue(q)
    q.gone_payloads, q.new_payloads = {}, {}
    for _, id in ipairs(q.changed) do
      write_job(q, id, q.stored[id], q.jobs[id])
    end
    for key in pairs(q.changed_keys) do
      local id = q.keys[key]
      if id then
        add("HSET", q.keys_key, key, id)
      else
        remove("HDEL", q.keys_key, key)
      end
    end
    for lane, before in pairs(q.stored_lanes) do
      S.write_lane(q, lane, before, q.lanes[lane])
    end
    S.write_queue_record(q)
    for task in pairs(q.tasks) do
      local list = arguments(additions, "SADD", q.tasks_key)
      list[#list + 1] = task
    end
  end

  local function write_claims()
    for claim, count in pairs(S.claim_changes) do
      if count ~= 0 and call("HINCRBY", S.root .. "claims", claim, count) == 0 then
        call("HDEL", S.root .. "claims", claim)
      end
    end
  end

  -- What this call has written, at its end. True: something was written.
  function S.flush()
    if not (S.has_changes() or S.has_small_changes()) then
      return false
    end
    for _, q in pairs(S.opened) do
      write_queue(q)
    end
    S.write_small_records()
    check_types(removals)
    check_types(additions)
    if next(S.claim_changes) then
      call("HLEN", S.root .. "claims")
    end
    if not S.may_fill then
      -- It removes nothing. After a first write that is never refused, a server without memory refuses no later one.
      call("ZREM", S.root .. "leases", "")
    end
    if S.may_fill or S.arrival ~= S.stored_arrival then
      -- Without memory for an enqueue or a requeue, the server refuses this first write, and nothing is written.
      call("HSET", S.root .. "meta", "arrival", S.text_of(S.last_arrival()))
    end
    send(removals, 1)
    for _, q in pairs(S.opened) do
      for _, key in ipairs(q.gone_payloads) do
        call("DEL", key)
      end
      if q.removed then
        call("DEL", q.queue_key) -- one by one: while a slot moves, a node refuses a command about several keys
        call("DEL", q.tasks_key)
      end
    end
    local tasks = additions.SADD
    additions.SADD = nil
    send(additions, 2)
    send({ SADD = tasks }, 1)
    for _, q in pairs(S.opened) do
      for _, entry in ipairs(q.new_payloads) do
        call("SET", entry[1], entry[2])
      end
    end
    write_claims()
    return true
  end
end
