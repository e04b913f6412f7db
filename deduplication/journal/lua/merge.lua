-- Takes over what a machine knows: decided while it was alone, delivered without Redis having heard of it, or everything,
-- to a Redis that lost its memory. Merging twice changes nothing. Follows entry.lua.
--
-- ARGV[3]  {hold_ms, {entry, payload (true: sent ahead) or false, marked_for_ms, bytes}...}; leases and next tries as
--          milliseconds from now, how long ago the entry's names were marked, and how much its payload is. What lies on
--          the machine that tells is delivered from there, unless Redis has room for it. A hold keeps Redis closed for that much
--          longer, until the other machines have told it what they know too. What was never tried is then due at once:
--          the message that announced it to a worker may be gone as well. A hold without entries says that all was told.
-- Returns {number}.

local function is_further(one, other)
  local function progress(delivery)
    local is_settled = not is_open(delivery)
    return {
      delivery[GENERATION], delivery[STATUS] == 'delivered' and 1 or 0, is_settled and 1 or 0, delivery[TRIES],
      delivery[NEXT_TRY] and 1 or 0,  -- stored: a request that is still at it has none
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

-- Of two states of one entry: the later generation; done, then pending (the later end of its lease counts), then free
local RANK = {free = 0, pending = 1, done = 2}

-- What the machine no longer knows of was reopened there.
local function without_reopened(known, told)
  local left = {}
  for _, delivery in ipairs(known[DELIVERIES]) do
    if delivery_to(told, delivery[DESTINATION]) then
      left[#left + 1] = delivery
    else
      drop_words(delivery, known[ID])
    end
  end
  return left
end

local function merged(known, told)
  local is_newer, is_older = told[E_GENERATION] > known[E_GENERATION], told[E_GENERATION] < known[E_GENERATION]
  local is_later = RANK[told[STATE]] > RANK[known[STATE]]
    or (told[STATE] == 'pending' and known[STATE] == 'pending' and told[LEASE] > known[LEASE])
  if is_newer or (is_later and not is_older) then
    for _, field in ipairs({STATE, OWNER, FENCE, LEASE, ANSWER, SETTLED, STOP, RELEASED, E_GENERATION}) do
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
      if not is_older then known[DELIVERIES][#known[DELIVERIES] + 1] = delivery end  -- else it was reopened here
    elseif is_further(delivery, before) then
      known[DELIVERIES][i] = delivery
    end
  end
  if is_newer then known[DELIVERIES] = without_reopened(known, told) end
  return known
end

-- Each machine counts the repeats that it answered alone, and tells all of them each time.
local REPEATS_TOLD = 24

local function count_repeats(entry, told, repeats)
  local counted = entry[REPEATS_TOLD] or {}
  local more = repeats - (counted[machine] or 0)
  if more <= 0 then return end
  counted[machine] = repeats
  entry[REPEATS_TOLD], entry[REPEATS] = counted, entry[REPEATS] + more
  if (told[REPEATED] or 0) > (entry[REPEATED] or 0) then
    entry[REPEATED], entry[REPEATED_BY] = told[REPEATED], told[REPEATED_BY]
  end
end

-- What was reset after the machine took the item is not brought back.
local function without_forgotten(names, created)
  local left = {}
  for _, name in ipairs(names) do
    local forgotten = call('ZSCORE', prefix .. 'forgotten', label_of(name))
    if not forgotten or tonumber(forgotten) < created then left[#left + 1] = name end
  end
  return left
end

-- What Redis or another machine has of it stays as it is. What the machine itself had alone may be gone by now.
local function take_payload(entry, payload, bytes, is_here)
  if entry[PAYLOAD_MACHINE] ~= machine and has_payload(entry) then return end
  if not needs_payload(entry) then
    drop_payload(entry, true)
  elseif not payload or not put_payload(entry, payload, bytes, not is_here) then
    leave_payload(entry, is_here and bytes or 0)
  end
end

if seen > tonumber(call('GET', prefix .. 'fence') or 0) then call('SET', prefix .. 'fence', seen) end

for i = 2, #request do
  local told, payload, bytes
  told, payload, marked_for_ms, bytes = unpack(request[i])
  local is_here = told[PAYLOAD_MACHINE] == machine
  if is_here or told[PAYLOAD_MACHINE] == '' then told[PAYLOAD_BYTES], told[PAYLOAD_MACHINE] = 0, '' end
  if told[STATE] == 'pending' then told[LEASE] = now + told[LEASE] end
  for _, delivery in ipairs(told[DELIVERIES]) do
    if delivery[NEXT_TRY] then delivery[NEXT_TRY] = now + delivery[NEXT_TRY] end
    if delivery[D_LEASE] > 0 then delivery[D_LEASE] = now + delivery[D_LEASE] end
  end
  told[OWN] = without_forgotten(told[OWN], told[CREATED])
  told[SHARED] = without_forgotten(told[SHARED], told[CREATED])
  local known = read_entry(told[ID])
  local before = known and cmsgpack.unpack(cmsgpack.pack(known))
  local repeats = told[REPEATS]
  if not known then told[REPEATS] = 0 end
  local after = known and merged(known, told) or told
  for _, delivery in ipairs(request[1] > 0 and after[DELIVERIES] or {}) do
    if delivery[STATUS] == 'waiting' and delivery[TRIES] == 0 then delivery[NEXT_TRY] = now end
  end
  count_repeats(after, told, repeats)
  take_payload(after, payload, bytes, is_here)
  save(after, before)
end
if request[1] > 0 then call('SET', CLOSED_UNTIL, now + request[1]) end
return {next_number(request[1] > 0 and #request == 1)}
