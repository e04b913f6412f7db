-- Drops records, and remembers that they were dropped, so that no server puts its copy of an older one back.
--
-- KEYS[1]  deliveries:due
-- KEYS[2]  deliveries:expiring
-- then n indexes (ZSET), then for each record two: itself (Hash) and its payload (String)
-- ARGV[1]  n
-- ARGV[2]  for how many milliseconds that is remembered
--
-- Returns for each 1, or 0 if it was not known.

local time = redis.call('TIME')
local now_ms = tonumber(time[1]) * 1000 + math.floor(tonumber(time[2]) / 1000)

local n, forgotten = tonumber(ARGV[1]), {}
for first = 2 + n + 1, #KEYS, 2 do
  local facts = redis.call('HGET', KEYS[first], 'facts')
  if facts then
    local member = cjson.decode(facts).member
    for key = 1, 2 + n do redis.call('ZREM', KEYS[key], member) end
  end
  redis.call('DEL', KEYS[first], KEYS[first + 1])
  redis.call('HSET', KEYS[first], 'forgotten_ms', now_ms)
  redis.call('PEXPIRE', KEYS[first], ARGV[2])
  forgotten[#forgotten + 1] = facts and 1 or 0
end
return forgotten
