-- Takes deliveries in, all in one step.
--
-- KEYS[1]  deliveries:due           ZSET, member -> next try in ms
-- KEYS[2]  deliveries:expiring      ZSET, member -> end in ms
-- KEYS[3]  deliveries:destinations  Set
-- and 2 + s for each delivery: its record (Hash: record, facts, status; forgotten_ms), its payload (String), and its
-- destination's index of each status, which are s (ZSET of members, by name). A member is "{created_ms}:{id}".
--
-- ARGV[1]  rule: "add" takes what is unknown, or waits without a payload; "save" all that does not undo a delivery;
--          "merge" what has made more progress, and was created after its id was last forgotten
-- ARGV[2]  s
-- and three for each delivery: JSON facts {member, destination, status, index (of its status), created_ms, scheduled_ms,
-- delivered_ms, expires_ms, next_try_ms (optional), progress}, JSON record, JSON payload ('' = none).
--
-- Returns for each "taken", "forgotten", "expired", or the status that stands. Times are of this server's TIME.

local rule, statuses = ARGV[1], tonumber(ARGV[2])
local time = redis.call('TIME')
local now_ms = tonumber(time[1]) * 1000 + math.floor(tonumber(time[2]) / 1000)

local function is_further(new, old)
  for i = 1, #new do
    if new[i] ~= old[i] then return new[i] > old[i] end
  end
  return false
end

local function has_right(new, old, payload_key)
  if rule == 'add' then
    return old.status == 'dead' or (old.status == 'waiting' and redis.call('EXISTS', payload_key) == 0)
  end
  if rule == 'merge' then return is_further(new.progress, old.progress) end
  return old.status ~= 'delivered' or new.status == 'delivered' or new.scheduled_ms > old.delivered_ms
end

local function unlist(member, first_index)
  redis.call('ZREM', KEYS[1], member)
  redis.call('ZREM', KEYS[2], member)
  for i = 0, statuses - 1 do redis.call('ZREM', KEYS[first_index + i], member) end
end

local function list(new, first_index)
  if new.next_try_ms then redis.call('ZADD', KEYS[1], new.next_try_ms, new.member) end
  redis.call('ZADD', KEYS[2], new.expires_ms, new.member)
  redis.call('SADD', KEYS[3], new.destination)
  redis.call('ZADD', KEYS[first_index + new.index], 0, new.member)
end

local function write(facts, new, record, payload, first)
  redis.call('HSET', KEYS[first], 'record', record, 'facts', facts, 'status', new.status)
  redis.call('PEXPIREAT', KEYS[first], new.expires_ms)
  if payload == '' then
    redis.call('DEL', KEYS[first + 1])
  else
    redis.call('SET', KEYS[first + 1], payload)
    redis.call('PEXPIREAT', KEYS[first + 1], new.expires_ms)
  end
end

local function put(facts, record, payload, first)
  local new, old = cjson.decode(facts), nil
  local known, status, forgotten_ms = unpack(redis.call('HMGET', KEYS[first], 'facts', 'status', 'forgotten_ms'))
  if known then
    old = cjson.decode(known)
    old.status = status
  end
  if rule == 'merge' and forgotten_ms and new.created_ms <= tonumber(forgotten_ms) then return 'forgotten' end
  if old and not has_right(new, old, KEYS[first + 1]) then return old.status end
  if new.expires_ms <= now_ms then return 'expired' end
  write(facts, new, record, payload, first) -- a full Redis refuses only the first write of a script, and only if it adds
  if old then unlist(old.member, first + 2) end
  unlist(new.member, first + 2) -- a record of the same creation may have expired in another status
  list(new, first + 2)
  return 'taken'
end

local answers, argument = {}, 3
for first = 4, #KEYS, 2 + statuses do
  answers[#answers + 1] = put(ARGV[argument], ARGV[argument + 1], ARGV[argument + 2], first)
  argument = argument + 3
end
return answers
