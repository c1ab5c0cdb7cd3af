-- The history of a root: whether the server still has everything that the caller has seen.
--
-- `meta` has `born`, the name of the history, and `tip`, the number of calls that have written. Both come back with
-- every answer, and the caller sends the last ones that it has seen with its next call. A server that was emptied, or
-- restarted without its data, has another `born` or none. A server that has lost its last writes (a failover to a
-- replica that was behind, a loss of power) has a lower `tip`.
--
-- After a failover the calls of other processes may have raised the tip again before this caller comes back. So `meta`
-- also has `run`, the server process that was last seen, and `run_tip`, the tip when its first call came; `runs` has both
-- for the last runs. A caller that has seen a higher tip under an earlier run has seen writes that are gone.
--
-- The check comes before anything is written: a call that relies on a lost history is refused and changes nothing. If
-- the name is still the same, it is replaced, so that every other process is refused once, too.
local H = { MOST_RUNS = 16 }

-- The last runs, oldest first: name, tip when it began, name, tip, and so on. All of them are strings.
function H.runs(meta)
  local words = {}
  for word in string.gmatch(redis.call("HGET", meta, "runs") or "", "%S+") do
    table.insert(words, word)
  end
  return words
end

-- The list with one more run, without its oldest one if it is full.
function H.append(runs, run, begin)
  local first = math.max(1, #runs - 2 * H.MOST_RUNS + 3)
  local words = {}
  for place = first, #runs do
    table.insert(words, runs[place])
  end
  table.insert(words, run)
  table.insert(words, begin)
  return words
end

-- True if a caller that has seen this tip under this run has seen no write that was lost when a later run began. A run
-- that is not in the list is taken for the last but one.
function H.has_all(runs, run, begin, tip)
  local place = #runs - 1
  while place > 0 and not (runs[place] == run and runs[place + 1] == begin) do
    place = place - 2
  end
  if place <= 0 then
    place = math.max(-1, #runs - 3)
  end
  for later = place + 2, #runs - 1, 2 do
    if tip > tonumber(runs[later + 1]) then
      return false
    end
  end
  return true
end

-- True if the caller has seen no write that this server does not have.
function H.is_same(options, born, tip, runs)
  if options.born ~= born or options.tip > tip then
    return false
  end
  local seen = options.seen or { options.run, options.begin, options.tip }
  for place = 1, #seen, 3 do
    if not H.has_all(runs, seen[place], seen[place + 1], seen[place + 2]) then
      return false
    end
  end
  return true
end

-- Returns the name of the history, its tip, the tip with which this run began (text), and true if the history is not
-- the one that the caller has seen. If the jobs are stored in another format than the caller's, that is the fifth value,
-- and nothing was written.
-- `now_us` is a number: the name of a new history is made from it. `may_fill`: the call is refused at maxmemory.
function H.read(root, options, now_us, may_fill)
  local meta = root .. "meta"
  local stored = redis.call("HMGET", meta, "born", "tip", "run", "run_tip", "format")
  local born, tip, begin = stored[1], tonumber(stored[2] or 0), stored[4] or ""
  if stored[5] and tonumber(stored[5]) ~= options.format then
    return born, tip, begin, false, stored[5]
  end
  local same_run = options.run == stored[3] or options.run == ""
  if same_run and options.born == born and options.begin == begin and options.tip <= tip then
    return born, tip, begin, false
  end
  local run, runs = stored[3], H.runs(meta)
  local changes = {}
  if not same_run then
    run, begin = options.run, string.format("%.0f", tip)
    runs = H.append(runs, run, begin)
    changes = { "run", run, "run_tip", begin, "runs", table.concat(runs, " ") }
  end
  local lost = options.born ~= nil and not H.is_same(options, born, tip, runs)
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
  return born, tip, begin, lost
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
