-- The states of destinations: takes over what is told, and answers with all of them. Follows entry.lua.
--
-- ARGV[3]  {is_told, {destination, {is_paused, since_ms, reason, by, well_since_ms}}...}; is_told false only asks
-- Returns {number, destination, state, destination, state...}
-- The later decision counts, of a tie the pause; of the times at which it was well, the latest (destination_state.py).
-- To be told is refused by no Redis, whatever it has lost: told in any order, and twice, they come to the same.

local PAUSED, SINCE, WELL_SINCE = 1, 2, 5
local is_told, key = request[1], prefix .. 'destination_states'
if not is_told then
  local refused = refusal()
  if refused then return refused end
end

local number = 0
for i = 2, #request do
  local destination, told = unpack(request[i])
  local stored = call('HGET', key, destination)
  local known = stored and cmsgpack.unpack(stored) or {false, 0, '', '', 0}
  local is_later = told[SINCE] > known[SINCE] or (told[SINCE] == known[SINCE] and told[PAUSED] and not known[PAUSED])
  local after = is_later and told or known
  after[WELL_SINCE] = math.max(known[WELL_SINCE], told[WELL_SINCE])
  local packed = cmsgpack.pack(after)
  if packed ~= stored then
    call('HSET', key, destination, packed)
    number = next_number()
  end
end

local answer = call('HGETALL', key)
table.insert(answer, 1, number)
return answer
