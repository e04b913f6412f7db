-- Put between entry.lua and the scripts that tell items apart by what they say (fingerprint.py).
--
-- A fingerprint is text.files.file_names.file_sizes.links.ids.head, "-" for what is unknown.

local TEXT, FILES, FILE_NAMES, IDS, HEAD = 1, 2, 3, 6, 7

local known_parts = {} -- of what was taken apart in this script

local function take_apart(written)
  if written == '' then return {'-', '-', '-', '-', '-', '-', '-'} end
  if not string.find(written, '.', 1, true) then return {string.sub(written, 1, 24), '-', '-', '-', '-', '-', '-'} end
  local parts = {}
  for part in string.gmatch(written, '[^.]+') do parts[#parts + 1] = part end
  return parts
end

local function parts_of(written)
  known_parts[written] = known_parts[written] or take_apart(written)
  return known_parts[written]
end

local function conflicts(ours, theirs)
  local are_files_known = ours[FILES] ~= '-' and theirs[FILES] ~= '-'
  for i = TEXT, HEAD do
    local is_asked = i ~= IDS and (i ~= FILE_NAMES or not are_files_known)
    if is_asked and ours[i] ~= '-' and theirs[i] ~= '-' and ours[i] ~= theirs[i] then return true end
  end
  return false
end

local function equal_parts(ours, theirs)
  local equal = 0
  for i = TEXT, HEAD do
    if ours[i] ~= '-' and ours[i] == theirs[i] then equal = equal + 1 end
  end
  return equal
end

-- What is known, and of the rest what a repeat tells: it may fill in a part, never change one.
local function filled(written, fingerprint)
  if written == fingerprint and string.find(written, '.', 1, true) then return written end
  local theirs, ours, parts, any_known = parts_of(written), parts_of(fingerprint), {}, false
  for i = TEXT, HEAD do
    parts[i] = theirs[i] == '-' and ours[i] or theirs[i]
    any_known = any_known or parts[i] ~= '-'
  end
  return any_known and table.concat(parts, '.') or ''
end

local function is_undated(name) return name[KIND] == 'email_id' and name[SCOPE] == 'undated' end

-- Of entries that meet at a name: no part that both know differs; where only an undated id speaks for it, they agree in all.
local function is_same_item(fingerprint, entry, is_dated)
  if entry[PRINT] == fingerprint then return is_dated or parts_of(fingerprint)[TEXT] ~= '-' end -- as most repeats
  return is_dated and not conflicts(parts_of(fingerprint), parts_of(entry[PRINT]))
end
