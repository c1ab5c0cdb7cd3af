-- The fast path, part 3: claims of plain jobs, and the exchange.

do
  local call, struct_pack, struct_unpack = redis.call, struct.pack, struct.unpack
  local byte, char, sub = string.byte, string.char, string.sub
  local LEASE, LAST = records.LEASE, records.LAST_INSTANT
  local QUEUED, ASSIGNED, RUNNING = F.QUEUED, F.ASSIGNED, F.RUNNING
  local MOST_ATTEMPTS, MOST_LOSSES, LONGEST_LEASE_US, LONGEST_TEXT = 65535, 255, 281474976710655, 255

  -- The record of a plain job with a lease. Nil: the rules must decide.
  -- T1, T3, A1, C2: a new token, a higher fence, one more attempt. `terms.lease` is the lease part of a first lease.
  local function leased_record(raw, token, terms, at, runs, owner)
    if #raw < F.SHORTEST then
      return nil
    end
    local flags, state, _, _, hold, _, _, hash_length = byte(raw, 1, 8)
    if flags > 7 or state ~= QUEUED or hold ~= 0 or byte(raw, 32) ~= 0 then
      return nil
    end
    local strings = F.strings_of(flags)
    local owner_start = strings + struct_unpack("<H", raw, 15) + hash_length
    local now = at.wall
    if flags == 0 or flags == 4 then
      local tail, size = owner_start, #raw
      if flags == 4 then
        if not F.has_reply_alone(raw, owner_start) then
          return nil
        end
        tail = tail + struct_unpack("<I4", raw, strings - 4)
      end
      if size <= tail or size <= tail + struct_unpack("<H", raw, tail) then -- it is cut
        return nil
      end
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
      return char(flags + 1, runs and RUNNING or ASSIGNED) .. sub(raw, 3, 32) .. lease .. sub(raw, 33, owner_start - 1)
        .. owner .. token .. sub(raw, owner_start)
    end
    if not F.is_whole(raw) then
      return nil
    end
    local attempt, losses, _, _, fence, _, _, owner_length, _, token_length, settled_length, started, _, last_started =
      struct_unpack(LEASE, raw, 33)
    local settled_start = owner_start + owner_length
    if
      flags % 2 == 0 or attempt >= MOST_ATTEMPTS or fence >= LAST - 1 or token_length ~= 0
      or (flags > 3 and not F.has_reply_alone(raw, settled_start + settled_length))
    then
      return nil
    end
    if runs then
      started, last_started = started == 0 and now or started, now
    end
    return char(flags, runs and RUNNING or ASSIGNED) .. sub(raw, 3, 32)
      .. struct_pack(
        LEASE, attempt + 1, losses, terms.max_losses, terms.max_attempts, now > fence and now or fence + 1, 0,
        terms.lease_expires, #owner, terms.lease_len, #token, settled_length, started, 0, last_started, 0
      )
      .. sub(raw, 81, owner_start - 1) .. owner .. token .. sub(raw, settled_start)
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
    if task.share == 0 then
      return ids, of
    end
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
        not F.is_key_part(task) or terms.lease_len > LONGEST_LEASE_US or terms.max_losses > MOST_LOSSES
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
    for place, raw in ipairs(F.read(root .. "jobs:" .. wanted.queue, ids)) do
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
      leases[#leases + 1] = F.blob(after, wanted.queue, id)
    end
    return plan
  end

  -- What a claim takes; nil: the rules must decide.
  -- S3, C1, C4, C5, U1, T2: queues in the order given; a paused one gives nothing; due jobs and a claim that was sent
  -- before are left to the rules.
  local function plan_claim(root, claim, first_rank, at)
    if
      #claim.claim_id > LONGEST_TEXT - 12 or #claim.worker > LONGEST_TEXT or #claim.worker == 0
      or call("HEXISTS", root .. "claims", claim.claim_id) == 1
    then
      return nil
    end
    local plans, leases, seen, next_due = {}, {}, {}, nil
    for _, wanted in ipairs(claim.queues) do
      local name = wanted.queue
      if seen[name] or not F.is_key_part(name) then
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
        F.write("ZREM", root .. "state:" .. name .. ":queued", plan.ids)
        F.write("HSET", root .. "jobs:" .. name, plan.stored)
        F.write("ZADD", root .. "leases", plan.members)
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

  -- Fails if a key that is written, and that was not read, is of another type.
  local function check_types(root, settled, claimed)
    for name in pairs(settled.queues) do
      call("HLEN", root .. "queue:" .. name)
      call("ZCARD", root .. "state:" .. name .. ":succeeded")
    end
    if next(settled.queues) then
      call("ZCARD", root .. "ended")
      call("HLEN", root .. "claims")
    end
    for _, plan in ipairs(claimed and claimed.plans or {}) do
      if plan.ids[1] then
        call("ZCARD", root .. "state:" .. plan.name .. ":queued")
      end
    end
  end

  -- W2: settlements, then the claim. Starts are left to the rules.
  function F.exchange(command, this)
    local root, settlements, claim = this.root, command.settlements, command.claim
    if #command.starts > 0 or not F.nothing_waits(root) then
      return nil
    end
    local settled = F.plan_settlements(root, settlements, this.at.wall)
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
    local statuses, numbers, blobs = {}, {}, { false }
    if #settlements > 0 or #leases > 0 then
      check_types(root, settled, claimed)
      call("ZREM", root .. "leases", "") -- removes nothing; after it a server without memory refuses no write
      local counts = {}
      F.apply_settlements(root, settled, counts)
      if claimed then
        apply_claim(root, claimed, counts)
      end
      apply_counts(root, counts)
      this.tip = H.advance(root, this.tip)
      this.publish(settled.topics)
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
