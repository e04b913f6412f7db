-- Marks names that a machine marked before it had a Redis, and of which it keeps no entry any more. Follows entry.lua.
--
-- ARGV[3]  {name...}; each is kept for what is left of its time
-- Returns {0}.

local unmarked = {}
for _, name in ipairs(request) do
  if not is_marked(name) and not call('ZSCORE', prefix .. 'forgotten', label_of(name)) then unmarked[#unmarked + 1] = name end
end
mark_all(unmarked)
return {0}
