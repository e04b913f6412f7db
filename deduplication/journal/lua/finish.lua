-- Records what became of one delivery. Follows entry.lua.
--
-- ARGV[3]  {entry, owner, delivery}
-- Returns {number, the entry afterwards}, or {number} where the owner had nothing to say any more.

local id, owner, after = unpack(request)
local number = next_number()
local entry, stored = read_entry(id)
local delivery, i
if entry then delivery, i = delivery_to(entry, after[DESTINATION]) end
if not delivery then return {number} end
local holder = entry[STATE] == 'pending' and entry[OWNER] or delivery[D_OWNER]
local is_fact = after[STATUS] == 'delivered' and delivery[STATUS] ~= 'delivered'
if not is_fact and not (holder == owner and delivery[STATUS] == 'delivering') then return {number} end
local before = cmsgpack.unpack(stored)
after[D_OWNER], after[D_LEASE], after[BEGINS], after[GENERATION] = '', 0, 0, delivery[GENERATION]
entry[DELIVERIES][i] = after
save(entry, before)
end_if_over(entry)
return {number, cmsgpack.pack(entry)}
