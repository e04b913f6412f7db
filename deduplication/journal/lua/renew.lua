-- Starts a lease anew: of a claim, or of one delivery that was begun. Follows entry.lua.
--
-- ARGV[3]  {entry, owner, lease_ms, destination or false}
-- Returns {0, 1}, or {0, 0} where it is no longer the owner's.

local id, owner, lease_ms, destination = unpack(request)
local entry = read_entry(id)
if not entry then return {0, 0} end
local before = cmsgpack.unpack(cmsgpack.pack(entry))
if not destination then
  if entry[OWNER] ~= owner or entry[STATE] ~= 'pending' then return {0, 0} end
  entry[LEASE] = now + lease_ms
else
  local delivery = delivery_to(entry, destination)
  if not delivery or delivery[D_OWNER] ~= owner or delivery[STATUS] ~= 'delivering' then return {0, 0} end
  delivery[D_LEASE], delivery[NEXT_TRY] = now + lease_ms, now + lease_ms
end
save(entry, before)
return {0, 1}
