-- Takes over what a machine knows: decided while it was alone, delivered without Redis having heard of it, or everything,
-- to a Redis that lost its memory. Merging twice changes nothing. Follows entry.lua.
--
-- ARGV[3]  {hold_ms, {entry, payload or false}...}; leases and next tries as milliseconds from now. A hold keeps Redis
--          closed for that much longer, until the other machines have told it what they know too.
-- Returns {number}.

local function is_further(one, other)
  local function progress(delivery)
    local is_settled = not is_open(delivery)
    return {
      delivery[GENERATION], delivery[STATUS] == 'delivered' and 1 or 0, is_settled and 1 or 0, delivery[TRIES],
      delivery[D_FENCE],
    }
  end
  local ours, theirs = progress(one), progress(other)
  for i = 1, #ours do
    if ours[i] ~= theirs[i] then return ours[i] > theirs[i] end
  end
  return false
end

local function add_missing(names, more)
  local known = {}
  for _, name in ipairs(names) do known[label_of(name)] = true end
  for _, name in ipairs(more) do
    if not known[label_of(name)] then names[#names + 1] = name end
  end
end

-- Of two states of one entry: done, then pending (the later end of its lease counts), then free
local RANK = {free = 0, pending = 1, done = 2}

local function merged(known, told)
  local is_later = RANK[told[STATE]] > RANK[known[STATE]]
    or (told[STATE] == 'pending' and known[STATE] == 'pending' and told[LEASE] > known[LEASE])
  if is_later then
    for _, field in ipairs({STATE, OWNER, FENCE, LEASE, ANSWER, SETTLED, STOP, RELEASED}) do
      known[field] = told[field]
    end
  end
  if told[RETRIES] and (not known[RETRIES] or told[RETRIES] < known[RETRIES]) then known[RETRIES] = told[RETRIES] end
  known[TRIAL] = known[TRIAL] and told[TRIAL]
  add_missing(known[OWN], told[OWN])
  add_missing(known[SHARED], told[SHARED])
  for _, delivery in ipairs(told[DELIVERIES]) do
    local before, i = delivery_to(known, delivery[DESTINATION])
    if not before then
      known[DELIVERIES][#known[DELIVERIES] + 1] = delivery
    elseif is_further(delivery, before) then
      known[DELIVERIES][i] = delivery
    end
  end
  return known
end

-- What was reset after the machine took the item is not brought back.
local function without_forgotten(names, created)
  local left = {}
  for _, name in ipairs(names) do
    local forgotten = call('GET', tombstone(name))
    if not forgotten or tonumber(forgotten) < created then left[#left + 1] = name end
  end
  return left
end

if seen > tonumber(call('GET', prefix .. 'fence') or 0) then call('SET', prefix .. 'fence', seen) end

for i = 2, #request do
  local told, payload = unpack(request[i])
  if told[STATE] == 'pending' then told[LEASE] = now + told[LEASE] end
  for _, delivery in ipairs(told[DELIVERIES]) do
    if delivery[NEXT_TRY] then delivery[NEXT_TRY] = now + delivery[NEXT_TRY] end
    if delivery[D_LEASE] > 0 then delivery[D_LEASE] = now + delivery[D_LEASE] end
  end
  told[OWN] = without_forgotten(told[OWN], told[CREATED])
  told[SHARED] = without_forgotten(told[SHARED], told[CREATED])
  local known = read_entry(told[ID])
  local before = known and cmsgpack.unpack(cmsgpack.pack(known))
  local after = known and merged(known, told) or told
  save(after, before)
  if payload and has_open_deliveries(after) then call('SET', prefix .. 'payload:' .. after[ID], payload) end
end
if request[1] > 0 then call('HSET', prefix .. 'machines', CLOSED_UNTIL, now + request[1]) end
return {next_number()}
