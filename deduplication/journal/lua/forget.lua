-- Drops names as if they had never been; an entry that is still to be delivered keeps its own names. Follows entry.lua.
--
-- ARGV[3]  {name...}
-- Returns {number, how many names were known and are gone, entry that keeps its names...}

local number = next_number()
local forgotten, kept, is_kept = 0, {}, {}
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
    for _, entry in ipairs(entries) do
      local before = cmsgpack.unpack(cmsgpack.pack(entry))
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
      save(entry, before)
    end
    local key, member, _, _, history = unpack(spell(name))
    if member then call('SREM', key, member) else call('DEL', key) end
    if history then call('SREM', prefix .. 'subject_groups:' .. name[SCOPE], history) end
    call('DEL', pointer(name))
    call('SET', tombstone(name), now, 'PX', entry_ms)
    known_marks[label], known_refs[label] = false, {}
  end
end
return {number, forgotten, unpack(kept)}
