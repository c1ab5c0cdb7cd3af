-- The fast path, part 2: settlements that are plain successes.

do
  local call, struct_pack, struct_unpack = redis.call, struct.pack, struct.unpack
  local byte, char, match, sub = string.byte, string.char, string.match, string.sub
  local ENDED, FOREVER, LAST = records.ENDED, records.FOREVER, records.LAST_INSTANT
  local RUNNING, SUCCEEDED, RESULT_SCOPE = F.RUNNING, F.SUCCEEDED, F.RESULT_SCOPE
  local RESULT_TTL_US, RETENTION_US = 3600000000, 86400000000 -- as model/lifetimes.py
  local NO_INSTANT = char(0, 0, 0, 0, 0, 0, 0)

  local function is_plain_success(settlement)
    return settlement.target == "succeeded" and settlement.note == "" and not settlement.refund
      and settlement.reason == nil and settlement.error == nil and settlement.progress == nil
      and settlement.listed_expiry == nil
  end

  -- An instant as records store it, and nil if it does not fit.
  local function stored_instant(start, duration_us)
    local instant = start + duration_us
    if instant < LAST then
      return instant
    elseif instant >= FOREVER then
      return LAST
    end
    return nil
  end

  -- K1, K2, K3: the end part without the length of the result, and when the record may be deleted. Nil: the rules must
  -- decide, because an instant does not fit, or the record is deleted at once (K6).
  local function lifetimes(now, result_ttl, retention)
    local visible = stored_instant(now, retention or RETENTION_US)
    local result = stored_instant(now, result_ttl or RESULT_TTL_US)
    if visible == nil or result == nil or (visible <= now and result <= now) then
      return nil
    end
    local kept_until = math.max(visible, result)
    return sub(struct_pack(ENDED, now, 0, visible, 0, result, 0, result, 0, 0), 1, 32),
      kept_until == LAST and FOREVER or kept_until
  end

  -- The record of a plain job after a success, its arrival, and its rare fields if it has them. Nil: the rules must
  -- decide. G2, G7, W4, W5: only the current token settles, and stays as the settled one.
  local function succeeded_record(raw, token, ended, result)
    if #raw < F.SHORTEST_LEASED then
      return nil
    end
    local flags, state, _, _, hold, scope, _, hash_length = byte(raw, 1, 8)
    if flags > 7 or state ~= RUNNING or scope ~= RESULT_SCOPE or hold ~= 0 or byte(raw, 32) ~= 0 then
      return nil
    end
    local arrival, task_length = struct_unpack("<I6H", raw, 9)
    local owner_length = byte(raw, 56)
    local token_length, settled_length = byte(raw, 63, 64)
    local strings = F.strings_of(flags)
    local token_start = strings + task_length + hash_length + owner_length
    if sub(raw, token_start, token_start + token_length - 1) ~= token then
      return nil
    end
    local rest, after_flags, rare = token_start + token_length + settled_length, 3, nil
    if #raw <= rest + (flags > 3 and struct_unpack("<I4", raw, strings - 4) or 0) then -- it is cut
      return nil
    end
    if flags > 3 then
      if not F.has_reply_alone(raw, rest) then
        return nil
      end
      after_flags, rare = 7, sub(raw, rest, rest + struct_unpack("<I4", raw, strings - 4) - 1)
      strings = strings - 4
    end
    return char(after_flags, SUCCEEDED) .. sub(raw, 3, 48) .. NO_INSTANT .. sub(raw, 56, 62) .. char(0, token_length)
      .. sub(raw, 65, 80) .. ended .. struct_pack("<I4", result and #result + 1 or 0)
      .. sub(raw, strings, token_start - 1) .. token .. (result or "") .. sub(raw, rest), arrival, rare
  end

  -- Whether one of these jobs has children, which its end releases (P4).
  local function has_children(root, names)
    if call("EXISTS", root .. "parents") == 0 then
      return false
    end
    for _, score in ipairs(call("ZMSCORE", root .. "parents", unpack(names))) do
      if score then
        return true
      end
    end
    return false
  end

  -- What the settlements change, by queue; nil if one of them is no plain success.
  -- G1, G2: a job without a record and one with another token are left to the rules; two for one job too.
  function F.plan_settlements(root, settlements, now)
    local queues, claims, names, topics = {}, {}, {}, {}
    local last_name, last
    for _, settlement in ipairs(settlements) do
      if not is_plain_success(settlement) then
        return nil
      end
      local name = settlement.queue
      if name ~= last_name then
        last_name, last = name, queues[name]
        if last == nil then
          if not F.is_key_part(name) then
            return nil
          end
          last = { ids = {}, settlements = {}, seen = {}, stored = {}, states = {}, ended = {}, leases = {} }
          queues[name] = last
        end
      end
      local id = settlement.id
      if last.seen[id] then
        return nil
      end
      last.seen[id] = true
      last.ids[#last.ids + 1] = id
      last.settlements[#last.settlements + 1] = settlement
    end
    local ended, kept_until, result_ttl, retention
    for name, queue in pairs(queues) do
      local prefix = name .. "\0"
      for place, raw in ipairs(F.read(root .. "jobs:" .. name, queue.ids)) do
        local settlement = queue.settlements[place]
        if ended == nil or settlement.result_ttl ~= result_ttl or settlement.retention ~= retention then
          result_ttl, retention = settlement.result_ttl, settlement.retention
          ended, kept_until = lifetimes(now, result_ttl, retention)
        end
        local after, arrival, rare
        if raw and ended then
          local result = settlement.result and ARGV[settlement.result]
          after, arrival, rare = succeeded_record(raw, settlement.token, ended, result)
        end
        if after == nil then
          return nil
        end
        if rare then -- N3
          for _, process in ipairs(cmsgpack.unpack(rare).reply) do
            topics["reply:" .. process] = true
          end
        end
        local id = settlement.id
        local member = prefix .. id
        local even = 2 * place
        queue.stored[even - 1], queue.stored[even] = id, after
        queue.states[even - 1], queue.states[even] = arrival, id
        queue.ended[even - 1], queue.ended[even] = kept_until, member
        queue.leases[place] = member
        names[#names + 1] = member
        local claim = match(settlement.token, "^(.*)%.") or ""
        claims[claim] = (claims[claim] or 0) + 1
      end
    end
    if #names > 0 and has_children(root, names) then
      return nil
    end
    return { queues = queues, claims = claims, topics = topics }
  end

  -- W4, N2: writes the ends.
  function F.apply_settlements(root, plan, counts)
    for claim, count in pairs(plan.claims) do
      if call("HINCRBY", root .. "claims", claim, -count) <= 0 then
        call("HDEL", root .. "claims", claim)
      end
    end
    for name, queue in pairs(plan.queues) do
      local count = #queue.ids
      F.write("ZREM", root .. "leases", queue.leases)
      F.write("HSET", root .. "jobs:" .. name, queue.stored)
      F.write("ZADD", root .. "state:" .. name .. ":succeeded", queue.states)
      F.write("ZADD", root .. "ended", queue.ended)
      counts[name] = { running = -count, succeeded = count, ["total:succeeded"] = count }
      plan.topics["room:" .. name] = true
    end
  end
end
