-- Hands out what waits longer than it need, now that its destination is well again. Follows entry.lua.
--
-- ARGV[3]  {destination, well_since_ms, from_ms, limit, most_looked_at, hold_ms}: deliveries whose next try is at from_ms
--          or later, in that order. What is due within the hold is left alone: it may be in somebody's hands.
-- Returns {0, where to go on (0: that was all), entry, entry...}

local refused = refusal()
if refused then return refused end

-- When it was last tried; 0: never
local function last_attempt(delivery)
  local attempts = delivery[ATTEMPTS]
  return #attempts > 0 and attempts[#attempts][1] or 0
end

local destination, well_since, from, limit, most_looked_at, hold_ms = unpack(request)
from = math.max(from, now + hold_ms + 1)
local answer, go_on_at = {0, 0}, nil

-- Goes on at the first that was not looked at, in whichever index that is.
local function go_on(at) go_on_at = math.min(go_on_at or at, at) end

for _, index in ipairs({due_key('', destination), due_key(machine, destination)}) do
  local found = call('ZRANGEBYSCORE', index, from, '+inf', 'WITHSCORES', 'LIMIT', 0, most_looked_at)
  local is_full = false
  for i = 1, #found, 2 do
    is_full = #answer - 2 == limit
    if is_full then
      go_on(tonumber(found[i + 1]))
      break
    end
    local entry, stored = read_entry(found[i])
    local delivery = entry and delivery_to(entry, destination)
    if delivery and entry[STATE] == 'done' and delivery[STATUS] == 'waiting' and last_attempt(delivery) < well_since then
      delivery[NEXT_TRY] = now + hold_ms
      save(entry, cmsgpack.unpack(stored))
      answer[#answer + 1] = entry[ID]
    end
  end
  if not is_full and #found == 2 * most_looked_at then
    local last = tonumber(found[#found])
    go_on(last == from and from + 1 or last) -- so many at one moment: the rest of them keep their time
  end
end
answer[2] = go_on_at or 0
return answer
