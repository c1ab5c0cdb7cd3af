-- One command being carried out: the class `Step` of src/holdfast/engines/ledger/step.py, by hand.
-- Rules read from the step and write through it. rules.lua fills `R`.

local R = {}
local T = {}

function T.new(wall, lease)
  local step = { now = wall, at = { wall = wall, lease = lease }, state = S, topics = {}, emptied = {} }
  local ended = {}

  -- The queue's record, written if it is new.
  function step.queue(name)
    local record = S.queue(name)
    if record == nil then
      record = {
        kind = "QueueRecord",
        queue = name,
        paused = false,
        totals = { succeeded = 0, failed = 0, cancelled = 0 },
        emptied_at = 0,
      }
      step.put(nil, record)
    end
    return record
  end

  -- The lane's record, written if it is new.
  function step.lane(queue, lane)
    local record = S.lane(queue, lane)
    if record == nil then
      step.queue(queue)
      record = {
        kind = "LaneRecord",
        queue = queue,
        lane = lane,
        depth = 0,
        paused = false,
        totals = { succeeded = 0, failed = 0, cancelled = 0 },
        fence = 0,
        emptied = step.now,
      }
      step.put(nil, record)
    end
    return record
  end

  -- Write a record that is no job; nil as `after` removes it.
  function step.put(before, after)
    if after == nil then
      S.swap(before, false)
    else
      S.swap(after, true)
    end
  end

  -- Write a job. The change of state must be in the table; anything else is a defect in a rule.
  function step.put_job(before, after)
    local old, new = before and before.state, after.state
    if old ~= new then
      if not R.TRANSITIONS[old or ""][new] then
        local renewed = before ~= nil and before.generation ~= after.generation
        local ended_before = old == "succeeded" or old == "failed" or old == "cancelled"
        if not (renewed and ended_before and R.TRANSITIONS[""][new]) then
          error("job " .. after.id .. " of queue " .. after.queue .. ": no transition to " .. new)
        end
      end
      if new == "queued" then
        step.topics["queue:" .. after.queue] = true -- N1
      end
    end
    S.swap_job(before, after)
  end

  -- Delete a record.
  function step.drop_job(job)
    S.swap_job(job, nil)
  end

  -- Count ends in the totals; written once per queue, when the step closes.
  function step.count_end(queue, target, count)
    local counts = ended[queue]
    if counts == nil then
      counts = {}
      ended[queue] = counts
    end
    counts[target] = (counts[target] or 0) + count
  end

  -- Write the totals.
  function step.close()
    for name, counts in next, ended do
      local record = step.queue(name)
      local totals = record.totals
      for target, count in next, counts do
        totals = R.Totals_plus(totals, target, count)
      end
      local after = rt.copy(record)
      after.totals = totals
      step.put(record, after)
    end
    ended = {}
  end

  return step
end

function T.close(step)
  step.close()
end
