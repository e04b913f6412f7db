-- Lets go out what was skipped, past all shared names (verdict.py, released). Follows entry.lua and fingerprint.lua.
--
-- ARGV[3]  {entry, force, bytes}
--          bytes: of the payload, if the machine has it and Redis does not, else 0
-- ARGV[4]  that payload; "" for none, or where it stays there
-- Returns {number, what became of it}.

local refused = refusal()
if refused then return refused end

local id, force, bytes = unpack(request)
local entry = read_entry(id)
if not entry then return {0, 'unknown'} end
local skipped = {}
for _, delivery in ipairs(entry[DELIVERIES]) do
  if delivery[STATUS] == 'skipped' then skipped[#skipped + 1] = delivery end
end
if is_held(entry) or #skipped == 0 then return {0, entry[RELEASED] and 'already_released' or 'not_suppressed'} end

-- The other entries under its own names, each with whether more than an undated id speaks for it
local is_dated, others = {}, {}
for _, name in ipairs(entry[OWN]) do
  for _, ref in ipairs(refs_of(name)) do
    if ref[1] ~= id then
      if is_dated[ref[1]] == nil then others[#others + 1] = ref[1] end
      is_dated[ref[1]] = is_dated[ref[1]] or not is_undated(name)
    end
  end
end
for _, other_id in ipairs(others) do
  local other = read_entry(other_id)
  local is_same = other and is_same_item(entry[PRINT], other, is_dated[other_id])
  if is_same and is_delivered_somewhere(other) and not force then return {0, 'already_delivered'} end
end

if bytes == 0 and not has_payload(entry) then return {0, 'no_payload'} end

local before = cmsgpack.unpack(cmsgpack.pack(entry))
if not has_payload(entry) and not (given_payload() and put_payload(entry, given_payload(), bytes)) then
  leave_payload(entry, bytes)
end
local shared = {}
for _, name in ipairs(entry[SHARED]) do
  if standing(entry, name, label_of(name)) ~= 'given back' then shared[#shared + 1] = name end
end
local generation = next_generation(entry)
for _, delivery in ipairs(skipped) do
  wait_for_release(delivery)
  delivery[CONTENT], delivery[AWAITS] = false, false
end
entry[SHARED], entry[RELEASED] = shared, now
take_up(entry, generation)
if entry[STOP] then entry[STOP][4] = false end
local number = next_number()
save(entry, before)
announce('generations', id)
return {number, 'released'}
