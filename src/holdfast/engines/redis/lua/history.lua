-- The history of a root: whether the server still has everything that the caller has seen.
--
-- `meta` has `born`, the name of the history, and `tip`, the number of calls that have written. Both come back with
-- every answer, and the caller sends the last ones that it has seen with its next call. A server that was emptied, or
-- restarted without its data, has another `born` or none. A server that has lost its last writes (a failover to a
-- replica that was behind, a loss of power) has a lower `tip`.
--
-- After a failover the calls of other processes may have raised the tip again before this caller comes back. So `meta`
-- also has `run`, the server process that was last seen, and `run_tip`, the tip when its first call came. A caller that
-- has seen a higher tip under an earlier run has seen writes that are gone.
--
-- The check comes before anything is written: a call that relies on a lost history is refused and changes nothing. If
-- the name is still the same, it is replaced, so that every other process is refused once, too.
local H = {}

-- True if the caller has seen no write that this server does not have.
function H.is_same(options, born, tip, run_tip)
  if options.born ~= born or options.tip > tip then
    return false
  end
  return options.seen_run == nil or options.tip <= run_tip
end

-- Returns the name and the tip of the history, and true if it is not the one that the caller has seen. If the jobs are
-- stored in another format than the caller's, that is the fourth value, and nothing was written.
-- `now_us` is a number: the name of a new history is made from it. `may_fill`: the call is refused at maxmemory.
function H.read(root, options, now_us, may_fill)
  local meta = root .. "meta"
  local stored = redis.call("HMGET", meta, "born", "tip", "run", "run_tip", "format")
  local born, tip = stored[1], tonumber(stored[2] or 0)
  if stored[5] and tonumber(stored[5]) ~= options.format then
    return born, tip, false, stored[5]
  end
  local same_run = options.run == stored[3] or options.run == ""
  if born and same_run and options.born == born and options.tip <= tip and not options.seen_run then
    return born, tip, false
  end
  local run, run_tip = stored[3], tonumber(stored[4] or 0)
  local changes = {}
  if not same_run then
    run, run_tip = options.run, tip
    changes = { "run", run, "run_tip", string.format("%.0f", run_tip) }
  end
  local lost = options.born ~= nil and not H.is_same(options, born, tip, run_tip)
  if not born or (lost and options.born == born) then
    born = string.sub(redis.sha1hex(string.format("%s %.0f %.0f", run or "", now_us, tip)), 1, 16)
    for _, word in ipairs({ "born", born, "format", options.format }) do
      table.insert(changes, word)
    end
  end
  if #changes > 0 then
    if not may_fill then
      redis.call("ZREM", root .. "leases", "") -- a first write that frees memory: the server refuses no later one
    end
    redis.call("HSET", meta, unpack(changes))
  end
  return born, tip, lost
end

-- Writes the tip again. WAIT waits for writes of its own connection only, so a call that answers what another one has
-- written must write something, too: else it would confirm a write that no replica has.
function H.write_again(root, tip, may_fill)
  if not may_fill then
    redis.call("ZREM", root .. "leases", "") -- see above
  end
  redis.call("HSET", root .. "meta", "tip", string.format("%.0f", tip))
end

-- Counts a call that writes. Returns the new tip.
function H.advance(root, tip)
  redis.call("HSET", root .. "meta", "tip", string.format("%.0f", tip + 1))
  return tip + 1
end
