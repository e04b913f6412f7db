-- Gives up what has waited for too long, of those whose next try comes first. Follows entry.lua.
--
-- ARGV[3]  {destination, before_ms, limit, reason}: so many are looked at
-- Returns {number, entry, entry...}

local refused = refusal()
if refused then return refused end

-- Since when it has to be delivered (entry.py, waits_since_ms)
local function waits_since(entry) return math.max(entry[CREATED], entry[SETTLED] or 0, entry[RELEASED] or 0) end

local destination, before_ms, limit, reason = unpack(request)
local answer = {0}
for _, index in ipairs({due_key('', destination), due_key(machine, destination)}) do
  for _, id in ipairs(call('ZRANGE', index, 0, limit - 1)) do
    local entry, stored = read_entry(id)
    local delivery = entry and delivery_to(entry, destination)
    if delivery and entry[STATE] == 'done' and delivery[STATUS] == 'waiting' and waits_since(entry) < before_ms then
      delivery[STATUS], delivery[NEXT_TRY], delivery[REASON] = 'dead', false, reason
      save(entry, cmsgpack.unpack(stored))
      end_if_over(entry)
      answer[#answer + 1] = id
    end
  end
end
if #answer > 1 then answer[1] = next_number() end
return answer
