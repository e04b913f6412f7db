-- Drops names as if they had never been; an entry that is still to be delivered keeps its own names, and one that no
-- destination has is free under them, for a re-send to join. Follows entry.lua.
--
-- ARGV[3]  {name...}
-- Returns {number, how many names were known and are gone, entry that keeps its names...}

local refused = refusal()
if refused then return refused end

local number = next_number()
local forgotten, kept, is_kept = 0, {}, {}

-- entry.py, is_undelivered
local function is_undelivered(entry)
  if entry[STATE] == 'pending' or #entry[DELIVERIES] == 0 then return false end
  for _, delivery in ipairs(entry[DELIVERIES]) do
    if delivery[STATUS] ~= 'dead' and delivery[STATUS] ~= 'skipped' then return false end
  end
  return true
end

-- Written out before its first own name goes, for which false stands (codec.py, short_about)
local function write_item(entry) entry[ABOUT][1] = entry[ABOUT][1] or entry[OWN][1][VALUE] end

local function drop_from(entry, label)
  write_item(entry)
  for _, position in ipairs({OWN, SHARED}) do
    local left = {}
    for _, each in ipairs(entry[position]) do
      if label_of(each) ~= label then left[#left + 1] = each end
    end
    entry[position] = left
  end
  for _, delivery in ipairs(entry[DELIVERIES]) do
    if delivery[CONTENT] and label_of(delivery[CONTENT]) == label then delivery[CONTENT] = false end
  end
end

for _, name in ipairs(request) do
  local label, stays, entries = label_of(name), false, {}
  local refs = refs_of(name)
  for _, ref in ipairs(refs) do
    local entry = read_entry(ref[1])
    if entry then
      entries[#entries + 1] = entry
      if is_own(name) and has_open_deliveries(entry) then
        stays = true
        if not is_kept[ref[1]] then
          is_kept[ref[1]] = true
          kept[#kept + 1] = ref[1]
        end
      end
    end
  end
  if not stays then
    if is_marked(name) or #entries > 0 then forgotten = forgotten + 1 end
    local to_join = {}
    for _, entry in ipairs(entries) do
      local before = cmsgpack.unpack(cmsgpack.pack(entry))
      if is_own(name) and is_undelivered(entry) then
        to_join[#to_join + 1] = {entry[ID], entry[CREATED]}
        set_free_again(entry)
        announce('generations', entry[ID])
      else
        drop_from(entry, label)
      end
      save(entry, before)
    end
    drop_mark(name)
    write_all_refs(name, to_join)
    announce('forgotten', label)
  end
end
return {number, forgotten, unpack(kept)}
