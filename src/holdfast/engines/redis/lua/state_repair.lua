-- The state of a root, part 9: jobs whose record is missing or damaged.
--
-- A rule that meets one stops (`S.stop_to_repair`). Nothing is written by then. The call repairs the job and runs the
-- rule again (main.lua), so one record costs one job and stops no other queue. What the indexes say of the job makes a
-- new record, which ends as `failed(undecodable)`: it is counted, it is among the dead letters, and its lane goes on.
-- The bytes of a damaged record are kept in the hash `damaged`. A record that had ended is only removed.

do
  local call, struct_pack = redis.call, struct.pack
  local TERMINAL = S.TERMINAL
  local MISSING_NOTE = "its stored record is missing"
  local DAMAGED_NOTE = "its stored record was damaged; the bytes are kept"

  -- A record with this state and arrival, and nothing else.
  local function bare_record(q, id, state, arrival)
    local base = struct_pack(
      records.BASE, 0, records.STATE_NUMBERS[state], 0, 0, 1, 1, 0, arrival, 0, S.now, 0, S.now, 0
    )
    local job = records.unpack(base .. "\0\0", q.name, id)
    job.payload_apart = call("EXISTS", S.payload_key(q, id)) == 1 or nil
    return job
  end

  local function score(set, q, id)
    return tonumber(call("ZMSCORE", S.root .. set, q.name .. "\0" .. id)[1] or nil)
  end

  -- The lane of a live job. Its hold says whether it waits behind the head.
  local function find_lane(q, job)
    for _, lane in ipairs(S.lanes(q.name)) do
      if lane.head == job.id then
        return lane.lane
      elseif job.state == "blocked" and call("ZMSCORE", S.lane_key(q, lane.lane), S.arrival_member(job))[1] then
        job.hold = S.HOLD_LANE
        return lane.lane
      end
    end
  end

  -- The job as the indexes know it, so that its change removes it from them. False: no index has it.
  local function from_indexes(q, id)
    local job = false
    for _, state in ipairs(records.STATES) do
      local arrival = call("ZMSCORE", S.state_key(q, state), id)[1]
      if arrival then
        job = bare_record(q, id, state, tonumber(arrival))
      end
    end
    local lease_expires = score("leases", q, id)
    if not job and lease_expires then
      local is_running = (S.counts(q.name).running or 0) > 0
      job = bare_record(q, id, is_running and "running" or "assigned", S.new_arrival())
    end
    if not job then
      return false
    end
    job.lease_expires, job.expires = lease_expires, score("expiring", q, id)
    job.visible_until = score("ended", q, id) or 0
    if not TERMINAL[job.state] then
      job.lane = find_lane(q, job)
      if call("ZMSCORE", q.epoch_key, id)[1] then
        job.hold = job.hold + S.HOLD_EPOCH
      end
      local pool = job.lane and S.pool(q.name)
      job.epoch = pool and pool.epoch or 0
    end
    return job
  end

  -- Take a job out of its indexes. Returns the running job that is to fail now; nil: there is none.
  local function replace_record(q, id)
    local raw = call("HGET", q.jobs_key, id)
    if raw and pcall(records.unpack, raw, q.name, id) then
      return nil -- only an index was wrong
    end
    local before, has_children = from_indexes(q, id), #S.children(q.name, id, 1) > 0
    if raw then
      S.add("HSET", S.root .. "damaged", q.name .. "\0" .. id, raw)
    end
    if before and TERMINAL[before.state] then
      local after = rt.copy(before)
      after.visible_until = 0
      S.swap_job(before, has_children and after or nil)
      return nil
    end
    local job = rt.copy(before or bare_record(q, id, "running", S.new_arrival()))
    job.lane = job.lane or find_lane(q, job)
    if not (before or raw or has_children or job.lane) then
      return nil
    end
    -- A running job may fail. The counters follow that step, too.
    job.state, job.hold, job.lease_expires, job.expires = "running", 0, nil, nil
    S.swap_job(before or nil, job)
    return { job = job, note = raw and DAMAGED_NOTE or MISSING_NOTE, waits = before and before.hold ~= 0 }
  end

  -- A lane that counts more jobs than wait in it: the others have failed.
  local function recount_lane(step, queue, name)
    local lane = step.lane(queue, name)
    local depth = call("ZCARD", S.lane_key(S.of(queue), name)) + (lane.head and 1 or 0)
    local after = rt.copy(lane)
    after.depth, after.totals = depth, R.Totals_plus(lane.totals, "failed", lane.depth - depth)
    step.put(lane, after)
    step.count_end(queue, "failed", lane.depth - depth)
  end

  -- Repair what has stopped the rules. Returns queue, id and note of each job that has failed.
  function S.repair(step, damages)
    S.is_repairing = true
    local first, last, repaired = {}, {}, {}
    for _, damage in ipairs(damages) do
      if damage.lane then
        recount_lane(step, damage.queue, damage.lane)
      end
      for _, id in ipairs(damage.ids) do
        local failed = replace_record(S.of(damage.queue), id)
        if failed then
          if failed.job.lane then
            recount_lane(step, damage.queue, failed.job.lane)
          end
          local list = failed.waits and first or last
          list[#list + 1] = failed
        end
      end
    end
    for _, failed in ipairs(rt.concat(first, last)) do -- heads last: none of the others becomes one
      local job = failed.job
      R.finish(step, job, "failed", "undecodable", nil, failed.note)
      R.recount(step, job.queue)
      repaired[#repaired + 1] = { job.queue, job.id, failed.note }
    end
    return repaired
  end
end
