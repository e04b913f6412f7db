-- Moves on what was handed out, unless something became of it since.
--
-- KEYS[1]  deliveries:due
-- ARGV[1]  hold_ms: they come again in so many milliseconds, by this server's TIME
-- ARGV[2..]  for each: its member, and the next try it was handed out with, in ms
--
-- Returns how many were moved.

local time = redis.call('TIME')
local next_try_ms = tonumber(time[1]) * 1000 + math.floor(tonumber(time[2]) / 1000) + tonumber(ARGV[1])

local moved = 0
for index = 2, #ARGV, 2 do
  if tonumber(redis.call('ZSCORE', KEYS[1], ARGV[index]) or -1) == tonumber(ARGV[index + 1]) then
    redis.call('ZADD', KEYS[1], next_try_ms, ARGV[index])
    moved = moved + 1
  end
end
return moved
