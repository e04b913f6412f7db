-- Compares, then writes, then publishes. It knows keys and values but not their meaning: Python composes both.
--
-- KEYS  1 the era, 2 the stream of events, then the keys of names, then all others; the step refers to them by position
-- ARGV  1 the step, packed: {prefix of all keys, an id of the caller for a new era, HOLD in ms, whether the era must be
--       open, latest time of execution in ms or 0, the era that it must be or "", the event or "", each name's expected
--       value ("" for none), conditions {how, key, argument, whether it is so}, writes {command, key, argument...}}
-- Returns {outcome, era, closed for ms, now in us, ...}. "ok" is followed by what a LOCK, a TAKE or a HASTEN returns;
-- "differs" by the names' values, the conditions' values, and the references that the names point to (id, value, ...).
local call = redis.call
local prefix, caller, hold_ms, only_open, before_ms, its_era, event, expected, conditions, writes =
  unpack(cmsgpack.unpack(ARGV[1]))
local time = call('TIME')
local now_us = time[1] * 1000000 + time[2]
local now = math.floor(now_us / 1000)

-- Rule 13: after a restart, FLUSHALL or an older snapshot, a new era begins, in which nothing is granted for a while.
local values = call('MGET', KEYS[1], unpack(KEYS, 3, 2 + #expected))
local info = redis.pcall('INFO', 'server')
local place = type(info) == 'string' and string.find(info, 'run_id:', 1, true)
local run = place and string.sub(info, place + 7, place + 46) or 'unknown'
local era_run, era, began, closed_until = string.match(table.remove(values, 1) or '', '^(%w+) (%w+) (%d+) (%d+)$')
if era_run ~= run then
  era, began, closed_until = caller .. string.format('%.0f', now_us), now, now + hold_ms
  call('SET', KEYS[1], table.concat({run, era, began, string.format('%.0f', closed_until)}, ' '))
end
local closed_ms = math.min(math.max(closed_until - now, 0), 2 * hold_ms)

local function answer(outcome, ...)
  return {outcome, era, closed_ms, string.format('%.0f', now_us), ...}
end
if only_open and closed_ms > 0 then return answer('closed') end
if its_era ~= '' and its_era ~= era then return answer('closed') end
if before_ms > 0 and now > before_ms then return answer('late') end

local is_same = true
for i, value in ipairs(expected) do
  values[i] = values[i] or ''
  is_same = is_same and values[i] == value
end
local found = {}
for i, condition in ipairs(conditions) do
  local how, key, argument, is_expected = unpack(condition)
  local is_so
  if how == 'member' then is_so = call('SISMEMBER', KEYS[key], argument) == 1
  elseif how == 'value' then is_so = call('GET', KEYS[key]) == argument
  elseif how == 'exists' then is_so = call('EXISTS', KEYS[key]) == 1
  elseif how == 'owner' then is_so = call('HGET', KEYS[key], 'owner') == argument
  end
  found[i] = is_so and '1' or '0'
  is_same = is_same and is_so == is_expected
end

if not is_same then
  local references = {}
  for i = 1, #expected do
    for id in string.gmatch(string.match(values[i], '|(.*)') or '', '[^,]+') do
      local value = call('GET', prefix .. 'e:' .. id)
      if value then
        references[#references + 1] = id
        references[#references + 1] = value
      end
    end
  end
  return answer('differs', values, found, references)
end

-- Rule 18: lends due deliveries of a destination to one owner. For twelve seconds after HASTEN, the pace of that is
-- limited, and doubles with each second.
local function take(due, destination, owner, lease_ms, most)
  local taken, pace_key = {}, prefix .. 'pace:' .. destination
  local pace = call('GET', pace_key)
  local started, given = string.match(pace or '', '(%d+) (%d+)')
  if pace then most = math.max(0, math.min(most, 4 * 2 ^ math.floor((now - started) / 1000) - 2 - given)) end
  for _, id in ipairs(call('ZRANGEBYSCORE', due, '-inf', string.format('%.0f', now), 'LIMIT', 0, most)) do
    local delivery = prefix .. 'delivery:' .. id
    local data = call('HGET', delivery, 'data')
    if data then
      call('ZADD', due, string.format('%.0f', now + lease_ms), id)
      call('HSET', delivery, 'owner', owner)
      for _, each in ipairs({id, data, call('HINCRBY', delivery, 'begins', 1)}) do taken[#taken + 1] = each end
    else
      call('ZREM', due, id)
    end
  end
  if pace and #taken > 0 then
    call('SET', pace_key, string.format('%s %.0f', started, given + #taken / 3), 'KEEPTTL')
  end
  if call('EXISTS', due) == 0 then call('SREM', prefix .. 'due', destination) end
  return taken
end

-- Makes deliveries due now, except lent ones, whose score is the end of their lease. Returns how many.
local function hasten(due, destination, most)
  local count, now_ms = 0, string.format('%.0f', now)
  call('SET', prefix .. 'pace:' .. destination, now_ms .. ' 0', 'PX', 12000)
  for _, id in ipairs(call('ZRANGEBYSCORE', due, '(' .. now_ms, '+inf', 'LIMIT', 0, most + 1000)) do
    if count < most and call('HGET', prefix .. 'delivery:' .. id, 'owner') == '' then
      count = count + call('ZADD', due, 'CH', now_ms, id)
    end
  end
  return count
end

local result
local function use_room(destination, bytes) call('HINCRBY', prefix .. 'room', destination, bytes) end
for _, write in ipairs(writes) do
  local command, key, first = write[1], KEYS[write[2]], write[3]
  if command == 'HOLD' then
    -- Redis' clock counts the lease: "\1" and 25000 in the value become 25 s from now. JSON has no other "\1".
    local lease = function(ms) return string.format('%.0f', now + ms) end
    call('SET', key, (string.gsub(first, '\1(%d+)', lease)), unpack(write, 4))
  elseif command == 'LOCK' then -- "\1" becomes a fencing number
    result = string.format('%.0f', math.max((tonumber(call('GET', prefix .. 'fence')) or 0) + 1, now_us))
    call('SET', prefix .. 'fence', result)
    call('SET', key, (string.gsub(first, '\1', result)), unpack(write, 4))
  elseif command == 'TAKE' then
    result = take(key, first, unpack(write, 4))
  elseif command == 'HASTEN' then
    result = hasten(key, first, write[4])
  elseif command == 'DELEQ' then
    if call('GET', key) == first then call('DEL', key) end
  elseif command == 'END' then -- a stored delivery ends: its payload takes no more room
    use_room(first, 0 - (tonumber(call('HGET', key, 'size')) or 0)) -- not "-0"
    call('DEL', key)
  elseif command == 'BURY' then -- the payloads of dead letters are counted separately, and removed first
    use_room('', call('STRLEN', prefix .. 'payload:' .. first))
    call('ZADD', key, string.format('%.0f', now), first)
  elseif command == 'DROP' then
    if call('ZREM', key, first) == 1 then
      use_room('', 0 - call('STRLEN', prefix .. 'payload:' .. first))
      call('DEL', prefix .. 'payload:' .. first)
    end
  elseif command == 'EXTEND' then -- extends the closing of a new era, by at most HOLD once more
    if closed_ms > 0 then
      local until_ms = math.min(math.max(closed_until, now + first), began + 2 * hold_ms)
      call('SET', key, table.concat({run, era, began, string.format('%.0f', until_ms)}, ' '))
    end
  else
    call(command, key, unpack(write, 3))
  end
end
if event ~= '' then call('XADD', KEYS[2], '*', 'e', event) end
return answer('ok', result)
