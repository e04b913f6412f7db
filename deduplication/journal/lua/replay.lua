-- Sends an entry to one of its destinations again, past all gates (verdict.py, replayed). Follows entry.lua.
--
-- ARGV[3]  {entry, destination, force, webhook_id or false}
-- ARGV[4]  the payload, if the machine has it and Redis does not; "" for none
-- Returns {number, what became of it}, "closed" while Redis is being told what it lost.

if refusal() then return {0, 'closed'} end

local id, destination, force, webhook_id = unpack(request)
local entry = read_entry(id)
local delivery = entry and delivery_to(entry, destination)
if not delivery then return {0, 'unknown'} end
local was_skipped = delivery[STATUS] == 'skipped'
if (delivery[STATUS] == 'delivered' or was_skipped) and not force then return {0, 'already_delivered'} end
local is_begun = entry[STATE] == 'done' and delivery[STATUS] == 'delivering' and delivery[D_LEASE] > now
if is_held(entry) or is_begun then return {0, 'under_way'} end
local key = prefix .. 'payload:' .. id
if call('EXISTS', key) == 0 then
  if not given_payload() then return {0, 'no_payload'} end
  put_payload(id, given_payload())
end

local before = cmsgpack.unpack(cmsgpack.pack(entry))
local generation = next_generation(entry)
delivery[WEBHOOK], delivery[STATUS], delivery[GENERATION] = webhook_id or delivery[WEBHOOK], 'waiting', delivery[GENERATION] + 1
delivery[TRIES], delivery[BEGINS], delivery[NEXT_TRY], delivery[DELIVERED] = 0, 0, now, false
delivery[D_OWNER], delivery[D_LEASE], delivery[RECEIVER], delivery[REASON] = '', 0, false, 'replayed'
delivery[CONTENT], delivery[AWAITS], delivery[MISSING] = false, false, false
local shared = {}
for _, name in ipairs(entry[SHARED]) do
  if not met_by(name, id, entry[TRIAL]) then shared[#shared + 1] = name end
end
entry[SHARED] = shared
take_up(entry, generation)
if was_skipped then
  entry[RELEASED] = now
  if entry[STOP] then entry[STOP][4] = false end
end
local number = next_number()
save(entry, before)
return {number, 'replayed'}
