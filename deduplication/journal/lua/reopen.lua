-- Drops what is known of one destination and gives the entry back, for a re-send to join. Follows entry.lua.
--
-- ARGV[3]  {entry, destination}
-- Returns {number, 1}, {0, 0} where there is no such delivery or something of the entry is still to be delivered.

local refused = refusal()
if refused then return refused end

local id, destination = unpack(request)
local entry = read_entry(id)
local dropped, i
if entry then dropped, i = delivery_to(entry, destination) end
if not dropped or has_open_deliveries(entry) or is_held(entry) then return {0, 0} end
local before = cmsgpack.unpack(cmsgpack.pack(entry))
local generation = next_generation(entry)
set_free_again(entry)
entry[E_GENERATION] = generation
table.remove(entry[DELIVERIES], i)
local number = next_number()
save(entry, before)
drop_words(dropped, id)
announce('generations', id)
return {number, 1}
