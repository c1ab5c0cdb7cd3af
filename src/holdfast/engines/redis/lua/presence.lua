-- Which workers have ended: those whose channel has no subscriber any more (WK3).
--
-- The set `sessions` has the workers that were subscribed when they sent their last heartbeat. A worker that could not
-- subscribe is not in it, so its silence says nothing.

local P = {}

do
  local CHANNELS_PER_CALL = 1000

  local pending = {}

  -- The heartbeat of a worker that says whether it is subscribed to its channel.
  function P.subscribed_heartbeat(step, command)
    local answer = R.heartbeat(step, command)
    redis.call("SCARD", S.root .. "sessions") -- fails if it is no set, before anything is written
    pending[1] = { command.session and "SADD" or "SREM", command.worker.worker }
    return answer
  end

  -- The numbers of subscribers of these channels.
  local function count_subscribers(channels, sharded)
    local counts = {}
    for first = 1, #channels, CHANNELS_PER_CALL do
      local last = math.min(first + CHANNELS_PER_CALL - 1, #channels)
      local reply = redis.call("PUBSUB", sharded and "SHARDNUMSUB" or "NUMSUB", unpack(channels, first, last))
      for index = 1, #reply, 2 do
        counts[reply[index]] = tonumber(reply[index + 1])
      end
    end
    return counts
  end

  -- WK3: disown and forget the workers in `command.ended` that have sent no heartbeat since and are still silent, if
  -- the caller is subscribed at this server, and the server is the one that the caller has watched and has run for long
  -- enough. Test and effect are one step. Answers all workers that are silent now, each with the time of its last
  -- heartbeat.
  function P.disown_unsubscribed(step, command)
    local info = redis.pcall("INFO", "server")
    info = type(info) == "string" and info or "" -- else the user may not read it
    local run_id = string.match(info, "run_id:(%x+)") or ""
    local uptime_s = tonumber(string.match(info, "uptime_in_seconds:(%d+)")) or 0
    local names = redis.call("SMEMBERS", S.root .. "sessions")
    local channels = { command.own_channel }
    for index, name in ipairs(names) do
      channels[index + 1] = command.prefix .. name
    end
    local counts = count_subscribers(channels, command.sharded)
    local may_disown = counts[command.own_channel] > 0
      and uptime_s > command.min_uptime_s
      and run_id ~= ""
      and run_id == command.run_id
    local seen_at = {}
    for _, ended in ipairs(command.ended) do
      seen_at[ended.worker] = ended.seen
    end
    local leases, silent, sessions = {}, {}, #names
    for _, name in ipairs(names) do
      local record = counts[command.prefix .. name] == 0 and S.worker(name)
      if record == nil then -- its record was removed
        pending[#pending + 1] = { "SREM", name }
        sessions = sessions - 1
      elseif record and may_disown and seen_at[name] == record.seen then
        leases[#leases + 1] = { name, #R.disown(step, { workers = { name } }).leases }
        R.forget_worker(step, { worker = name })
        pending[#pending + 1] = { "SREM", name }
      elseif record then
        silent[#silent + 1] = { name, record.seen }
      end
    end
    return {
      leases = leases,
      silent = silent,
      run_id = run_id,
      is_subscribed = counts[command.own_channel] > 0,
      sessions = sessions,
    }
  end

  -- Write what these verbs have changed. Called after the rules' own changes are written.
  function P.flush()
    for _, write in ipairs(pending) do
      redis.call(write[1], S.root .. "sessions", write[2])
    end
  end
end
