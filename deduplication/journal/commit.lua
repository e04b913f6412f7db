-- Compare, then write, then publish. It knows keys and values, and nothing of what they mean: Python composes both.
--
-- KEYS  1 the era, 2 the stream of events, then the keys of names, then all others that ARGV refers to by position
-- ARGV  1 prefix of all keys            2 a random id, if this begins a new era   3 HOLD in ms
--       4 "1": only while the era is open   5 latest time of execution in ms, or "" 6 the event, or ""
--       7 number of names               8 number of conditions                    9 number of writes
--       then each name's expected value ("" for none), each condition (how, key, argument, "1" or "0"),
--       each write (command, key, count of arguments, arguments...)
-- Returns {outcome, era, closed for ms, now in us, ...}. "ok" is followed by a fencing number where one was asked for;
-- "differs" by the names' values, the conditions' values, and the references that the names point to (id, value, ...).
local call = redis.call
local time = call('TIME')
local now_us = time[1] * 1000000 + time[2]
local now = math.floor(now_us / 1000)

-- Rule 13: a Redis that was restarted, emptied or set back begins a new era, in which nothing is granted for a while.
local info = redis.pcall('INFO', 'server')
local run = type(info) == 'string' and string.match(info, 'run_id:(%x+)') or 'unknown'
local era_run, era, began, closed_until = string.match(call('GET', KEYS[1]) or '', '^(%w+) (%w+) (%d+) (%d+)$')
if era_run ~= run then
  era, began, closed_until = ARGV[2], now, now + ARGV[3]
  call('SET', KEYS[1], table.concat({run, era, began, string.format('%.0f', closed_until)}, ' '))
end
local closed_ms = math.min(math.max(closed_until - now, 0), 2 * ARGV[3])

local function answer(outcome, ...)
  return {outcome, era, closed_ms, string.format('%.0f', now_us), ...}
end
if ARGV[4] == '1' and closed_ms > 0 then return answer('closed') end
if ARGV[5] ~= '' and now > tonumber(ARGV[5]) then return answer('late') end

local names, conditions, writes = tonumber(ARGV[7]), tonumber(ARGV[8]), tonumber(ARGV[9])
local position, is_same = 10, true
local values = names > 0 and call('MGET', unpack(KEYS, 3, 2 + names)) or {}
for i = 1, names do
  values[i] = values[i] or ''
  is_same = is_same and values[i] == ARGV[position]
  position = position + 1
end

local ask = {
  member = function(key, argument) return call('SISMEMBER', key, argument) == 1 end,
  value = function(key, argument) return call('GET', key) == argument end,
  exists = function(key) return call('EXISTS', key) == 1 end,
  owner = function(key, argument) return call('HGET', key, 'owner') == argument end,
}
local found = {}
for i = 1, conditions do
  local how, key, argument, expected = unpack(ARGV, position, position + 3)
  found[i] = ask[how](KEYS[tonumber(key)], argument) and '1' or '0'
  is_same = is_same and found[i] == expected
  position = position + 4
end

if not is_same then
  local references = {}
  for i = 1, names do
    for id in string.gmatch(string.match(values[i], '|(.*)') or '', '[^,]+') do
      local value = call('GET', ARGV[1] .. 'e:' .. id)
      if value then
        references[#references + 1] = id
        references[#references + 1] = value
      end
    end
  end
  return answer('differs', values, found, references)
end

local fence
local function use_room(destination, bytes) call('HINCRBY', ARGV[1] .. 'room', destination, bytes) end
local run_write = {
  -- The end of a lease is Redis' time: "\1" and 25000 in the value become 25 s from now. JSON has no other "\1".
  HOLD = function(key, value, ...)
    call('SET', key, (string.gsub(value, '\1(%d+)', function(ms) return string.format('%.0f', now + ms) end)), ...)
  end,
  LOCK = function(key, value, ...) -- "\1" becomes a fencing number
    fence = string.format('%.0f', math.max((tonumber(call('GET', ARGV[1] .. 'fence')) or 0) + 1, now_us))
    call('SET', ARGV[1] .. 'fence', fence)
    call('SET', key, (string.gsub(value, '\1', fence)), ...)
  end,
  DELEQ = function(key, value) if call('GET', key) == value then call('DEL', key) end end,
  END = function(key, destination) -- of a stored delivery: its payload takes no more room
    use_room(destination, 0 - (tonumber(call('HGET', key, 'size')) or 0)) -- not "-0"
    call('DEL', key)
  end,
  BURY = function(key, id) -- the payload of a dead letter counts apart, and leaves first
    use_room('', call('STRLEN', ARGV[1] .. 'payload:' .. id))
    call('ZADD', key, string.format('%.0f', now), id)
  end,
  DROP = function(key, id)
    if call('ZREM', key, id) == 1 then
      use_room('', 0 - call('STRLEN', ARGV[1] .. 'payload:' .. id))
      call('DEL', ARGV[1] .. 'payload:' .. id)
    end
  end,
  EXTEND = function(key, ms) -- of the time for which a new era is closed, by at most HOLD once more
    if closed_ms > 0 then
      local until_ms = math.min(math.max(closed_until, now + ms), began + 2 * ARGV[3])
      call('SET', key, table.concat({run, era, began, string.format('%.0f', until_ms)}, ' '))
    end
  end,
}
for _ = 1, writes do
  local command, key, count = ARGV[position], KEYS[tonumber(ARGV[position + 1])], tonumber(ARGV[position + 2])
  local first = position + 3
  position = first + count
  if run_write[command] then
    run_write[command](key, unpack(ARGV, first, position - 1))
  else
    call(command, key, unpack(ARGV, first, position - 1))
  end
end
if ARGV[6] ~= '' then call('XADD', KEYS[2], '*', 'e', ARGV[6]) end
return answer('ok', fence)
