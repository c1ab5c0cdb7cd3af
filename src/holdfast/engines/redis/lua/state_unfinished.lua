-- The state of a root, part 8: work that is too large for one call, done in pieces of a thousand jobs.
--
-- There are two kinds: `clear` of a queue or lane, and the release of the epoch hold after a pool's `resize`. The call
-- that begins such work does the first piece. If jobs are left, it stores a record of the unfinished work, and the
-- client sends `continue_work` until the record is gone. While the record of a clear exists, no job of its queue or
-- lane can be claimed. If the client dies, a claim or prune that reads a record which has not changed for ten seconds
-- does the next piece.
--
-- A record: kind, queue, lane, number (clear: its highest arrival; resize: the epoch whose hold ends), next (an
-- arrival: a clear continues below it, a resize above it), changed_us (when the last piece was done).

do
  local PIECE_JOBS = 1000 -- CL2
  local ABANDONED_AFTER_US = 10 * 1000000

  local works -- name → record
  S.begun = {} -- names of the work that this call has begun and left unfinished

  local function unfinished()
    if works == nil then
      works = {}
      for _, work in ipairs(S.small_records("unfinished")) do
        works[work.name] = work
      end
    end
    return works
  end

  local function put(work)
    unfinished()[work.name] = work
    S.swap_small("unfinished", work.name, work)
  end

  local function drop(work)
    unfinished()[work.name] = nil
    S.swap_small("unfinished", work.name, false)
  end

  local function begin(kind, queue, lane, number, next_arrival)
    local name = table.concat({ kind, queue, lane or "", string.format("%.0f", number) }, "\0")
    put({
      name = name,
      kind = kind,
      queue = queue,
      lane = lane,
      number = number,
      next = next_arrival,
      changed_us = S.now,
    })
    S.begun[#S.begun + 1] = name
  end

  -- The lanes of a queue that a clear is in progress for; true: the whole queue.
  function S.lanes_being_cleared(queue)
    local lanes = {}
    for _, work in pairs(unfinished()) do
      if work.kind == "clear" and work.queue == queue then
        if work.lane == nil then
          return true
        end
        lanes[work.lane] = true
      end
    end
    return lanes
  end

  function S.is_clearing(queue)
    return S.lanes_being_cleared(queue) == true
  end

  -- Pieces: jobs, and the arrival to continue from (nil: they are the last ones).

  local function live_piece(queue, lane, below)
    local jobs
    if lane == nil then
      jobs = S.live_below(queue, below, PIECE_JOBS)
    else
      jobs = S.live_in_lane(queue, lane, below, PIECE_JOBS)
    end
    local last = jobs[PIECE_JOBS]
    return jobs, last and last.arrival
  end

  local function epoch_piece(queue, epoch, above)
    local jobs, found = S.epoch_held(queue, above, PIECE_JOBS), {}
    for _, job in ipairs(jobs) do
      if job.epoch <= epoch then
        found[#found + 1] = job
      end
    end
    local last = jobs[PIECE_JOBS]
    return found, last and last.arrival
  end

  function S.to_clear(queue, lane)
    local jobs, below = live_piece(queue, lane, nil)
    if below then
      begin("clear", queue, lane, jobs[1].arrival, below)
    end
    return jobs
  end

  function S.held_by_epoch(queue)
    local pool = S.pool(queue)
    local epoch = pool and pool.epoch or 0
    local jobs, above = epoch_piece(queue, epoch, 0)
    if above then
      begin("resize", queue, nil, epoch, above)
    end
    return jobs
  end

  local function do_piece(step, work, keep_time)
    local jobs, following
    if work.kind == "clear" then
      jobs, following = live_piece(work.queue, work.lane, work.next)
      R.clear_some(step, jobs)
    else
      jobs, following = epoch_piece(work.queue, work.number, work.next)
      R.release_held(step, jobs)
    end
    step.close()
    if following then
      local left = {}
      for name, value in pairs(work) do
        left[name] = value
      end
      left.next = following
      if not keep_time then
        left.changed_us = step.now
      end
      put(left)
    else
      drop(work)
      step.topics["queue:" .. work.queue] = true -- jobs that arrived during the clear can be claimed from now on
    end
    return #jobs, following ~= nil
  end

  -- Do the next piece of this work: the number of jobs, and whether there is more.
  function S.continue_work(step, name)
    local work = unfinished()[name]
    if work == nil then
      return 0, false
    end
    return do_piece(step, work, false)
  end

  -- At the end of a claim or prune: one piece of every work that its client has left. The time of its last change
  -- stays, so that the next claim or prune continues, too.
  function S.continue_abandoned(step)
    local abandoned = {}
    for _, work in pairs(unfinished()) do
      if math.abs(step.now - work.changed_us) > ABANDONED_AFTER_US then
        abandoned[#abandoned + 1] = work
      end
    end
    for _, work in ipairs(abandoned) do
      do_piece(step, work, true)
    end
  end
end
