-- Takes one stored delivery for its owner. Follows entry.lua.
--
-- ARGV[3]  {entry, destination, owner, lease_ms, most_begins, server}
-- Returns {number, entry, payload}, or {number} where there is nothing to do: settled, begun elsewhere, its words are on
-- their way, or another machine has its payload.

local refused = refusal()
if refused then return refused end

local id, destination, owner, lease_ms, most_begins, server = unpack(request)
local entry, stored = read_entry(id)
local delivery = entry and delivery_to(entry, destination)
if not delivery or entry[STATE] ~= 'done' or not is_open(delivery) then return {0} end
if entry[PAYLOAD_MACHINE] ~= '' and entry[PAYLOAD_MACHINE] ~= machine then return {0} end

local function begun(number) return {number, cmsgpack.pack(entry), call('GET', payload_key(id)) or ''} end

if delivery[STATUS] == 'delivering' and delivery[D_LEASE] > now then
  return delivery[D_OWNER] == owner and begun(0) or {0}
end
local before = cmsgpack.unpack(stored)
local number = next_number()

-- The words at this destination, if another item has them now
local met = delivery[CONTENT] and met_by(delivery[CONTENT], id, entry[TRIAL])
if met and not met.held_ms and not met.stored then
  delivery[STATUS], delivery[NEXT_TRY] = 'skipped', false
  delivery[REASON] = 'repeats ' .. label_of(delivery[CONTENT]) .. ' of ' .. (met.original or 'another program')
elseif met then
  delivery[STATUS], delivery[NEXT_TRY], delivery[AWAITS] = 'waiting', now + (met.held_ms or CONTENT_ASKED_AGAIN_MS), true
  delivery[REASON] = 'the same content is on its way'
elseif delivery[BEGINS] >= most_begins then
  delivery[STATUS], delivery[NEXT_TRY], delivery[D_OWNER] = 'dead', false, ''
  delivery[REASON] = 'begun ' .. delivery[BEGINS] .. ' times and never finished'
else
  delivery[STATUS], delivery[AWAITS], delivery[D_OWNER], delivery[D_FENCE] = 'delivering', false, owner, number
  delivery[SERVER] = server
  delivery[BEGINS], delivery[D_LEASE], delivery[NEXT_TRY] = delivery[BEGINS] + 1, now + lease_ms, now + lease_ms
  save(entry, before)
  return begun(number)
end
save(entry, before)
end_if_over(entry)
return {number}
