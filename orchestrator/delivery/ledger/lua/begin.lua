-- Makes an open record delivering and moves its next try, so that nobody else gets it meanwhile.
--
-- KEYS[1]  deliveries:due
-- KEYS[2]  the record (Hash)
-- KEYS[3]  its payload (String)
-- KEYS[4]  its destination's index of waiting records, KEYS[5] that of delivering ones
-- ARGV[1]  hold_ms: the next try is in so many milliseconds, by this server's TIME
--
-- Returns {JSON record, status, next try in ms, JSON facts, forgotten_ms, JSON payload}, as read.lua does; false if the
-- record is settled or unknown.

local time = redis.call('TIME')
local now_ms = tonumber(time[1]) * 1000 + math.floor(tonumber(time[2]) / 1000)

local next_try_ms = now_ms + tonumber(ARGV[1])

local record, status, facts, forgotten_ms =
  unpack(redis.call('HMGET', KEYS[2], 'record', 'status', 'facts', 'forgotten_ms'))
if status ~= 'waiting' and status ~= 'delivering' then return false end
local member = cjson.decode(facts).member
redis.call('HSET', KEYS[2], 'status', 'delivering')
redis.call('ZADD', KEYS[1], next_try_ms, member)
redis.call('ZREM', KEYS[4], member)
redis.call('ZADD', KEYS[5], 0, member)
return {record, 'delivering', next_try_ms, facts, forgotten_ms, redis.call('GET', KEYS[3])}
