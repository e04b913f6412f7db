-- Reads names as the version before the journal kept them (upgrade.py), and changes nothing. Follows entry.lua.
--
-- ARGV[3]  {name...}
-- Returns for each {1 if its mark says done, else 0; {fingerprint ("-" = unknown), JSON record, fingerprint...}}

local found = {}
for i, name in ipairs(request) do
  local marked
  if name[KIND] == 'delivery' then
    marked = call('GET', prefix .. 'delivered:' .. name[SCOPE] .. ':' .. name[VALUE]) == '1'
  else
    marked = is_marked(name)
  end
  found[i] = {marked and 1 or 0, call('HGETALL', prefix .. 'claim:' .. label_of(name))}
end
return found
