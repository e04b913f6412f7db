-- Takes members out of every index whose record is no longer there, or is now under another member.
--
-- KEYS[1]  deliveries:due
-- KEYS[2]  deliveries:expiring
-- then n indexes (ZSET), then the record (Hash) of each member
-- ARGV[1]  n
-- ARGV[2]  and on: the members
--
-- Returns how many were taken out.

local n, swept = tonumber(ARGV[1]), 0
for i = 2, #ARGV do
  local member = ARGV[i]
  local facts = redis.call('HGET', KEYS[2 + n + i - 1], 'facts')
  if not facts or cjson.decode(facts).member ~= member then
    for key = 1, 2 + n do redis.call('ZREM', KEYS[key], member) end
    swept = swept + 1
  end
end
return swept
