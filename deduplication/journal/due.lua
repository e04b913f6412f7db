-- Hands out stored deliveries whose time has come, each to one owner, under a lease (rule 18); or makes those that nobody
-- has taken due at once. For twelve seconds after that, they are handed out at a pace that doubles with each second.
--
-- KEYS  1 the era, 2 the sorted set of what is due at a destination, 3 the set of such destinations, 4 the pace there
-- ARGV  1 prefix of all keys   2 the era the caller knows   3 owner   4 lease in ms, or "" to make them due
--       5 how many at the most   6 the destination
-- Returns {era, closed for ms, webhook-id, data, begins, ...}, or the webhook-ids alone; none while the era is closed or
-- another one.
local call = redis.call
local time = call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local info = redis.pcall('INFO', 'server')
local run = type(info) == 'string' and string.match(info, 'run_id:(%x+)') or 'unknown'
local era_run, era, _, closed_until = string.match(call('GET', KEYS[1]) or '', '^(%w+) (%w+) (%d+) (%d+)$')
local answer = {era or '', math.max((closed_until or now) - now, 0)}
if era_run ~= run or era ~= ARGV[2] or answer[2] > 0 then return answer end

if ARGV[4] == '' then
  call('SET', KEYS[4], string.format('%.0f 0', now), 'PX', 12000)
  for _, id in ipairs(call('ZRANGEBYSCORE', KEYS[2], string.format('(%.0f', now), '+inf', 'LIMIT', 0, ARGV[5] + 1000)) do
    -- The score of one that is lent is the end of its lease.
    if call('HGET', ARGV[1] .. 'delivery:' .. id, 'owner') == '' and #answer - 2 < tonumber(ARGV[5]) then
      call('ZADD', KEYS[2], string.format('%.0f', now), id)
      answer[#answer + 1] = id
    end
  end
  return answer
end

local most, pace = tonumber(ARGV[5]), call('GET', KEYS[4])
local started, given = string.match(pace or '', '(%d+) (%d+)')
if pace then most = math.max(0, math.min(most, 4 * 2 ^ math.floor((now - started) / 1000) - 2 - given)) end
local until_ms = string.format('%.0f', now + ARGV[4])
for _, id in ipairs(call('ZRANGEBYSCORE', KEYS[2], '-inf', string.format('%.0f', now), 'LIMIT', 0, most)) do
  local key = ARGV[1] .. 'delivery:' .. id
  local data = call('HGET', key, 'data')
  if data then
    call('ZADD', KEYS[2], until_ms, id)
    call('HSET', key, 'owner', ARGV[3])
    for _, each in ipairs({id, data, call('HINCRBY', key, 'begins', 1)}) do answer[#answer + 1] = each end
  else
    call('ZREM', KEYS[2], id)
  end
end
if pace and #answer > 2 then
  call('SET', KEYS[4], string.format('%s %.0f', started, given + (#answer - 2) / 3), 'KEEPTTL')
end
if call('EXISTS', KEYS[2]) == 0 then call('SREM', KEYS[3], ARGV[6]) end
return answer
