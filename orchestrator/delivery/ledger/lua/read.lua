-- Reads records and changes nothing.
--
-- KEYS[1]  deliveries:due
-- then the records (Hash), n of them; then, if they are wanted, their payloads (String) in the same order
-- ARGV[1]  n
--
-- Returns for each {JSON record, status, next try in ms, JSON facts, forgotten_ms, JSON payload}, each of them false where
-- there is none.

local found, n = {}, tonumber(ARGV[1])
for i = 1, n do
  local record, status, facts, forgotten_ms =
    unpack(redis.call('HMGET', KEYS[1 + i], 'record', 'status', 'facts', 'forgotten_ms'))
  local next_try_ms = facts and redis.call('ZSCORE', KEYS[1], cjson.decode(facts).member)
  local payload = KEYS[1 + n + i] and redis.call('GET', KEYS[1 + n + i])
  found[i] = {record, status, next_try_ms or false, facts, forgotten_ms, payload or false}
end
return found
