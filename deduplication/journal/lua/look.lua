-- What is known of names; nothing changes. Follows entry.lua.
--
-- ARGV[3]  {name...}
-- Returns {0, {is marked (1 or 0), entry under it...}...}.

local refused = refusal()
if refused then return refused end

local answer = {0}
for _, name in ipairs(request) do
  local known = {is_marked(name) and 1 or 0}
  for _, ref in ipairs(refs_of(name)) do
    local stored = call('GET', prefix .. 'entry:' .. ref[1])
    if stored then known[#known + 1] = stored end
  end
  answer[#answer + 1] = known
end
return answer
