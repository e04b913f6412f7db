-- Hands out what is due, and moves it on in the same step.
--
-- KEYS[1]  deliveries:due
-- KEYS[2]  deliveries:expiring
-- ARGV[1]  how many at most
-- ARGV[2]  hold_ms: how long until they come again, by this server's TIME
--
-- Returns their members, oldest first.

local time = redis.call('TIME')
local now_ms = tonumber(time[1]) * 1000 + math.floor(tonumber(time[2]) / 1000)

local due = {}
for _, member in ipairs(redis.call('ZRANGEBYSCORE', KEYS[1], '-inf', now_ms, 'LIMIT', 0, ARGV[1])) do
  local expires_ms = redis.call('ZSCORE', KEYS[2], member)
  if expires_ms and tonumber(expires_ms) > now_ms then
    redis.call('ZADD', KEYS[1], now_ms + tonumber(ARGV[2]), member)
    due[#due + 1] = member
  else
    redis.call('ZREM', KEYS[1], member)
  end
end
return due
