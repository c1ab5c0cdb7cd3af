-- Helpers of the generated rules: what Python has and Lua 5.1 does not.
-- Positions are Python's, from 0, where a function takes one; lists are Lua's, from 1.

local rt = {}

-- Texts

-- True if `a` comes before `b`, byte by byte. `<` on texts follows the locale of the server.
function rt.less(a, b)
  local length = math.min(#a, #b)
  local place = 1
  while place <= length do
    local x1, x2, x3, x4, x5, x6, x7, x8 = string.byte(a, place, place + 7)
    local y1, y2, y3, y4, y5, y6, y7, y8 = string.byte(b, place, place + 7)
    if x1 ~= y1 then return (x1 or -1) < (y1 or -1) end
    if x2 ~= y2 then return (x2 or -1) < (y2 or -1) end
    if x3 ~= y3 then return (x3 or -1) < (y3 or -1) end
    if x4 ~= y4 then return (x4 or -1) < (y4 or -1) end
    if x5 ~= y5 then return (x5 or -1) < (y5 or -1) end
    if x6 ~= y6 then return (x6 or -1) < (y6 or -1) end
    if x7 ~= y7 then return (x7 or -1) < (y7 or -1) end
    if x8 ~= y8 then return (x8 or -1) < (y8 or -1) end
    place = place + 8
  end
  return #a < #b
end

-- A whole number as text. `tostring` and `..` keep 14 digits, and an instant has 16.
function rt.integer(number)
  return string.format("%.0f", number)
end

function rt.is_ascii(text)
  return string.find(text, "[\128-\255]") == nil
end

function rt.is_decimal(text)
  return string.find(text, "^[0-9]+$") ~= nil
end

-- A tuple of names as the key of a table. No name has a zero byte.
function rt.key(names)
  return table.concat(names, "\0")
end

function rt.key2(first, second)
  return first .. "\0" .. second
end

-- Tokens: the claim's id, a dot, the rank.

function rt.claim_of(token)
  return string.match(token, "^(.*)%.[^.]*$") or ""
end

function rt.rank_of(token)
  return tonumber(string.match(token, "([^.]*)$"))
end

-- Records and lists

-- The class of a value that may be one of several.
function rt.kind(value)
  if type(value) == "table" then
    return value.kind
  end
  return nil
end

function rt.copy(record)
  local copy = {}
  for name, value in next, record do
    copy[name] = value
  end
  return copy
end

-- True if both are equal, tables by what is in them.
function rt.equal(a, b)
  if a == b then
    return true
  end
  if type(a) ~= "table" or type(b) ~= "table" then
    return false
  end
  for name, value in next, a do
    if not rt.equal(value, b[name]) then
      return false
    end
  end
  for name in next, b do
    if a[name] == nil then
      return false
    end
  end
  return true
end

function rt.contains(list, value)
  for _, one in ipairs(list) do
    if one == value then
      return true
    end
  end
  return false
end

-- Items from position `start` up to `stop`, which is left out. A negative position counts from the end.
function rt.slice(list, start, stop)
  local count = #list
  if start < 0 then
    start = math.max(0, count + start)
  end
  if stop == nil or stop > count then
    stop = count
  elseif stop < 0 then
    stop = count + stop
  end
  local part = {}
  for place = start + 1, stop do
    part[#part + 1] = list[place]
  end
  return part
end

function rt.concat(first, second)
  local all = {}
  for _, item in ipairs(first) do
    all[#all + 1] = item
  end
  for _, item in ipairs(second) do
    all[#all + 1] = item
  end
  return all
end

function rt.extended(list, ...)
  return rt.concat(list, { ... })
end

-- How often each item occurs: a list of {item, count}, in the order of their first occurrence.
function rt.counted(list)
  local counts, places = {}, {}
  for _, item in ipairs(list) do
    local place = places[item]
    if place == nil then
      counts[#counts + 1] = { item, 1 }
      places[item] = #counts
    else
      counts[place][2] = counts[place][2] + 1
    end
  end
  return counts
end

function rt.sum(numbers)
  local sum = 0
  for _, number in next, numbers do
    sum = sum + number
  end
  return sum
end

-- The least number of a table, nil if it is empty.
function rt.least_value(numbers)
  local least = nil
  for _, number in next, numbers do
    if least == nil or number < least then
      least = number
    end
  end
  return least
end

-- Order

-- A sorted copy. `less(a, b)` is true if `a` comes before `b`. Equal items keep their order, as in Python.
function rt.sorted(list, less)
  local count = #list
  local from, to = {}, {}
  for place = 1, count do
    from[place] = list[place]
  end
  local width = 1
  while width < count do
    for low = 1, count, 2 * width do
      local left, middle = low, math.min(low + width, count + 1)
      local right, high = middle, math.min(low + 2 * width, count + 1)
      for place = low, high - 1 do
        if left < middle and (right >= high or not less(from[right], from[left])) then
          to[place] = from[left]
          left = left + 1
        else
          to[place] = from[right]
          right = right + 1
        end
      end
    end
    from, to = to, from
    width = 2 * width
  end
  return from
end

function rt.sorted_keys(entries)
  local keys = {}
  for key in next, entries do
    keys[#keys + 1] = key
  end
  return rt.sorted(keys, rt.less)
end

-- A heap of tuples, ordered by their first part: a list of numbers, all of one length. No two are equal.

local function comes_first(a, b)
  local x, y = a[1], b[1]
  for place = 1, #x do
    if x[place] ~= y[place] then
      return x[place] < y[place]
    end
  end
  return false
end

local function sift_down(heap, place)
  local item, count = heap[place], #heap
  while 2 * place <= count do
    local child = 2 * place
    if child < count and comes_first(heap[child + 1], heap[child]) then
      child = child + 1
    end
    if not comes_first(heap[child], item) then
      break
    end
    heap[place] = heap[child]
    place = child
  end
  heap[place] = item
end

function rt.heapify(heap)
  for place = math.floor(#heap / 2), 1, -1 do
    sift_down(heap, place)
  end
end

function rt.heapreplace(heap, item)
  local first = heap[1]
  heap[1] = item
  sift_down(heap, 1)
  return first
end

function rt.heappop(heap)
  local first = heap[1]
  heap[1] = heap[#heap]
  heap[#heap] = nil
  if #heap > 1 then
    sift_down(heap, 1)
  end
  return first
end

-- Keys of pools. Their hash has 64 bits: the client sends it in two halves, and the stored job keeps them.

rt.key_hash = {}

function rt.know_key(key, high, low)
  rt.key_hash[key] = { high, low }
end

-- The lane of a key in a pool with this number of lanes: its hash modulo the number. Exact up to 2^26 lanes.
function rt.key_lane(key, lanes)
  local hash = rt.key_hash[key]
  if hash == nil then
    error("the hash of a pool key is missing")
  end
  return ((hash[1] % lanes) * (4294967296 % lanes) + hash[2]) % lanes
end
