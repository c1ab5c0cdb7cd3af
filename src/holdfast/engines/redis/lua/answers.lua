-- Runs a rule: completes the command, keeps the changes together, and makes the answer ready to be sent.
--
-- An answer is sent as msgpack, except jobs and byte strings: these follow it one by one, and the answer has their
-- numbers. `calls.py` reads it.
local A = {}

do
  -- Lists of a NewJob, and other defaults that the client does not send.
  local function complete_job(job)
    job.tail = ARGV[job.tail]
    if job.payload then -- it gets a key of its own
      job.tail = { job.tail, ARGV[job.payload] }
    end
    job.payload_hash = job.payload_hash and ARGV[job.payload_hash] or ""
    job.key_window = job.key_window or 0
    job.parents = job.parents or {}
    job.given = job.given or {}
    if job.pool_hash_hi then
      rt.know_key(job.pool.key, job.pool_hash_hi, job.pool_hash_lo)
    end
  end

  local complete = {}

  function complete.enqueue(command)
    for _, group in ipairs(command.groups) do
      for _, job in ipairs(group.jobs) do
        complete_job(job)
      end
      S.prefetch_all(group.jobs)
    end
  end

  function complete.exchange(command)
    for _, settlement in ipairs(command.settlements) do
      settlement.result = settlement.result and ARGV[settlement.result]
    end
    S.prefetch_all(command.settlements)
    S.prefetch_all(command.starts)
  end

  function complete.renew(command)
    S.prefetch_all(command.jobs)
  end

  complete.get = complete.renew

  function complete.heartbeat(command)
    command.worker.kind = "WorkerRecord"
  end

  complete.subscribed_heartbeat = complete.heartbeat

  -- Answers

  local blobs

  local function number_of(bytes)
    blobs[#blobs + 1] = bytes
    return #blobs - 1 -- the client counts from 0
  end

  local function numbers_of_jobs(jobs)
    local numbers = {}
    for place, job in ipairs(jobs) do
      numbers[place] = job and number_of(S.blob(job)) or 0
    end
    return numbers
  end

  local convert = {}
  local TAGS = { GroupAccepted = "accepted", GroupFull = "full", GroupConflict = "conflict", GroupOrphan = "orphan" }

  function convert.enqueue(answer)
    for _, group in ipairs(answer.groups) do
      group.type = TAGS[group.kind]
      for _, job in ipairs(group.jobs or {}) do
        job.result = job.result and number_of(job.result)
      end
    end
    return answer
  end

  function convert.exchange(answer)
    return {
      settled = answer.settled,
      started = answer.started,
      emptied = answer.emptied,
      leases = numbers_of_jobs(answer.leases),
      next_due = answer.next_due,
    }
  end

  function convert.get(answer)
    return { jobs = numbers_of_jobs(answer.jobs) }
  end

  function convert.find(answer)
    return { jobs = numbers_of_jobs(answer.jobs), cursor = answer.cursor }
  end

  -- An empty table would be sent as a list.
  local function map_or_nil(values)
    if next(values) ~= nil then
      return values
    end
  end

  function convert.stats(answer)
    for _, queue in ipairs(answer.queues) do
      queue.counts = map_or_nil(queue.counts)
    end
    return answer
  end

  local function continue_work(step, command)
    local count, more = S.continue_work(step, command.name)
    return { count = count, more = more }
  end

  -- Repairs the jobs that have stopped the rules.
  function A.repair(damages, call)
    S.begin(call.root, "repair", call.at.wall)
    local step = T.new(call.at.wall, call.at.lease)
    local repaired = S.repair(step, damages)
    T.close(step)
    if S.flush() then
      call.tip = H.advance(call.root, call.tip)
    end
    for _, damage in ipairs(damages) do
      if damage.key then
        F.write("ZREM", damage.key, damage.members)
      end
    end
    call.publish(step.topics)
    call.begun, call.repaired = call.begun or {}, rt.concat(call.repaired or {}, repaired)
  end

  -- Runs the rule of a verb. Nothing is written before the rule has ended. Returns the answer, the byte strings that
  -- belong to it, and the topics.
  function A.run(verb, command, call)
    S.begin(call.root, verb, call.at.wall)
    S.worker_crc, S.claim_rank, S.limit = command.worker_crc, call.options.first_rank or 0, command.limit
    if complete[verb] then
      complete[verb](command)
    end
    local step = T.new(call.at.wall, call.at.lease)
    local rule = verb == "continue_work" and continue_work or P[verb] or R[verb]
    local answer = rule(step, command)
    if verb == "prune" or (verb == "exchange" and command.claim) then
      S.continue_abandoned(step)
    end
    T.close(step)
    if S.flush() then
      call.tip = H.advance(call.root, call.tip)
    end
    P.flush()
    blobs = { false }
    answer.at = nil
    if convert[verb] then
      answer = convert[verb](answer)
    end
    call.begun = S.begun[1] and S.begun or call.begun
    return answer, blobs, step.topics
  end
end
