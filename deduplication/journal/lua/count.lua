-- How much waits and how much is dead at each destination, by the size of the indexes. Follows entry.lua.
--
-- ARGV[3]  {}
-- Returns {0, destination, waiting, dead, destination, waiting, dead...}

local refused = refusal()
if refused then return refused end

local answer = {0}
for _, destination in ipairs(call('SMEMBERS', prefix .. 'destinations')) do
  local dead = prefix .. 'dead:' .. destination
  -- An entry is kept from when it was settled, its place here from when it died: the oldest may be gone.
  local oldest = call('ZRANGE', dead, 0, 0)[1]
  while oldest and call('EXISTS', prefix .. 'entry:' .. oldest) == 0 do
    call('ZREM', dead, oldest)
    oldest = call('ZRANGE', dead, 0, 0)[1]
  end
  answer[#answer + 1] = destination
  local waiting = 0
  for _, index in ipairs(due_indexes(destination)) do waiting = waiting + call('ZCARD', index) end
  answer[#answer + 1] = waiting
  answer[#answer + 1] = call('ZCARD', dead)
end
return answer
