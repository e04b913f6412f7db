-- Sends an entry to one of its destinations again, past all gates (verdict.py, replayed). Follows entry.lua.
--
-- ARGV[3]  {entry, destination, force, webhook_id or false, bytes}
--          bytes: of the payload, if the machine has it and Redis does not, else 0
-- ARGV[4]  that payload; "" for none, or where it stays there
-- Returns {number, what became of it}.

local refused = refusal()
if refused then return refused end

local id, destination, force, webhook_id, bytes = unpack(request)
local entry = read_entry(id)
local delivery = entry and delivery_to(entry, destination)
if not delivery then return {0, 'unknown'} end
local was_skipped = delivery[STATUS] == 'skipped'
if (delivery[STATUS] == 'delivered' or was_skipped) and not force then return {0, 'already_delivered'} end
local is_begun = entry[STATE] == 'done' and delivery[STATUS] == 'delivering' and delivery[D_LEASE] > now
if is_held(entry) or is_begun then return {0, 'under_way'} end
if bytes == 0 and not has_payload(entry) then return {0, 'no_payload'} end

local before = cmsgpack.unpack(cmsgpack.pack(entry))
if not has_payload(entry) and not (given_payload() and put_payload(entry, given_payload(), bytes)) then
  leave_payload(entry, bytes)
end
-- What waits anyway is tried now, by the schedule from its beginning, and behind the same gates.
if entry[STATE] == 'done' and is_open(delivery) and not force then
  delivery[WEBHOOK], delivery[STATUS], delivery[TRIES], delivery[NEXT_TRY] = webhook_id or delivery[WEBHOOK], 'waiting', 0, now
  delivery[D_OWNER], delivery[D_LEASE], delivery[REASON], delivery[MISSING] = '', 0, 'replayed', false
  local number = next_number()
  save(entry, before)
  return {number, 'replayed'}
end
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
announce('generations', id)
return {number, 'replayed'}
