-- Put between entry.lua and the scripts that list or count what waits.

-- All indexes of what waits there, whoever can deliver it
local function due_indexes(destination)
  local indexes = {due_key('', destination)}
  for _, at in ipairs(call('SMEMBERS', prefix .. 'payload_machines')) do
    indexes[#indexes + 1] = due_key(at, destination)
  end
  return indexes
end
