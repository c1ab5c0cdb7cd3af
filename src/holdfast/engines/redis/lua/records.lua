-- Packs and unpacks the records of jobs: see layout.lua.

do
  records.STATES = {
    "scheduled", "blocked", "queued", "assigned", "running", "retrying", "succeeded", "failed", "cancelled",
  }
  records.SCOPES = { "incomplete", "result", "window", "forever" }
  records.CODECS = { "json", "msgpack" }
  records.REASONS = {
    "error", "timeout", "gave_up", "exhausted", "retry_window", "worker_lost", "asked", "expired", "cleared",
    "parent_failed", "snoozed", "retry_asked", "released", "unknown_task", "undecodable", "unstorable",
    "result_too_large",
  }
  records.NOTHING = {} -- an empty tuple, and a `given` without values

  local struct_pack, struct_unpack, sub = struct.pack, struct.unpack, string.sub
  local msgpack, msgunpack = cmsgpack.pack, cmsgpack.unpack
  local BASE, LEASE, ENDED = records.BASE, records.LEASE, records.ENDED
  local STATES, SCOPES, CODECS, REASONS = records.STATES, records.SCOPES, records.CODECS, records.REASONS
  local FOREVER, LAST, NOTHING = records.FOREVER, records.LAST_INSTANT, records.NOTHING

  local function numbers_of(names)
    local numbers = {}
    for number, name in ipairs(names) do
      numbers[name] = number
    end
    return numbers
  end
  local STATE_NUMBERS, SCOPE_NUMBERS = numbers_of(STATES), numbers_of(SCOPES)
  local CODEC_NUMBERS, REASON_NUMBERS = numbers_of(CODECS), numbers_of(REASONS)
  records.STATE_NUMBERS = STATE_NUMBERS

  local rare -- the rare fields of the record that is being packed

  local function set_rare(name, value)
    rare = rare or {}
    rare[name] = value
  end

  -- An instant that is always there.
  local function instant(value, name)
    if value >= 0 and value < LAST then
      return value
    elseif value == FOREVER then
      return LAST
    end
    set_rare(name, value)
    return 0
  end

  -- An instant that may be nil.
  local function optional(value, name)
    if value == nil then
      return 0
    elseif value > 0 and value < LAST then
      return value
    elseif value == FOREVER then
      return LAST
    end
    set_rare(name, value)
    return 0
  end

  local function bounded(value, most, name)
    if value >= 0 and value <= most then
      return value
    end
    set_rare(name, value)
    return 0
  end

  -- A string that may be nil, as it stands among the strings.
  local function short(value, name)
    if value == nil then
      return ""
    elseif #value > 0 and #value <= 255 then
      return value
    end
    set_rare(name, value)
    return ""
  end

  local function collect_rare(job)
    if job.unique_key ~= nil then set_rare("unique_key", job.unique_key) end
    if job.key_window ~= 0 then set_rare("key_window", job.key_window) end
    if job.expires ~= nil then set_rare("expires", job.expires) end
    if job.reply[1] ~= nil then set_rare("reply", job.reply) end
    if next(job.given) ~= nil then set_rare("given", job.given) end
    if job.parents_left ~= 0 then set_rare("parents_left", job.parents_left) end
    if job.progress ~= nil then set_rare("progress", job.progress) end
    if job.cancel_note ~= "" then set_rare("cancel_note", job.cancel_note) end
    if job.note ~= "" then set_rare("note", job.note) end
    if job.last_error ~= nil then set_rare("last_error", job.last_error) end
    if job.history[1] ~= nil then set_rare("history", job.history) end
    if job.epoch ~= 0 then set_rare("epoch", job.epoch) end
    if job.pool_key ~= nil then
      local hash = rt.key_hash[job.pool_key]
      set_rare("pool_key", job.pool_key)
      set_rare("pool_hash_hi", hash[1])
      set_rare("pool_hash_lo", hash[2])
    end
    if job.reaped_token ~= nil then set_rare("reaped_token", job.reaped_token) end
    if job.loss_error ~= nil then set_rare("loss_error", job.loss_error) end
  end

  -- The stored form of a job.
  function records.pack(job)
    rare = nil
    collect_rare(job)
    local flags = 0
    local codec = CODEC_NUMBERS[job.codec]
    if codec == nil then
      set_rare("codec", job.codec)
    end
    local lane = short(job.lane, "lane")
    local hash = job.payload_hash
    local lease, ended, owner, token, settled, result = "", "", "", "", "", ""
    if
      job.attempt ~= 0 or job.fence ~= 0 or job.owner ~= "" or job.losses ~= 0 or job.token ~= nil
      or job.settled_token ~= nil or job.max_losses ~= 0 or job.max_attempts ~= 0 or job.lease_len ~= 0
      or job.started ~= nil or job.last_started ~= nil or job.lease_expires ~= nil
    then
      flags = 1
      owner = job.owner
      if owner ~= "" then
        owner = short(owner, "owner")
      end
      token, settled = short(job.token, "token"), short(job.settled_token, "settled_token")
      lease = struct_pack(
        LEASE,
        bounded(job.attempt, 65535, "attempt"),
        bounded(job.losses, 255, "losses"),
        bounded(job.max_losses, 255, "max_losses"),
        bounded(job.max_attempts, 4294967295, "max_attempts"),
        instant(job.fence, "fence"),
        0,
        optional(job.lease_expires, "lease_expires"),
        #owner,
        bounded(job.lease_len, 281474976710655, "lease_len"),
        #token,
        #settled,
        optional(job.started, "started"),
        0,
        optional(job.last_started, "last_started"),
        0
      )
    end
    if
      job.finished ~= nil or job.reason ~= nil or job.result ~= nil
      or job.visible_until ~= 0 or job.result_until ~= 0 or job.key_until ~= 0
    then
      flags = flags + 2
      result = job.result or ""
      ended = struct_pack(
        ENDED,
        optional(job.finished, "finished"),
        REASON_NUMBERS[job.reason] or 0,
        instant(job.visible_until, "visible_until"),
        0,
        instant(job.result_until, "result_until"),
        0,
        instant(job.key_until, "key_until"),
        0,
        job.result and #result + 1 or 0
      )
    end
    local created, due = instant(job.created, "created"), instant(job.due, "due")
    local generation = bounded(job.generation, 255, "generation")
    local blob, blob_length = "", ""
    if rare then
      flags = flags + 4
      blob = msgpack(rare)
      blob_length = struct_pack("<I4", #blob)
    end
    if job.cancel_asked then
      flags = flags + 8
    end
    local tail = job.tail
    if job.payload_apart then
      flags = flags + 16
    elseif type(tail) == "table" then -- a new job: its tail, and its payload
      flags, tail = flags + 16, tail[1]
    end
    local task = job.task
    return struct_pack(
      BASE, flags, STATE_NUMBERS[job.state], job.priority, job.hold, SCOPE_NUMBERS[job.key_scope], codec or 0, #hash,
      job.arrival, #task, created, generation, due, #lane
    ) .. lease .. ended .. blob_length .. task .. lane .. hash .. owner .. token .. settled .. result .. blob .. tail
  end

  local function forever(value)
    if value == LAST then
      return FOREVER
    end
    return value
  end

  local function none(value)
    if value == 0 then
      return nil
    elseif value == LAST then
      return FOREVER
    end
    return value
  end

  -- The job of a stored form. Its payload and metadata stay packed in `tail`.
  function records.unpack(raw, queue, id)
    local flags, state, priority, hold, scope, codec, hash_length, arrival, task_length, created, generation, due,
      lane_length = struct_unpack(BASE, raw)
    local at = 33
    local attempt, losses, max_losses, max_attempts, fence, lease_len = 0, 0, 0, 0, 0, 0
    local lease_expires, started, last_started, token, settled_token, result, finished, reason, _
    local owner, owner_length, token_length, settled_length = "", 0, 0, 0
    local visible_until, result_until, key_until, result_length = 0, 0, 0, 0
    if flags % 2 == 1 then
      attempt, losses, max_losses, max_attempts, fence, _, lease_expires, owner_length, lease_len, token_length,
        settled_length, started, _, last_started = struct_unpack(LEASE, raw, at)
      at = at + 48
      fence, lease_expires = forever(fence), none(lease_expires)
      started, last_started = none(started), none(last_started)
    end
    if flags % 4 >= 2 then
      finished, reason, visible_until, _, result_until, _, key_until, _, result_length = struct_unpack(ENDED, raw, at)
      at = at + 36
      finished = none(finished)
      visible_until, result_until, key_until = forever(visible_until), forever(result_until), forever(key_until)
      reason = REASONS[reason]
    end
    local rare_length = 0
    if flags % 8 >= 4 then
      rare_length = struct_unpack("<I4", raw, at)
      at = at + 4
    end
    local task, lane, hash = sub(raw, at, at + task_length - 1), nil, ""
    at = at + task_length
    if lane_length > 0 then
      lane = sub(raw, at, at + lane_length - 1)
      at = at + lane_length
    end
    if hash_length > 0 then
      hash = sub(raw, at, at + hash_length - 1)
      at = at + hash_length
    end
    if owner_length > 0 then
      owner = sub(raw, at, at + owner_length - 1)
      at = at + owner_length
    end
    if token_length > 0 then
      token = sub(raw, at, at + token_length - 1)
      at = at + token_length
    end
    if settled_length > 0 then
      settled_token = sub(raw, at, at + settled_length - 1)
      at = at + settled_length
    end
    if result_length > 0 then
      result = sub(raw, at, at + result_length - 2)
      at = at + result_length - 1
    end
    local job = {
      queue = queue,
      id = id,
      task = task,
      codec = CODECS[codec],
      payload_hash = hash,
      priority = priority,
      lane = lane,
      key_scope = SCOPES[scope],
      key_window = 0,
      reply = NOTHING,
      given = NOTHING,
      state = STATES[state],
      hold = hold,
      generation = generation,
      arrival = arrival,
      created = forever(created),
      due = forever(due),
      parents_left = 0,
      attempt = attempt,
      losses = losses,
      owner = owner,
      token = token,
      fence = fence,
      lease_expires = lease_expires,
      lease_len = lease_len,
      max_attempts = max_attempts,
      max_losses = max_losses,
      started = started,
      last_started = last_started,
      cancel_asked = flags % 16 >= 8,
      cancel_note = "",
      settled_token = settled_token,
      finished = finished,
      reason = reason,
      note = "",
      result = result,
      history = NOTHING,
      visible_until = visible_until,
      result_until = result_until,
      key_until = key_until,
      epoch = 0,
      payload_apart = flags >= 16 or nil,
      tail = sub(raw, at + rare_length),
    }
    assert(job.state and job.key_scope and #job.tail >= 2 + struct_unpack("<H", job.tail)) -- else it is cut
    if rare_length > 0 then
      for name, value in pairs(msgunpack(sub(raw, at, at + rare_length - 1))) do
        job[name] = value
      end
      if job.pool_key ~= nil then
        rt.know_key(job.pool_key, job.pool_hash_hi, job.pool_hash_lo)
      end
    end
    return job
  end

  -- The metadata of a job, out of its tail.
  function records.metadata(job)
    local tail = job.tail
    local length = struct_unpack("<H", tail)
    if length == 0 then
      return NOTHING
    end
    return msgunpack(sub(tail, 3, 2 + length))
  end
end
