-- The beginning and the end of every call.
--
-- KEYS[1] is the root: the first part of the name of every key. ARGV[1] is the verb, ARGV[2] the options, ARGV[3] the
-- command; byte strings follow (`calls.py`). The reply is a list: the packed head with the answer, then byte strings.
local LONGEST_LEAD_US = 5000000
local MOST_REPAIRS = 200 -- of one call, each of up to a page of jobs

local root, verb = KEYS[1], ARGV[1]
local options = cmsgpack.unpack(ARGV[2])

-- TM4: the only place where time is read.
local clock = options.at
if not clock then
  local time = redis.call("TIME")
  clock = time[1] * 1000000 + time[2] + (options.offset or 0)
end
-- TM3: an answer does not go back behind the last one that the caller has seen, up to a lead that was a wrong time.
-- PF4: leases use the clock alone.
local wall = clock
if options.last and options.last > clock and options.last - clock <= LONGEST_LEAD_US then
  wall = options.last
end
local at = { wall = wall, lease = clock }

local may_fill = verb == "enqueue" or verb == "requeue"
local born, tip, begin, lost, format = H.read(root, options, clock, may_fill)
if lost then
  return redis.error_reply("HOLDFAST HISTORY " .. born .. " " .. string.format("%.0f", tip) .. " " .. begin)
end
if format then
  return redis.error_reply("HOLDFAST FORMAT " .. format)
end

if options.replicated then
  H.write_again(root, tip, may_fill)
end

local command = cmsgpack.unpack(ARGV[3])
local call = { root = root, at = at, options = options, born = born, tip = tip }

function call.publish(topics)
  if options.channel then
    local publish = options.sharded and "SPUBLISH" or "PUBLISH"
    for topic in pairs(topics) do
      redis.call(publish, options.channel .. topic, "")
    end
  end
end

-- `blobs`: false, which the head replaces, then byte strings.
function call.reply(answer, blobs)
  blobs[1] = cmsgpack.pack({ wall, clock, call.born, call.tip, begin, answer, call.begun, call.repaired })
  return blobs
end

if options.fast ~= false and F[verb] then
  local done = F[verb](command, call)
  if done then
    return done
  end
end

-- The rules. A job without a sound record stops them: it is repaired, and they run again.
local function run()
  local damages = {}
  for _ = 1, MOST_REPAIRS do
    local is_repair, done, answer, blobs, topics = damages[1] ~= nil, nil, nil, nil, nil
    if is_repair then
      done, answer = pcall(rules().repair, damages, call)
      command, damages = cmsgpack.unpack(ARGV[3]), done and {} or damages
    else
      done, answer, blobs, topics = pcall(rules().run, verb, command, call)
    end
    if done and not is_repair then
      return answer, blobs, topics
    elseif not done and (type(answer) ~= "table" or not answer.damage) then
      error(answer, 0)
    elseif not done then
      damages[#damages + 1] = answer.damage
    end
  end
  error("more records of jobs are missing or damaged than one call repairs: the next call goes on")
end

local answer, blobs, topics = run()
call.publish(topics)
return call.reply(answer, blobs)
