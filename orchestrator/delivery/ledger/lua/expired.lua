-- KEYS[1]  deliveries:expiring
-- ARGV[1]  how many at most
-- Returns the members whose record has expired by this server's TIME.

local time = redis.call('TIME')
local now_ms = tonumber(time[1]) * 1000 + math.floor(tonumber(time[2]) / 1000)
return redis.call('ZRANGEBYSCORE', KEYS[1], '-inf', '(' .. now_ms, 'LIMIT', 0, ARGV[1])
