-- Hands out deliveries whose time has come, and moves each on so that one process gets it. Follows entry.lua.
--
-- ARGV[3]  {hold_ms, {destination, limit, machine or ""}...}; with a machine: what that one alone can deliver
-- Returns {0, entry, destination, entry, destination...}

local refused = refusal()
if refused then return refused end

local hold_ms, handed_out, left = request[1], {0}, {}
for i = 2, #request do
  local destination, limit, at = unpack(request[i])
  local index = due_key(at, destination)
  left[destination] = left[destination] or limit
  for _, id in ipairs(call('ZRANGEBYSCORE', index, '-inf', now, 'LIMIT', 0, left[destination])) do
    local entry = read_entry(id)
    local delivery = entry and delivery_to(entry, destination)
    if delivery and entry[STATE] == 'done' and is_open(delivery) then
      local before = cmsgpack.unpack(cmsgpack.pack(entry))
      delivery[NEXT_TRY] = now + hold_ms
      save(entry, before)
      handed_out[#handed_out + 1] = id
      handed_out[#handed_out + 1] = destination
      left[destination] = left[destination] - 1
    else
      call('ZREM', index, id)
    end
  end
end
return handed_out
