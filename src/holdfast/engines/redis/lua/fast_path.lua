-- The fast path: enqueue and exchange of plain jobs, without the rules.
--
-- It carries out a call whole, or declines it before anything is written: then the rules carry it out, in the same call.
-- It is an optimisation. The rules alone do the same and store the same bytes. Each function names the rules
-- (docs/contract.md, section 4) that it states a second time. `tests/engines/test_redis_fast_path.py` sends the same
-- calls through both and compares every key.
--
-- A stored job is plain if it has no rare fields, no lane, no hold and no payload with a key of its own, and no cancel
-- was requested. Keys are described in state_sets.lua, records in layout.lua.
local F = {}

do
  local call, struct_pack, struct_unpack = redis.call, struct.pack, struct.unpack
  local byte, char, match, sub = string.byte, string.char, string.match, string.sub
  local BASE, LEASE, ENDED = records.BASE, records.LEASE, records.ENDED
  local FOREVER, LAST = records.FOREVER, records.LAST_INSTANT
  local CODECS = { json = 1, msgpack = 2 } -- as records.CODECS
  local QUEUED, ASSIGNED, RUNNING, SUCCEEDED = 3, 4, 5, 7 -- as records.STATES
  local RESULT_SCOPE = 2 -- as records.SCOPES
  local RESULT_TTL_US, RETENTION_US = 3600000000, 86400000000 -- as model/lifetimes.py
  local MOST_ATTEMPTS, LONGEST_LEASE_US, LONGEST_NAME = 65535, 281474976710655, 255
  local NO_INSTANT = char(0, 0, 0, 0, 0, 0, 0)
  local ENTRIES_PER_CALL = 1000

  -- The values in as many calls as a variadic command needs.
  local function write(command, key, values)
    local count = #values
    if count <= ENTRIES_PER_CALL then
      if count > 0 then
        call(command, key, unpack(values))
      end
      return
    end
    for first = 1, count, ENTRIES_PER_CALL do
      call(command, key, unpack(values, first, math.min(first + ENTRIES_PER_CALL - 1, count)))
    end
  end

  local function read(key, fields)
    if #fields <= ENTRIES_PER_CALL then
      return call("HMGET", key, unpack(fields))
    end
    local found = {}
    for first = 1, #fields, ENTRIES_PER_CALL do
      for _, value in ipairs(call("HMGET", key, unpack(fields, first, math.min(first + ENTRIES_PER_CALL - 1, #fields)))) do
        found[#found + 1] = value
      end
    end
    return found
  end

  -- False: the name is encoded in keys, which the fast path leaves to the rules.
  local function is_key_part(name)
    return not string.find(name, "[%c%%{}:]")
  end

  -- False: a clear, a resize or the end of a parent has work left that every call carries on.
  local function nothing_waits(root)
    return call("EXISTS", root .. "unfinished") == 0 and call("EXISTS", root .. "ended_parents") == 0
  end

  -- Enqueue

  local function is_plain_new(job, now)
    return job.lane == nil and job.pool == nil and job.unique_key == nil and job.key_scope == nil
      and job.key_window == nil and job.parents == nil and job.reply == nil and job.given == nil
      and job.expires == nil and job.payload == nil and job.delay == 0 and (job.due == nil or job.due <= now)
      and CODECS[job.codec] ~= nil
  end

  -- The new jobs by queue, or nil if one of them is not plain.
  -- E3: two of one id are left to the rules.
  local function by_queue(groups, now)
    local queues = {}
    local last_name, last
    for _, group in ipairs(groups) do
      if #group.limits > 0 then
        return nil
      end
      for _, job in ipairs(group.jobs) do
        if not is_plain_new(job, now) then
          return nil
        end
        local name, id = job.queue, job.id
        if name ~= last_name then
          last_name, last = name, queues[name]
          if last == nil then
            if not is_key_part(name) then
              return nil
            end
            last = { ids = {}, jobs = {}, seen = {} }
            queues[name] = last
          end
        end
        if last.seen[id] then
          return nil
        end
        last.seen[id] = true
        last.ids[#last.ids + 1] = id
        last.jobs[#last.jobs + 1] = job
      end
    end
    return queues
  end

  -- S1, D1: no stored job has one of the ids. The first job of a queue is left to the rules.
  local function all_new(root, queues)
    for name, queue in pairs(queues) do
      if call("HEXISTS", root .. "queue:" .. name, "paused") == 0 then
        return false
      end
      for _, raw in ipairs(read(root .. "jobs:" .. name, queue.ids)) do
        if raw then
          return false
        end
      end
    end
    return true
  end

  -- E1, E4, D11, N1: writes new jobs; all are due now.
  local function insert(root, name, queue, now)
    local stored, states, ready = {}, {}, {}
    for place, job in ipairs(queue.jobs) do
      local task, hash, id, arrival = job.task, job.payload_hash and ARGV[job.payload_hash] or "", job.id, job.arrival
      stored[2 * place - 1] = id
      stored[2 * place] = struct_pack(
        BASE, 0, QUEUED, job.priority, 0, RESULT_SCOPE, CODECS[job.codec], #hash, arrival, #task, now, 0, now, 0
      ) .. task .. hash .. ARGV[job.tail]
      states[2 * place - 1] = arrival
      states[2 * place] = id
      local members = ready[task]
      if members == nil then
        members = {}
        ready[task] = members
      end
      members[#members + 1] = 0 - job.priority -- not -0
      members[#members + 1] = struct_pack(">I7I6", now, arrival) .. id
    end
    write("HSET", root .. "jobs:" .. name, stored)
    write("ZADD", root .. "state:" .. name .. ":queued", states)
    for task, members in pairs(ready) do
      write("ZADD", root .. "ready:" .. name .. ":" .. task, members)
      call("SADD", root .. "tasks:" .. name, task)
    end
    call("HINCRBY", root .. "queue:" .. name, "queued", #queue.jobs)
  end

  -- E1: the answer is in the order of the command.
  function F.enqueue(command, this)
    local root, now = this.root, this.at.wall
    local queues = by_queue(command.groups, now)
    if queues == nil or not nothing_waits(root) or not all_new(root, queues) then
      return nil
    end
    local count = 0
    for _, group in ipairs(command.groups) do
      count = count + #group.jobs
    end
    local arrival = call("HINCRBY", root .. "meta", "arrival", count) - count
    local groups = {}
    for place, group in ipairs(command.groups) do
      local accepted = {}
      for number, job in ipairs(group.jobs) do
        arrival = arrival + 1
        job.arrival = arrival
        accepted[number] = { status = "created", id = job.id, state = "queued", arrival = arrival, generation = 0 }
      end
      groups[place] = { type = "accepted", jobs = accepted }
    end
    local topics = {}
    for name, queue in pairs(queues) do
      insert(root, name, queue, now)
      topics["queue:" .. name] = true
    end
    this.tip = H.advance(root, this.tip)
    this.publish(topics)
    return this.reply({ groups = groups }, { false })
  end

  -- Settle

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

  -- The record of a plain job after a success, and its arrival. Nil: the rules must decide.
  -- G2, G7, W4, W5: only the current token settles, and stays as the settled one.
  local function succeeded_record(raw, token, ended, result)
    local flags, state, _, _, hold, scope, _, hash_length = byte(raw, 1, 8)
    if (flags ~= 1 and flags ~= 3) or state ~= RUNNING or scope ~= RESULT_SCOPE or hold ~= 0 or byte(raw, 32) ~= 0 then
      return nil
    end
    local arrival, task_length = struct_unpack("<I6H", raw, 9)
    local owner_length = byte(raw, 56)
    local token_length, settled_length = byte(raw, 63, 64)
    local strings = flags == 3 and 117 or 81
    local token_start = strings + task_length + hash_length + owner_length
    if sub(raw, token_start, token_start + token_length - 1) ~= token then
      return nil
    end
    return char(3, SUCCEEDED) .. sub(raw, 3, 48) .. NO_INSTANT .. sub(raw, 56, 62) .. char(0, token_length)
      .. sub(raw, 65, 80) .. ended .. struct_pack("<I4", result and #result + 1 or 0)
      .. sub(raw, strings, token_start - 1) .. token .. (result or "")
      .. sub(raw, token_start + token_length + settled_length), arrival
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
  local function plan_settlements(root, settlements, now)
    local queues, claims, names = {}, {}, {}
    local last_name, last
    for _, settlement in ipairs(settlements) do
      if not is_plain_success(settlement) then
        return nil
      end
      local name = settlement.queue
      if name ~= last_name then
        last_name, last = name, queues[name]
        if last == nil then
          if not is_key_part(name) then
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
      for place, raw in ipairs(read(root .. "jobs:" .. name, queue.ids)) do
        local settlement = queue.settlements[place]
        if ended == nil or settlement.result_ttl ~= result_ttl or settlement.retention ~= retention then
          result_ttl, retention = settlement.result_ttl, settlement.retention
          ended, kept_until = lifetimes(now, result_ttl, retention)
        end
        local after, arrival
        if raw and ended then
          local result = settlement.result and ARGV[settlement.result]
          after, arrival = succeeded_record(raw, settlement.token, ended, result)
        end
        if after == nil then
          return nil
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
    return { queues = queues, claims = claims }
  end

  -- W4, N2: writes the ends.
  local function apply_settlements(root, plan, counts, topics)
    for claim, count in pairs(plan.claims) do
      if call("HINCRBY", root .. "claims", claim, -count) <= 0 then
        call("HDEL", root .. "claims", claim)
      end
    end
    for name, queue in pairs(plan.queues) do
      local count = #queue.ids
      write("ZREM", root .. "leases", queue.leases)
      write("HSET", root .. "jobs:" .. name, queue.stored)
      write("ZADD", root .. "state:" .. name .. ":succeeded", queue.states)
      write("ZADD", root .. "ended", queue.ended)
      counts[name] = { running = -count, succeeded = count, ["total:succeeded"] = count }
      topics["room:" .. name] = true
    end
  end

  -- Claim

  -- The record of a plain job with a lease. Nil: the rules must decide.
  -- T1, T3, A1, C2: a new token, a higher fence, one more attempt. `terms.lease` is the lease part of a first lease.
  local function leased_record(raw, token, terms, at, runs, owner)
    local flags, state, _, _, hold, _, _, hash_length = byte(raw, 1, 8)
    if (flags ~= 0 and flags ~= 1 and flags ~= 3) or state ~= QUEUED or hold ~= 0 or byte(raw, 32) ~= 0 then
      return nil
    end
    local strings_length = struct_unpack("<H", raw, 15) + hash_length
    local now = at.wall
    if flags == 0 then
      local start = runs and now or 0
      local leases = runs and terms.leases or terms.assigned_leases
      local lease = leases[#token]
      if lease == nil then
        lease = struct_pack(
          LEASE, 1, 0, terms.max_losses, terms.max_attempts, now, 0, terms.lease_expires, #owner, terms.lease_len,
          #token, 0, start, 0, start, 0
        )
        leases[#token] = lease
      end
      return char(1, runs and RUNNING or ASSIGNED) .. sub(raw, 3, 32) .. lease .. sub(raw, 33, 32 + strings_length)
        .. owner .. token .. sub(raw, 33 + strings_length)
    end
    local attempt, losses, _, _, fence, _, _, owner_length, _, token_length, settled_length, started, _, last_started =
      struct_unpack(LEASE, raw, 33)
    if attempt >= MOST_ATTEMPTS or fence >= LAST - 1 or token_length ~= 0 then
      return nil
    end
    if runs then
      started, last_started = started == 0 and now or started, now
    end
    local strings = flags == 3 and 117 or 81
    local settled_start = strings + strings_length + owner_length
    return char(flags, runs and RUNNING or ASSIGNED) .. sub(raw, 3, 32)
      .. struct_pack(
        LEASE, attempt + 1, losses, terms.max_losses, terms.max_attempts, now > fence and now or fence + 1, 0,
        terms.lease_expires, #owner, terms.lease_len, #token, settled_length, started, 0, last_started, 0
      )
      .. sub(raw, 81, strings - 1) .. sub(raw, strings, strings + strings_length - 1) .. owner .. token
      .. sub(raw, settled_start)
  end

  -- Members of a ready set from a place on, as many as the claim is likely to take.
  local function next_page(task)
    local last = task.read + task.page - 1
    task.members = call("ZRANGE", task.key, task.read, last, "WITHSCORES")
    task.read, task.place, task.has_more = last + 1, 1, #task.members == 2 * task.page
  end

  -- The first ready job of a task that the claim has not taken: priority, due and arrival.
  local function look_at_head(task)
    if task.place > #task.members and task.has_more then
      next_page(task)
    end
    local member = task.members[task.place]
    task.head = member
    if member then
      task.score = tonumber(task.members[task.place + 1])
      task.due, task.arrival = struct_unpack(">I7I6", member)
    end
  end

  local function comes_before(one, other)
    if one.score ~= other.score then
      return one.score < other.score
    elseif one.due ~= other.due then
      return one.due < other.due
    end
    return one.arrival < other.arrival
  end

  -- S2, R1: the next jobs of several tasks in claim order: their ids and the tasks they belong to.
  local function merge_tasks(tasks, left)
    local ids, of = {}, {}
    for _, task in ipairs(tasks) do
      look_at_head(task)
    end
    while left > 0 do
      local first
      for _, task in ipairs(tasks) do
        if task.head and task.share > 0 and (first == nil or comes_before(task, first)) then
          first = task
        end
      end
      if first == nil then
        break
      end
      ids[#ids + 1], of[#of + 1] = sub(first.head, 14), first
      first.taken, first.share, first.place, left = first.taken + 1, first.share - 1, first.place + 2, left - 1
      look_at_head(first)
    end
    return ids, of
  end

  -- S2: the same if there is one task.
  local function take_one_task(task, left)
    local ids, of = {}, {}
    for place, member in ipairs(call("ZRANGE", task.key, 0, math.min(task.share, left) - 1)) do
      ids[place], of[place] = sub(member, 14), task
    end
    task.taken = #ids
    return ids, of
  end

  -- The tasks of one queue in a claim; nil if one of them is left to the rules.
  local function tasks_of(root, wanted, left, at)
    local tasks = {}
    for place, terms in ipairs(wanted.tasks) do
      local task = terms.task
      if
        not is_key_part(task) or terms.lease_len > LONGEST_LEASE_US or terms.max_losses > LONGEST_NAME
        or terms.max_attempts > 4294967295
      then
        return nil
      end
      tasks[place] = {
        key = root .. "ready:" .. wanted.queue .. ":" .. task,
        share = terms.limit or left,
        page = math.floor(left / #wanted.tasks) + 1,
        read = 0,
        members = {},
        place = 1,
        has_more = true,
        taken = 0,
        leases = {},
        assigned_leases = {},
        lease_len = terms.lease_len,
        lease_expires = at.lease + terms.lease_len,
        max_losses = terms.max_losses,
        max_attempts = terms.max_attempts,
      }
    end
    return tasks
  end

  -- The jobs that a claim takes from one queue; nil: the rules must decide. `leases` are those of the queues before.
  local function plan_queue(root, claim, wanted, leases, first_rank, at)
    local left = claim.limit + claim.prefetch - first_rank - #leases
    if wanted.limit and wanted.limit < left then
      left = wanted.limit
    end
    local tasks = tasks_of(root, wanted, left, at)
    if tasks == nil then
      return nil
    end
    local ids, of = {}, {}
    if left > 0 and #tasks == 1 then
      ids, of = take_one_task(tasks[1], left)
    elseif left > 0 then
      ids, of = merge_tasks(tasks, left)
    end
    local plan = { name = wanted.queue, tasks = tasks, ids = ids, stored = {}, members = {}, running = 0 }
    if #ids == 0 then
      return plan
    end
    local prefix, owner = wanted.queue .. "\0", claim.worker
    for place, raw in ipairs(read(root .. "jobs:" .. wanted.queue, ids)) do
      local rank = first_rank + #leases
      local runs = rank < claim.limit
      local terms, id, token = of[place], ids[place], claim.claim_id .. "." .. rank
      local after = raw and leased_record(raw, token, terms, at, runs, owner)
      if not after then
        return nil
      end
      local even = 2 * place
      plan.stored[even - 1], plan.stored[even] = id, after
      plan.members[even - 1], plan.members[even] = terms.lease_expires, prefix .. id
      plan.running = plan.running + (runs and 1 or 0)
      leases[#leases + 1] = after .. wanted.queue .. id .. struct_pack("<HH", #wanted.queue, #id)
    end
    return plan
  end

  -- What a claim takes; nil: the rules must decide.
  -- S3, C1, C4, C5, U1, T2: queues in the order given; a paused one gives nothing; due jobs and a claim that was sent
  -- before are left to the rules.
  local function plan_claim(root, claim, first_rank, at)
    if
      #claim.claim_id > LONGEST_NAME - 12 or #claim.worker > LONGEST_NAME or #claim.worker == 0
      or call("HEXISTS", root .. "claims", claim.claim_id) == 1
    then
      return nil
    end
    local plans, leases, seen, next_due = {}, {}, {}, nil
    for _, wanted in ipairs(claim.queues) do
      local name = wanted.queue
      if seen[name] or not is_key_part(name) then
        return nil
      end
      seen[name] = true
      if call("HGET", root .. "queue:" .. name, "paused") == "0" then
        local first_due = call("ZRANGE", root .. "due:" .. name, 0, 0, "WITHSCORES")[2]
        if first_due then
          first_due = tonumber(first_due)
          if first_due <= at.wall then
            return nil
          end
          next_due = math.min(next_due or first_due, first_due)
        end
        local plan = plan_queue(root, claim, wanted, leases, first_rank, at)
        if plan == nil then
          return nil
        end
        plans[#plans + 1] = plan
      end
    end
    return { plans = plans, leases = leases, next_due = next_due, claim_id = claim.claim_id }
  end

  local function apply_claim(root, claim, counts)
    if #claim.leases > 0 then
      call("HSET", root .. "claims", claim.claim_id, #claim.leases)
    end
    for _, plan in ipairs(claim.plans) do
      local name, count = plan.name, #plan.ids
      if count > 0 then
        for _, task in ipairs(plan.tasks) do
          if task.taken > 0 then
            call("ZREMRANGEBYRANK", task.key, 0, task.taken - 1)
          end
        end
        write("ZREM", root .. "state:" .. name .. ":queued", plan.ids)
        write("HSET", root .. "jobs:" .. name, plan.stored)
        write("ZADD", root .. "leases", plan.members)
        local changes = counts[name] or {}
        counts[name] = changes
        changes.queued = -count
        changes.running = (changes.running or 0) + plan.running
        changes.assigned = count - plan.running
      end
    end
  end

  local function apply_counts(root, counts)
    for name, changes in pairs(counts) do
      for field, change in pairs(changes) do
        if change ~= 0 then
          call("HINCRBY", root .. "queue:" .. name, field, change)
        end
      end
    end
  end

  -- W2: settlements, then the claim. Starts are left to the rules.
  function F.exchange(command, this)
    local root, settlements, claim = this.root, command.settlements, command.claim
    if #command.starts > 0 or not nothing_waits(root) then
      return nil
    end
    local settled = plan_settlements(root, settlements, this.at.wall)
    if settled == nil then
      return nil
    end
    local claimed
    if claim then
      claimed = plan_claim(root, claim, this.options.first_rank or 0, this.at)
      if claimed == nil then
        return nil
      end
    end
    local leases = claimed and claimed.leases or {}
    local topics, statuses, numbers, blobs = {}, {}, {}, { false }
    if #settlements > 0 or #leases > 0 then
      call("ZREM", root .. "nothing", "") -- removes nothing; after it a server without memory refuses no write
      local counts = {}
      apply_settlements(root, settled, counts, topics)
      if claimed then
        apply_claim(root, claimed, counts)
      end
      apply_counts(root, counts)
      this.tip = H.advance(root, this.tip)
      this.publish(topics)
    end
    for place = 1, #settlements do
      statuses[place] = "applied"
    end
    for place = 1, #leases do
      numbers[place], blobs[place + 1] = place, leases[place]
    end
    return this.reply({
      settled = statuses, started = {}, emptied = {}, leases = numbers, next_due = claimed and claimed.next_due,
    }, blobs)
  end
end
